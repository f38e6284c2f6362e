"use strict";
// Tables of groups and of episodes: filters, sorting, a hundred rows at a time.
(() => {
  const { h } = viewer;
  const PAGE = 100;

  const LEVELS = [
    ["", "any outcome"],
    ["mixed", "some succeed"],
    ["all", "all succeed"],
    ["none", "none succeed"],
  ];
  const ENDS = [
    ["", "any outcome"],
    ["success", "success"],
    ["no success", "no success"],
    ["truncated", "truncated"],
    ["failed", "failed"],
  ];

  // The numbers of the groups that pass the filters.
  function matching(query) {
    const { groups, sources, types, lower } = viewer.data;
    const wanted = (query.task || "").toLowerCase();
    const task = lower.map((name) => !wanted || name.includes(wanted));
    const type = types.map((type_) => !query.type || type_ === query.type);
    const source = sources.map(
      (source) =>
        (!query.source || source.label === query.source) &&
        (query.run === undefined || query.run === "" || source.run === Number(query.run)) &&
        (!query.iteration || String(source.iteration) === query.iteration) &&
        (!query.stage || source.stage === query.stage),
    );
    const found = [];
    for (let g = 0; g < groups.size.length; g += 1) {
      if (!task[groups.task[g]] || !type[groups.type[g]] || !source[groups.source[g]]) continue;
      if (query.credit === "differs" && groups.differ[g] === 0) continue;
      found.push(g);
    }
    return found;
  }

  viewer.matchingGroups = (query) => {
    const { size, wins } = viewer.data.groups;
    const level = {
      mixed: (g) => wins[g] > 0 && wins[g] < size[g],
      all: (g) => wins[g] === size[g],
      none: (g) => wins[g] === 0,
    }[query.outcome];
    const found = matching(query);
    return level ? found.filter(level) : found;
  };

  viewer.matchingEpisodes = (query) => {
    const { first, episodes } = viewer.data;
    const found = [];
    for (const g of matching(query)) {
      for (let e = first[g]; e < first[g + 1]; e += 1) {
        if (!query.outcome || viewer.outcome(episodes.flags[e]) === query.outcome) found.push(e);
      }
    }
    return found;
  };

  viewer.pick = (query, name, label, options, changed) =>
    h(
      "label",
      null,
      label,
      h(
        "select",
        { name, onchange: (event) => changed({ [name]: event.target.value }) },
        options.map(([value, text]) => h("option", { value, selected: (query[name] ?? "") === value }, text)),
      ),
    );

  // A choice among names; none where all rows have the same.
  viewer.pickName = (query, name, label, any, names, changed) => {
    const known = names.filter(Boolean);
    return known.length > 1 || query[name]
      ? viewer.pick(query, name, label, [["", any], ...known.map((name) => [name, viewer.short(name, 50)])], changed)
      : null;
  };

  viewer.search = (query, name, label, hint, changed) => {
    let timer = 0;
    return h(
      "label",
      null,
      label,
      h("input", {
        type: "search",
        name,
        id: "filter",
        value: query[name] || "",
        placeholder: hint,
        oninput: (event) => {
          clearTimeout(timer);
          const value = event.target.value;
          timer = setTimeout(() => changed({ [name]: value }), 60);
        },
      }),
    );
  };

  const filters = (levels) => (query, changed) => {
    const { types, sources, runs } = viewer.data;
    const pick = (name, label, options) => viewer.pick(query, name, label, options, changed);
    const labels = [
      ...new Map(
        sources.map((source) => [
          source.label,
          source.stage === "train" ? `training, iteration ${source.iteration}` : viewer.visible(source.label),
        ]),
      ),
    ];
    return [
      viewer.search(query, "task", "Task", "part of a task's name", changed),
      viewer.pickName(query, "type", "Type", "any type", types, changed),
      pick("outcome", "Outcome", levels),
      runs.length > 1 &&
        pick("run", "Run", [["", "any run"], ...runs.map((run, i) => [String(i), viewer.visible(run.name)])]),
      pick("source", "Iteration", [["", "any"], ...labels]),
      pick("credit", "Credit", [
        ["", "any"],
        ["differs", "GAGPO and GRPO disagree"],
      ]),
    ];
  };

  // columns(state): [key, name, cell(row), value(row) to sort by]. standard: the default order, by a value (largest first)
  // and in words. The table redraws itself; the filters keep their focus.
  viewer.table = (title, query, { form, find, columns: columnsOf, noun, standard }) => {
    const state = { ...query };
    const status = h("p", { class: "soft", role: "status" });
    const body = h("tbody");
    const more = h("div", { class: "pages" });
    const head = h("thead");
    const table = h(
      "div",
      { class: "wide", tabindex: 0, role: "region", "aria-label": title },
      h("table", { class: "rows" }, head, body),
    );
    let found = [],
      page = 0,
      columns = columnsOf(state);

    function order() {
      const [key, way] = (state.sort || "").split(".");
      const column = columns.find((column) => column[0] === key);
      const value = column ? column[3] : standard.value,
        sign = way === "up" ? 1 : -1;
      const keys = new Map(found.map((row) => [row, value(row)]));
      found.sort((a, b) => {
        const x = keys.get(a),
          y = keys.get(b);
        return (x < y ? -1 : x > y ? 1 : 0) * sign;
      });
      head.replaceChildren(
        h(
          "tr",
          null,
          columns.map(([name, label]) => {
            const mine = name === column?.[0];
            return h(
              "th",
              { scope: "col", "aria-sort": mine ? (sign > 0 ? "ascending" : "descending") : null },
              h(
                "button",
                { type: "button", onclick: () => change({ sort: `${name}.${mine && sign < 0 ? "up" : "down"}` }) },
                label,
                mine ? (sign > 0 ? " ▲" : " ▼") : "",
              ),
            );
          }),
        ),
      );
    }

    function draw() {
      const rows = found.slice(page * PAGE, (page + 1) * PAGE);
      body.replaceChildren(
        ...rows.map((row) =>
          h(
            "tr",
            null,
            columns.map(([, label, cell], i) =>
              h(i ? "td" : "th", i ? { "data-label": label } : { scope: "row" }, h("div", null, cell(row))),
            ),
          ),
        ),
      );
      const last = Math.max(1, Math.ceil(found.length / PAGE));
      status.textContent = `${viewer.times(found.length, noun)}${last > 1 ? `, page ${page + 1} of ${last}` : ""}${state.sort ? "" : `; ${standard.words}`}`;
      const turn = (by, label, off) =>
        h(
          "button",
          {
            type: "button",
            disabled: off,
            onclick: () => {
              page += by;
              draw();
              table.scrollIntoView();
            },
          },
          label,
        );
      more.replaceChildren(
        ...(last > 1 ? [turn(-1, "Previous page", page === 0), turn(1, "Next page", page >= last - 1)] : []),
      );
    }

    function change(news) {
      Object.assign(state, news);
      history.replaceState(null, "", viewer.link([noun + "s"], state));
      refresh();
    }
    function refresh() {
      found = find(state);
      columns = columnsOf(state);
      page = 0;
      order();
      draw();
    }
    refresh();
    return {
      title,
      trail: [[title]],
      page: [
        h("h1", null, title),
        h(
          "form",
          { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
          form(state, change),
        ),
        status,
        table,
        more,
      ],
    };
  };

  const { group } = viewer;
  const of = (name) => (g) => viewer.data.groups[name][g];
  const rate = (g) => of("wins")(g) / of("size")(g);
  const when = (g) => viewer.data.groups.source[g];

  const GROUPS = [
    [
      "task",
      "Task",
      (g) => h("a", { href: viewer.groupLink(g) }, viewer.short(group(g).task, 90)),
      (g) => group(g).task,
    ],
    ["type", "Type", (g) => viewer.short(group(g).type, 40), (g) => group(g).type],
    ["when", "From", (g) => viewer.sourceName(group(g).source), when],
    ["success", "Success", (g) => [viewer.bar(rate(g)), `${of("wins")(g)} of ${of("size")(g)}`], rate],
    ["turns", "Turns", (g) => of("turns")(g).toFixed(1), of("turns")],
    [
      "differ",
      "GAGPO ≠ GRPO",
      (g) =>
        of("differ")(g)
          ? h(
              "span",
              { class: "differ", "--share": of("differ")(g) },
              `${Math.round(100 * of("differ")(g))} % of turns`,
            )
          : "-",
      of("differ"),
    ],
  ];
  // Groups with both successes and failures come first, those of training before those of evaluations.
  const dispute = (g) =>
    of("differ")(g) +
    (of("wins")(g) > 0 && of("wins")(g) < of("size")(g) ? (viewer.data.sources[when(g)].stage === "train" ? 4 : 2) : 0);
  viewer.groups = (query) =>
    viewer.table("Groups", query, {
      form: filters(LEVELS),
      find: viewer.matchingGroups,
      columns: () => GROUPS,
      noun: "group",
      standard: {
        value: dispute,
        words: "training groups with mixed outcomes first, by the share of turns in which GAGPO and GRPO disagree",
      },
    });

  const owner = (e) => viewer.data.owner[e];
  const column = (name) => (e) => viewer.data.episodes[name][e];
  const EPISODES = [
    [
      "task",
      "Task",
      (e) =>
        h(
          "a",
          { href: viewer.episodeLink(owner(e), e - viewer.data.first[owner(e)]) },
          viewer.short(group(owner(e)).task, 90),
        ),
      (e) => group(owner(e)).task,
    ],
    ["type", "Type", (e) => viewer.short(group(owner(e)).type, 40), (e) => group(owner(e)).type],
    ["when", "From", (e) => viewer.sourceName(group(owner(e)).source), (e) => when(owner(e))],
    [
      "outcome",
      "Outcome",
      (e) => h("span", { class: column("flags")(e) & 1 ? "good" : "bad" }, viewer.outcome(column("flags")(e))),
      (e) => column("flags")(e) & 7,
    ],
    ["reward", "Reward", (e) => viewer.number(column("reward")(e)), column("reward")],
    ["turns", "Turns", column("turns"), column("turns")],
  ];
  viewer.episodes = (query) =>
    viewer.table("Episodes", query, {
      form: filters(ENDS),
      find: viewer.matchingEpisodes,
      columns: () => EPISODES,
      noun: "episode",
      standard: { value: (e) => -when(owner(e)), words: "in file order" },
    });
})();
