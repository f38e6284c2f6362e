"use strict";
// One group: its graph, and its episodes side by side with the credit of every turn.
(() => {
  const { h } = viewer;
  const sign = (x) => (Math.abs(x) < viewer.data.dead_zone ? 0 : Math.sign(x));

  viewer.creditNames = (episodes) => {
    const first = episodes.find((one) => one.credit);
    const recorded = episodes.some((one) => one.turns.some((turn) => turn.advantage !== undefined));
    return [...(recorded ? ["recorded"] : []), ...Object.keys(first?.credit || {})];
  };
  viewer.creditLabel = (name) => (name === "recorded" ? "as trained" : name.toUpperCase());

  // The advantage of turn t under one credit; undefined if it has none.
  viewer.advantage = (episode, t, name) => (name === "recorded" ? episode.turns[t].advantage : episode.credit?.[name]?.[t]);

  // Whether the two credits disagree about a turn.
  viewer.differs = (episode, t) => Boolean(episode.differs?.[t]);

  viewer.chip = (value, label) => h("span", { class: `chip ${["down", "", "up"][sign(value) + 1] ?? ""}`, "--size": Math.min(1, Math.abs(value) / 2) || 0 },
    label && h("small", null, label), viewer.signed(value));

  function matrix(g, episodes, name, marked) {
    const longest = Math.max(...episodes.map((one) => one.turns.length));
    const head = h("tr", null, h("th", { scope: "col" }, "turn"), episodes.map((episode, e) =>
      h("th", { scope: "col" }, h("a", { href: viewer.episodeLink(g, e) }, `episode ${e + 1}`), " ",
        h("span", { class: episode.success ? "good" : "bad" }, episode.success ? "success" : episode.outcome === "terminated" ? "no success" : viewer.visible(episode.outcome)),
        episode.kept === false && h("small", null, " left out of training"))));
    const rows = Array.from({ length: longest }, (_, t) => h("tr", null, h("th", { scope: "row" }, t + 1), episodes.map((episode, e) => {
      const turn = episode.turns[t];
      if (!turn) return h("td", { class: "none" });
      const value = viewer.advantage(episode, t, name);
      const states = ["turn", viewer.differs(episode, t) && "differs", marked.has(episode.states?.[t]) && "marked", turn.valid === false && "invalid", episode.kept === false && "masked"].filter(Boolean);
      return h("td", { class: states.join(" "), "--weight": value === undefined ? 0 : Math.min(1, Math.abs(value) / 2.5), "data-sign": value === undefined ? 0 : sign(value) },
        h("a", { href: viewer.episodeLink(g, e, { turn: t + 1 }), title: viewer.short(turn.observation, 300) }, viewer.short(viewer.callText(turn.action || "(no action)"), 44)),
        value === undefined ? null : viewer.chip(value),
        turn.reward ? h("small", { class: "reward" }, `reward ${viewer.number(turn.reward)}`) : null);
    })));
    return h("table", { class: "matrix" }, h("thead", null, head), h("tbody", null, rows));
  }

  viewer.groupPage = async (g, query) => {
    const group = viewer.group(g);
    const episodes = await viewer.episodesOf(g);
    const names = viewer.creditNames(episodes);
    let name = names.includes(query.credit) ? query.credit : names[0];
    let marked = new Set();
    const both = episodes.length > 1 && names.includes("gagpo") && names.includes("grpo");
    const box = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Episodes side by side" });
    const draw = () => box.replaceChildren(matrix(g, episodes, name, marked));
    draw();
    const graph = viewer.drawGraph(episodes, (states) => {
      const same = states.length === marked.size && states.every((one) => marked.has(one));
      marked = new Set(same ? [] : states);
      draw();
      box.querySelector(".marked")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    const goal = episodes[0]?.turns[0]?.observation || "";
    const count = episodes.reduce((sum, one) => sum + one.turns.filter((_, t) => viewer.differs(one, t)).length, 0);
    const turns = episodes.reduce((sum, one) => sum + one.turns.length, 0);
    return {
      title: viewer.short(group.task, 80), trail: [["Groups", viewer.link(["groups"], { run: group.source.run, source: group.source.label })], [viewer.short(group.task, 40)]],
      neighbours: [g - 1, g + 1].map((other) => (viewer.data.groups.size[other] === undefined ? null : viewer.groupLink(other))),
      page: [
        h("h1", null, viewer.short(group.task, 120)),
        h("p", { class: "soft" }, [viewer.short(group.type, 60), viewer.sourceName(group.source), `${group.wins} of ${group.size} succeed`].filter(Boolean).join(" · "),
          " · ", h("a", { href: viewer.link(["task", viewer.data.groups.task[g]]) }, "all episodes of this task")),
        goal && h("details", { class: "goal" }, h("summary", null, "Text of the task"), viewer.passage(goal, "First observation")),
        graph ? [h("h2", null, "States"), graph] : viewer.noTurns(),
        h("h2", null, "Episodes side by side"),
        names.length ? viewer.choice("Credit", names.map((one) => [one, viewer.creditLabel(one)]), name, (value) => { name = value; draw(); }) : null,
        both ? h("p", { class: "differ-note" }, h("i", { class: "key outlined" }),
          ` GAGPO and GRPO disagree in ${count} of ${viewer.times(turns, "turn")}: one is above average, the other below, and both differ from it by more than ${viewer.data.large} standard deviations of the group. Values within ${viewer.data.dead_zone} of zero have no colour.`) : null,
        box,
      ],
    };
  };

  // All episodes of one task: before, during and after training, and in other runs.
  viewer.taskPage = async (number) => {
    const { groups, tasks, first, episodes } = viewer.data;
    const mine = [];
    groups.task.forEach((task, g) => { if (task === Number(number)) mine.push(g); });
    const chosen = [];
    const compare = h("p", { role: "status" });
    const offer = () => {
      compare.replaceChildren(...(chosen.length === 2
        ? [h("a", { class: "button", href: viewer.compareLink(...chosen) }, "Compare them")]
        : [h("span", { class: "soft" }, "Select two episodes to compare them.")]));
    };
    offer();
    const rows = mine.flatMap((g) => Array.from({ length: groups.size[g] }, (_, i) => {
      const e = first[g] + i;
      const box = h("input", {
        type: "checkbox", "aria-label": `Select episode ${i + 1} of ${viewer.sourceName(viewer.group(g).source)}`,
        onchange: () => {
          const at = chosen.findIndex(([a, b]) => a === g && b === i);
          if (at >= 0) chosen.splice(at, 1); else chosen.push([g, i]);
          if (chosen.length > 2) { chosen.shift(); document.querySelectorAll("input:checked").forEach((one) => { one.checked = chosen.some(([a, b]) => one.dataset.at === `${a}.${b}`); }); }
          offer();
        },
      });
      box.dataset.at = `${g}.${i}`;
      return h("tr", null, h("td", null, box), h("th", { scope: "row" }, h("a", { href: viewer.episodeLink(g, i) }, `episode ${i + 1}`)),
        h("td", null, h("a", { href: viewer.groupLink(g) }, viewer.sourceName(viewer.group(g).source))),
        h("td", { class: episodes.flags[e] & 1 ? "good" : "bad" }, viewer.outcome(episodes.flags[e])), h("td", null, episodes.turns[e]));
    }));
    const find = (stage) => mine.find((g) => viewer.group(g).source.stage === stage);
    const [before, after] = [find("before"), find("after")];
    return {
      title: viewer.short(tasks[number], 80), trail: [["Groups", viewer.link(["groups"])], [viewer.short(tasks[number], 40)]],
      page: [h("h1", null, viewer.short(tasks[number], 120)),
        before !== undefined && after !== undefined ? h("p", null, h("a", { class: "button", href: viewer.compareLink([before, 0], [after, 0]) }, "Before and after training")) : null,
        compare,
        h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Episodes of the task" },
          h("table", { class: "tries" }, h("thead", null, h("tr", null, ["", "episode", "from", "outcome", "turns"].map((one) => h("th", { scope: "col" }, one || h("span", { class: "hidden" }, "select"))))), h("tbody", null, rows)))],
    };
  };
  viewer.compareLink = ([g, e], [other, o]) => {
    const address = (one, i) => { const { source, ordinal } = viewer.group(one); return [source.run, source.label, ordinal, i]; };
    return viewer.link(["compare", ...address(g, e), ...address(other, o)]);
  };
})();
