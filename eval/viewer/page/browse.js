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
  const CREDITS = [
    ["", "any"],
    ["differs", "GAGPO and GRPO disagree"],
  ];

  function sourceMatches(source, query) {
    return (
      (!query.source || source.label === query.source) &&
      (query.run === undefined || query.run === "" || source.run === Number(query.run)) &&
      (!query.iteration || String(source.iteration) === query.iteration) &&
      (!query.stage || source.stage === query.stage)
    );
  }

  // The numbers of the groups that pass the filters. Tasks, types and sources are tested once each: an index may have
  // hundreds of thousands of groups.
  function matching(query) {
    const { groups, sources, types, lower } = viewer.data;
    const part = (query.task || "").toLowerCase();
    const taskMatches = lower.map((name) => !part || name.includes(part));
    const typeMatches = types.map((name) => !query.type || name === query.type);
    const sourcesMatch = sources.map((source) => sourceMatches(source, query));
    const numbers = [];
    for (let g = 0; g < groups.size.length; g += 1) {
      if (!taskMatches[groups.task[g]] || !typeMatches[groups.type[g]] || !sourcesMatch[groups.source[g]]) continue;
      if (query.credit === "differs" && groups.differ[g] === 0) continue;
      numbers.push(g);
    }
    return numbers;
  }

  viewer.matchingGroups = (query) => {
    const { size, wins } = viewer.data.groups;
    const level = {
      mixed: (g) => wins[g] > 0 && wins[g] < size[g],
      all: (g) => wins[g] === size[g],
      none: (g) => wins[g] === 0,
    }[query.outcome];
    const numbers = matching(query);
    return level ? numbers.filter(level) : numbers;
  };

  viewer.matchingEpisodes = (query) => {
    const { first, episodes } = viewer.data;
    const numbers = [];
    for (const g of matching(query)) {
      for (let e = first[g]; e < first[g + 1]; e += 1) {
        if (!query.outcome || viewer.outcome(episodes.flags[e]) === query.outcome) numbers.push(e);
      }
    }
    return numbers;
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
    const options = names.filter(Boolean).map((option) => [option, viewer.short(option, 50)]);
    if (options.length < 2 && !query[name]) return null;
    return viewer.pick(query, name, label, [["", any], ...options], changed);
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
    const sourceLabel = (source) =>
      source.stage === "train" ? `training, iteration ${source.iteration}` : viewer.visible(source.label);
    // Files of several runs have the same labels.
    const labels = new Map(sources.map((source) => [source.label, sourceLabel(source)]));
    const runNames = runs.map((run, i) => [String(i), viewer.visible(run.name)]);
    return [
      viewer.search(query, "task", "Task", "part of a task's name", changed),
      viewer.pickName(query, "type", "Type", "any type", types, changed),
      pick("outcome", "Outcome", levels),
      runs.length > 1 && pick("run", "Run", [["", "any run"], ...runNames]),
      pick("source", "Iteration", [["", "any"], ...labels]),
      pick("credit", "Credit", CREDITS),
    ];
  };

  // The head of a table: buttons that sort by their column, the largest values first at the first click.
  function sortHead(columns, column, descending, change) {
    const cell = ([key, label]) => {
      const active = key === column?.[0];
      const direction = descending ? "descending" : "ascending";
      const arrow = descending ? " ▼" : " ▲";
      const next = active && descending ? "up" : "down";
      const attributes = { type: "button", onclick: () => change({ sort: `${key}.${next}` }) };
      return h(
        "th",
        { scope: "col", "aria-sort": active ? direction : null },
        h("button", attributes, label, active ? arrow : ""),
      );
    };
    return h("tr", null, columns.map(cell));
  }

  // On a narrow screen rows are cards, and each value shows the label of its column.
  function tableRow(columns, row) {
    const cells = columns.map(([, label, content], i) => {
      const box = h("div", null, content(row));
      return i ? h("td", { "data-label": label }, box) : h("th", { scope: "row" }, box);
    });
    return h("tr", null, cells);
  }

  // Rows in the order of a value, computed once for each.
  function sorted(rows, value, descending) {
    const values = new Map(rows.map((row) => [row, value(row)]));
    const sign = descending ? -1 : 1;
    const compare = (x, y) => {
      if (x === y) return 0;
      return x < y ? -sign : sign;
    };
    return rows.sort((a, b) => compare(values.get(a), values.get(b)));
  }

  // columns(query): [key, label, content(row), value(row) to sort by]. standard: the default order, by a value (largest
  // first) and in words. The table redraws itself; the filters keep their focus.
  viewer.table = (title, query, { form, find, columns: columnsOf, noun, standard }) => {
    const state = { ...query };
    const status = h("p", { class: "soft", role: "status" });
    const body = h("tbody");
    const pages = h("div", { class: "pages" });
    const head = h("thead");
    const table = viewer.region(title, h("table", { class: "rows" }, head, body));
    let rows = [];
    let page = 0;

    function turnPage(step, label, disabled) {
      const onclick = () => {
        page += step;
        draw();
        table.scrollIntoView();
      };
      return h("button", { type: "button", disabled, onclick }, label);
    }

    function draw() {
      const columns = columnsOf(state);
      const count = Math.max(1, Math.ceil(rows.length / PAGE));
      const visibleRows = rows.slice(page * PAGE, (page + 1) * PAGE);
      body.replaceChildren(...visibleRows.map((row) => tableRow(columns, row)));
      const place = count > 1 ? `, page ${page + 1} of ${count}` : "";
      const order = state.sort ? "" : `; ${standard.words}`;
      status.textContent = `${viewer.times(rows.length, noun)}${place}${order}`;
      const previous = turnPage(-1, "Previous page", page === 0);
      const next = turnPage(1, "Next page", page >= count - 1);
      pages.replaceChildren(...(count > 1 ? [previous, next] : []));
    }

    function refresh() {
      const columns = columnsOf(state);
      const [key, direction] = (state.sort || "").split(".");
      const column = columns.find(([name]) => name === key);
      const descending = direction !== "up";
      rows = sorted(find(state), column ? column[3] : standard.value, descending);
      page = 0;
      head.replaceChildren(sortHead(columns, column, descending, change));
      draw();
    }

    function change(values) {
      Object.assign(state, values);
      history.replaceState(null, "", viewer.link([`${noun}s`], state));
      refresh();
    }

    refresh();
    const onsubmit = (event) => event.preventDefault();
    const filterForm = h("form", { class: "filters", role: "search", onsubmit }, form(state, change));
    return { title, trail: [[title]], page: [h("h1", null, title), filterForm, status, table, pages] };
  };

  const { group } = viewer;
  const groupColumn = (name) => (g) => viewer.data.groups[name][g];
  const size = groupColumn("size");
  const wins = groupColumn("wins");
  const differ = groupColumn("differ");
  const gap = groupColumn("gap");
  const reward = groupColumn("reward");
  const source = groupColumn("source");
  const rate = (g) => wins(g) / size(g);

  // The mean difference of the two credits, and in how many turns their signs are opposite.
  function differCell(g) {
    if (gap(g) === null) return h("span", { class: "soft" }, "one episode");
    const opposite = differ(g) ? h("small", null, ` opposite in ${Math.round(100 * differ(g))} % of turns`) : null;
    return [h("span", { class: "differ", "--share": Math.min(1, gap(g) / 2) }, gap(g).toFixed(2)), opposite];
  }

  const MEASURE_COLUMNS = {
    reward: ["reward", "Mean reward", (g) => viewer.number(reward(g)), reward],
    success: ["success", "Success", (g) => [viewer.bar(rate(g)), `${wins(g)} of ${size(g)}`], rate],
  };

  // The type of a row's task; no column without types.
  const typeColumn = (type) =>
    viewer.data.types.some(Boolean) ? [["type", "Type", (row) => viewer.short(type(row), 40), type]] : [];

  const groupColumns = () => [
    [
      "task",
      "Task",
      (g) => {
        const { task, name } = group(g);
        return h("a", { href: viewer.groupLink(g), title: viewer.short(task, 200) }, viewer.short(name, 90));
      },
      (g) => group(g).name,
    ],
    ...typeColumn((g) => group(g).type),
    ["when", "From", (g) => viewer.sourceName(group(g).source), source],
    ...viewer.measures().map(({ key }) => MEASURE_COLUMNS[key]),
    ["turns", "Turns", (g) => groupColumn("turns")(g).toFixed(1), groupColumn("turns")],
    ["differ", "|GAGPO − GRPO|", differCell, (g) => gap(g) ?? -1],
  ];

  // Groups with both successes and failures come first, those of training before those of evaluations.
  function interest(g) {
    const mixed = wins(g) > 0 && wins(g) < size(g);
    if (!mixed) return differ(g);
    return differ(g) + (viewer.data.sources[source(g)].stage === "train" ? 4 : 2);
  }

  viewer.groups = (query) =>
    viewer.table("Groups", query, {
      form: filters(LEVELS),
      find: viewer.matchingGroups,
      columns: groupColumns,
      noun: "group",
      standard: {
        value: interest,
        words: "training groups with mixed outcomes first, by the share of turns in which GAGPO and GRPO disagree",
      },
    });

  const owner = (e) => viewer.data.owner[e];
  const episodeColumn = (name) => (e) => viewer.data.episodes[name][e];
  const flags = episodeColumn("flags");
  const episodeReward = episodeColumn("reward");
  const turns = episodeColumn("turns");

  function episodeCell(e) {
    const g = owner(e);
    const href = viewer.episodeLink(g, e - viewer.data.first[g]);
    return h("a", { href, title: viewer.short(group(g).task, 200) }, viewer.short(group(g).name, 90));
  }

  const outcomeCell = (e) => h("span", { class: flags(e) & 1 ? "good" : "bad" }, viewer.outcome(flags(e)));

  const episodeColumns = () => [
    ["task", "Task", episodeCell, (e) => group(owner(e)).task],
    ...typeColumn((e) => group(owner(e)).type),
    ["when", "From", (e) => viewer.sourceName(group(owner(e)).source), (e) => source(owner(e))],
    ["outcome", "Outcome", outcomeCell, (e) => flags(e) & 7],
    ["reward", "Reward", (e) => viewer.number(episodeReward(e)), episodeReward],
    ["turns", "Turns", turns, turns],
  ];

  viewer.episodes = (query) =>
    viewer.table("Episodes", query, {
      form: filters(ENDS),
      find: viewer.matchingEpisodes,
      columns: episodeColumns,
      noun: "episode",
      standard: { value: (e) => -source(owner(e)), words: "in file order" },
    });
})();
