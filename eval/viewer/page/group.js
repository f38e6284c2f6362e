"use strict";
// One group: its graph, and its episodes side by side with the credit of every turn.
(() => {
  const { h } = viewer;
  const sign = (x) => (Math.abs(x) < viewer.data.dead_zone ? 0 : Math.sign(x));

  viewer.creditNames = (episodes) => {
    const first = episodes.find((episode) => episode.credit);
    const recorded = episodes.some((episode) => episode.turns.some((turn) => turn.advantage !== undefined));
    return [...(recorded ? ["recorded"] : []), ...Object.keys(first?.credit || {})];
  };
  viewer.creditLabel = (name) => (name === "recorded" ? "as trained" : name.toUpperCase());

  // The advantage of turn t under one credit; undefined if it has none.
  viewer.advantage = (episode, t, name) =>
    name === "recorded" ? episode.turns[t].advantage : episode.credit?.[name]?.[t];

  // Whether the two credits disagree about a turn.
  viewer.differs = (episode, t) => Boolean(episode.differs?.[t]);

  viewer.chip = (value, label) =>
    h(
      "span",
      { class: `chip ${["down", "", "up"][sign(value) + 1] ?? ""}`, "--size": Math.min(1, Math.abs(value) / 2) || 0 },
      label && h("small", null, label),
      viewer.signed(value),
    );

  // Whether GAGPO gives a turn no credit because no other turn of the group is in its state.
  viewer.visitedOnce = (episodes, e, t) => {
    const state = episodes[e].states?.[t];
    const credit = viewer.advantage(episodes[e], t, "gagpo");
    if (episodes.length < 2 || state === undefined || credit === undefined || sign(credit)) return false;
    return episodes.flatMap((episode) => episode.states ?? []).filter((other) => other === state).length === 1;
  };
  viewer.ONCE =
    "Visited once: no other turn of this group is in this state. Its value is therefore the return of this turn, and " +
    "GAGPO's credit is near 0, also for an action that succeeds.";

  function outcome(episode) {
    if (episode.byReward) return `reward ${viewer.number(episode.reward)}`;
    if (episode.success) return "success";
    return episode.outcome === "terminated" ? "no success" : viewer.visible(episode.outcome);
  }

  function episodeHead(g, e, episode) {
    return h(
      "th",
      { scope: "col" },
      h("a", { href: viewer.episodeLink(g, e) }, `episode ${e + 1}`),
      " ",
      h("span", { class: episode.good ? "good" : "bad" }, outcome(episode)),
      episode.kept === false && h("small", null, " left out of training"),
    );
  }

  function turnCell(g, e, t, episodes, { credit, markedStates, parting }) {
    const episode = episodes[e];
    const turn = episode.turns[t];
    if (!turn) return h("td", { class: "none" });
    const advantage = viewer.advantage(episode, t, credit);
    const isParting = [parting?.high, parting?.low].some((end) => end?.e === e && end.t === t);
    const classes = [
      "turn",
      isParting && "parting",
      viewer.differs(episode, t) && "differs",
      markedStates.has(episode.states?.[t]) && "marked",
      turn.valid === false && "invalid",
      episode.kept === false && "masked",
    ];
    const weight = advantage === undefined ? 0 : Math.min(1, Math.abs(advantage) / 2.5);
    const attributes = {
      class: classes.filter(Boolean).join(" "),
      "--weight": weight,
      "data-sign": advantage === undefined ? 0 : sign(advantage),
    };
    const href = viewer.episodeLink(g, e, { turn: t + 1 });
    return h(
      "td",
      attributes,
      h(
        "a",
        { href, title: viewer.short(turn.observation, 300) },
        viewer.shortAction(turn.action || "(no action)", 44),
      ),
      advantage === undefined ? null : viewer.chip(advantage),
      isParting ? h("small", { class: "parting-mark" }, "the ways part") : null,
      !sign(advantage) && credit !== "grpo" && viewer.visitedOnce(episodes, e, t)
        ? h("small", { class: "once", title: viewer.ONCE }, "visited once")
        : null,
      turn.reward ? h("small", { class: "reward" }, `reward ${viewer.number(turn.reward)}`) : null,
    );
  }

  // The two turns of one state whose credit differs most although they do different things: there the ways part.
  // Credit by episode is the same everywhere, so it shows no such state. null: no state has two ways.
  viewer.parting = (episodes, credit) => {
    if (credit === undefined || credit === "grpo") return null;
    const bounds = new Map(); // state -> the turns with the highest and the lowest credit
    episodes.forEach((episode, e) => {
      episode.turns.forEach((turn, t) => {
        const state = episode.states?.[t];
        const advantage = viewer.advantage(episode, t, credit);
        if (state === undefined || advantage === undefined) return;
        const here = { e, t, advantage, action: turn.action };
        const { high = here, low = here } = bounds.get(state) ?? {};
        bounds.set(state, {
          high: advantage > high.advantage ? here : high,
          low: advantage < low.advantage ? here : low,
        });
      });
    });
    const gap = ({ high, low }) => high.advantage - low.advantage;
    const choices = [...bounds.values()].filter(({ high, low }) => high.action !== low.action);
    const [best] = choices.sort((a, b) => gap(b) - gap(a));
    return best && sign(best.high.advantage) > sign(best.low.advantage) ? best : null;
  };

  const CREDIT_NOTE =
    "The credit of a turn contains that of the turns after it. Where all episodes from a state succeed, the choice " +
    "does not matter, and the credit is 0.";

  viewer.partingNote = (g, episodes, credit) => {
    const parting = viewer.parting(episodes, credit);
    if (!parting) return null;
    const way = ({ e, t, action, advantage }) => {
      const href = viewer.episodeLink(g, e, { turn: t + 1 });
      return [h("a", { href }, viewer.shortAction(action || "(no action)", 60)), " ", viewer.chip(advantage)];
    };
    const { high, low } = parting;
    return [
      h("p", { class: "parting-note" }, "Here the two ways part: ", way(high), " against ", way(low)),
      h("p", { class: "soft" }, CREDIT_NOTE),
    ];
  };

  // One row per turn, one column per episode. markedStates: the states of the node that was clicked in the graph.
  viewer.matrix = (g, episodes, credit, markedStates) => {
    const options = { credit, markedStates, parting: viewer.parting(episodes, credit) };
    const longest = Math.max(...episodes.map((episode) => episode.turns.length));
    const heads = episodes.map((episode, e) => episodeHead(g, e, episode));
    const rows = Array.from({ length: longest }, (_, t) =>
      h(
        "tr",
        null,
        h("th", { scope: "row" }, t + 1),
        episodes.map((_, e) => turnCell(g, e, t, episodes, options)),
      ),
    );
    const head = h("tr", null, h("th", { scope: "col" }, "turn"), heads);
    return h("table", { class: "matrix" }, h("thead", null, head), h("tbody", null, rows));
  };

  // How often the two credits disagree, and what that means.
  function disagreement(episodes) {
    const { large, dead_zone } = viewer.data;
    const turns = episodes.reduce((sum, episode) => sum + episode.turns.length, 0);
    const disputed = episodes.reduce(
      (sum, episode) => sum + episode.turns.filter((_, t) => viewer.differs(episode, t)).length,
      0,
    );
    const text =
      ` GAGPO and GRPO disagree in ${disputed} of ${viewer.times(turns, "turn")}: one is above average, the other ` +
      `below, and both differ from it by more than ${large} standard deviations of the group. ` +
      `Values within ${dead_zone} of zero have no colour.`;
    return h("p", { class: "differ-note" }, h("i", { class: "key outlined" }), text);
  }

  // What "visited once" means, if a turn of the group is marked with it.
  function visitedOnceNote(episodes) {
    const marked = episodes.some((episode, e) => episode.turns.some((_, t) => viewer.visitedOnce(episodes, e, t)));
    return marked ? h("p", { class: "soft once-note" }, viewer.ONCE) : null;
  }

  // isNamed: whether the name of the task is one of the facts, because the heading is its sentence.
  function groupFacts(g, group, isNamed) {
    const shows = viewer.data.runs[group.source.run].shows;
    const facts = [
      isNamed ? viewer.short(group.task, 120) : viewer.short(group.type, 60),
      viewer.sourceName(group.source),
      shows.includes("reward") && `mean reward ${viewer.number(group.reward)}`,
      shows.includes("success") && `${group.wins} of ${group.size} succeed`,
    ];
    const taskLink = viewer.link(["task", viewer.data.groups.task[g]]);
    return h(
      "p",
      { class: "soft" },
      facts.filter(Boolean).join(" · "),
      " · ",
      h("a", { href: taskLink }, "all episodes of this task"),
    );
  }

  const GOAL = /(?:Your task is to|Instruction):\s*(?:\[SEP\]\s*)?([^\n[]+)/;

  // The task as a sentence: the environment's own, or what the first observation says it is; empty without any.
  viewer.goal = (episodes) => {
    const [first] = episodes;
    const text = first?.info?.goal ?? first?.turns[0]?.observation.match(GOAL)?.[1] ?? "";
    const sentence = typeof text === "string" ? viewer.short(text, 240) : "";
    return sentence.charAt(0).toUpperCase() + sentence.slice(1);
  };

  function goalText(episodes) {
    const goal = episodes[0]?.turns[0]?.observation || "";
    if (!goal) return null;
    const summary = h("summary", null, "Text of the task");
    return h("details", { class: "goal" }, summary, viewer.passage(goal, "First observation"));
  }

  viewer.groupTrail = (group) => [
    "Groups",
    viewer.link(["groups"], { run: group.source.run, source: group.source.label }),
  ];

  viewer.groupPage = async (g, query) => {
    const group = viewer.group(g);
    const episodes = await viewer.episodesOf(g);
    const credits = viewer.creditNames(episodes);
    let credit = credits.includes(query.credit) ? query.credit : credits[0];
    let markedStates = new Set();
    const table = viewer.region("Episodes side by side");
    const note = h("div");
    const draw = () => {
      table.replaceChildren(viewer.matrix(g, episodes, credit, markedStates));
      note.replaceChildren(...[viewer.partingNote(g, episodes, credit)].flat(Infinity).filter(Boolean));
    };
    const chooseCredit = (name) => {
      credit = name;
      draw();
    };
    draw();
    const graph = viewer.drawGraph(episodes, (states) => {
      const unchanged = states.length === markedStates.size && states.every((state) => markedStates.has(state));
      markedStates = new Set(unchanged ? [] : states);
      draw();
      table.querySelector(".marked")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    const hasBoth = episodes.length > 1 && credits.includes("gagpo") && credits.includes("grpo");
    const creditLabels = credits.map((name) => [name, viewer.creditLabel(name)]);
    return {
      title: viewer.short(group.task, 80),
      trail: [viewer.groupTrail(group), [viewer.short(group.task, 40)]],
      neighbours: [g - 1, g + 1].map((near) =>
        viewer.data.groups.size[near] === undefined ? null : viewer.groupLink(near),
      ),
      page: [
        h("h1", null, viewer.goal(episodes) || viewer.short(group.task, 120)),
        groupFacts(g, group, Boolean(viewer.goal(episodes))),
        note,
        goalText(episodes),
        graph ? [h("h2", null, "States"), graph] : viewer.noTurns(),
        h("h2", null, "Episodes side by side"),
        credits.length ? viewer.choice("Credit", creditLabels, credit, chooseCredit) : null,
        hasBoth ? disagreement(episodes) : null,
        visitedOnceNote(episodes),
        table,
      ],
    };
  };
})();
