"use strict";
// One episode turn by turn, or two of them side by side.
(() => {
  const { h } = viewer;

  // What tokens can be coloured by: the depth of the colour from 0 to 1, its class, and the text on hover.
  const STRIPS = {
    logprob: {
      name: "log-probability",
      size: (x) => Math.min(1, -x / 4),
      colour: () => "cold",
      label: (x) => `log-probability ${viewer.number(x)}`,
    },
    ratio: {
      name: "ratio",
      size: (x) => Math.min(1, Math.abs(Math.log(Math.max(x, 1e-6))) / 0.3),
      colour: (x) => (x >= 1 ? "up" : "down"),
      label: (x) => `ratio ${viewer.number(x)}`,
    },
    gate_weight: {
      name: "gate weight",
      size: (x) => Math.min(1, Math.abs(1 - x)),
      colour: (x) => (x > 1 ? "up" : "down"),
      label: (x) => `gate weight ${viewer.number(x)}${x === 0 ? ", clipped" : ""}`,
    },
    advantage: {
      name: "advantage",
      size: (x) => Math.min(1, Math.abs(x) / 2.5),
      colour: (x) => (x >= 0 ? "up" : "down"),
      label: (x) => `advantage ${viewer.signed(x)}`,
    },
  };

  // The numbers of a turn's tokens; a turn without separate advantages has the same one for each.
  function tokenNumbers(turn, kind, advantage) {
    if (turn.tokens[kind]) return turn.tokens[kind];
    return kind === "advantage" && advantage !== undefined ? turn.tokens.text.map(() => advantage) : null;
  }

  // masked: the episode is left out of training, so its tokens have no colour.
  function strip(turn, kind, advantage, masked) {
    const { name, size, colour, label } = STRIPS[kind];
    const numbers = tokenNumbers(turn, kind, advantage);
    const token = (text, x) => {
      const visible = viewer.visible(text).replace(/\n/g, "⏎").replace(/ /g, "·") || "∅";
      if (masked || !Number.isFinite(x)) return h("span", { class: "token dim" }, visible);
      return h("span", { class: `token ${colour(x)}`, "--size": size(x), title: label(x) }, visible);
    };
    const tokens = turn.tokens.text.map((text, i) => token(text, numbers?.[i]));
    return viewer.scrolls(h("div", { class: "strip", role: "group", "aria-label": `Tokens by ${name}` }, tokens));
  }

  viewer.noTurns = () =>
    h("p", { class: "soft" }, "No turns are recorded here. An evaluation writes them with --episodes FILE.");

  // The whole prompt of the first turn; of later turns what is new in it.
  function promptText(turn, t) {
    const text = turn.sent || turn.tokens?.read?.join("");
    if (!text) return null;
    const length = turn.tokens?.prompt ? viewer.times(turn.tokens.prompt, "token") : "";
    const parts = t
      ? ["Sent to the model: new in this turn", length && `prompt of ${length}`]
      : ["Sent to the model: the whole prompt", length];
    const summary = h("summary", null, parts.filter(Boolean).join(", "));
    return h("details", { class: "sent" }, summary, viewer.passage(text, `Prompt of turn ${t + 1}`));
  }

  function invalidReason(turn) {
    if (turn.invalid === "refused" && turn.refusal) {
      return ["refused by the environment: ", h("q", null, viewer.short(turn.refusal, 300))];
    }
    return viewer.data.invalid_reasons[turn.invalid] || "invalid action";
  }

  const code = (action) => h("code", null, viewer.shortAction(action, 400));
  const speaker = (...children) => h("div", { class: "who" }, ...children);

  // The action of a turn, or its tool calls, each with its error or answer.
  function actions(turn, t) {
    if (!turn.calls?.length) return speaker(turn.action ? ["action ", code(turn.action)] : "no action found");
    const count = turn.calls.length;
    return turn.calls.map((call, i) => [
      speaker(
        count > 1 ? `call ${i + 1} of ${count} ` : "call ",
        call.action ? code(call.action) : null,
        call.error ? h("span", { class: "bad" }, viewer.short(call.error, 400)) : null,
      ),
      call.answer
        ? h("div", { class: "environment" }, viewer.passage(call.answer, `Answer to call ${i + 1} of turn ${t + 1}`))
        : null,
    ]);
  }

  // The page that the model was shown. The file's check accepts a PNG in base64 only; here it is an image,
  // never markup.
  function screenshot(turn, t) {
    if (!turn.screenshot) return null;
    const source = `data:image/png;base64,${turn.screenshot}`;
    return h("img", { class: "screenshot", src: source, alt: `Screenshot of the page in turn ${t + 1}` });
  }

  // What the action changed, as the environment's info["diff"] says. Lines are text, never markup.
  function changes(turn, t) {
    if (!turn.diff) return null;
    const kinds = { "+": "added", "-": "removed" };
    const lines = turn.diff.split("\n").map((line) => h("span", { class: kinds[line[0]] || "" }, viewer.visible(line)));
    const label = { class: "diff", tabindex: 0, role: "region", "aria-label": `Changes of turn ${t + 1}` };
    return [speaker("changes"), h("pre", label, lines)];
  }

  // Advantages, value and reward of a turn, and why its action is invalid.
  function credits(episode, t) {
    const turn = episode.turns[t];
    const value = turn.value ?? episode.values?.[t];
    const chip = (name, number) => h("span", { class: "chip plain" }, h("small", null, name), viewer.number(number));
    const advantages = viewer.creditNames([episode]).map((name) => {
      const advantage = viewer.advantage(episode, t, name);
      return advantage === undefined ? null : viewer.chip(advantage, viewer.creditLabel(name));
    });
    return h(
      "div",
      { class: "side" },
      advantages,
      value !== undefined && chip("value", value),
      turn.reward ? chip("reward", turn.reward) : null,
      turn.valid === false && h("span", { class: "bad" }, invalidReason(turn)),
    );
  }

  // Links to the turns of other episodes of the group that are in the same state.
  function sameState(g, e, t, siblings) {
    const state = siblings[e].states?.[t];
    if (state === undefined) return null;
    const places = siblings
      .map((sibling, i) => [i, sibling.states ? sibling.states.indexOf(state) : -1])
      .filter(([i, turn]) => i !== e && turn >= 0);
    if (!places.length) return null;
    const links = places.map(([i, turn], n) => [
      n ? ", " : "",
      h("a", { href: viewer.episodeLink(g, i, { turn: turn + 1 }) }, `episode ${i + 1}, turn ${turn + 1}`),
    ]);
    return h("p", { class: "soft" }, "The same state in ", links);
  }

  function turnCard(g, e, t, siblings, kind) {
    const episode = siblings[e];
    const turn = episode.turns[t];
    const masked = episode.kept === false;
    const advantage = viewer.advantage(episode, t, viewer.creditNames([episode])[0]);
    return h(
      "article",
      {
        class: `turn-card${viewer.differs(episode, t) ? " differs" : ""}${masked ? " masked" : ""}`,
        id: `turn-${t + 1}`,
        tabindex: -1,
      },
      h("h2", null, `Turn ${t + 1}`),
      credits(episode, t),
      promptText(turn, t),
      speaker(episode.info?.rewritten === undefined ? "environment" : "program"),
      h("div", { class: "environment" }, viewer.passage(turn.observation, `Observation of turn ${t + 1}`)),
      screenshot(turn, t),
      speaker("model"),
      h("div", { class: "agent" }, viewer.passage(turn.response, `Response of turn ${t + 1}`)),
      actions(turn, t),
      changes(turn, t),
      turn.tokens?.text.length ? strip(turn, kind, advantage, masked) : null,
      sameState(g, e, t, siblings),
      viewer.visitedOnce(siblings, e, t) ? h("p", { class: "soft" }, viewer.ONCE) : null,
    );
  }

  // An episode with its facts. kind: what its tokens are coloured by.
  function column(g, e, siblings, kind) {
    const episode = siblings[e];
    const { turns, info } = episode;
    const reward = `reward ${viewer.number(episode.reward)}`;
    const success = episode.good ? "success" : "no success";
    const facts = [
      viewer.times(turns.length || episode.length, "turn"),
      !episode.byReward && reward,
      viewer.visible(episode.outcome),
      episode.temperature !== undefined && `temperature ${viewer.number(episode.temperature)}`,
      viewer.sourceName(viewer.group(g).source),
      info?.rewritten && `${viewer.times(info.rewritten, "answer")} sent back altered`,
    ];
    return [
      h(
        "p",
        null,
        h("b", { class: episode.good ? "good" : "bad" }, episode.byReward ? reward : success),
        ` · ${facts.filter(Boolean).join(" · ")}`,
        episode.kept === false && h("b", { class: "bad" }, " · left out of training"),
      ),
      turns.length ? turns.map((_, t) => turnCard(g, e, t, siblings, kind)) : viewer.noTurns(),
    ];
  }

  // What the tokens of some episodes can be coloured by: the first kind, and a choice among all.
  function stripChoice(episodes, redraw) {
    const has = (episode, turn, kind) => {
      if (turn.tokens?.[kind]) return true;
      return kind === "advantage" && turn.tokens && (turn.advantage !== undefined || episode.credit);
    };
    const kinds = Object.keys(STRIPS).filter((kind) =>
      episodes.some((episode) => episode.turns.some((turn) => has(episode, turn, kind))),
    );
    if (!kinds.length) return { first: "logprob", choice: null };
    const names = kinds.map((kind) => [kind, STRIPS[kind].name]);
    return { first: kinds[0], choice: viewer.choice("Tokens by", names, kinds[0], redraw) };
  }

  // Links to the other episodes of the group.
  function siblingLinks(g, e, siblings) {
    const links = siblings.map((sibling, i) => {
      const attributes = {
        href: viewer.episodeLink(g, i),
        class: sibling.good ? "good" : "bad",
        "aria-current": i === e ? "page" : null,
      };
      return h("a", attributes, `episode ${i + 1} ${sibling.good ? "✓" : "✗"}`);
    });
    const taskLink = viewer.link(["task", viewer.data.groups.task[g]]);
    return h(
      "nav",
      { class: "siblings", "aria-label": "Episodes of the group" },
      links,
      h("a", { href: taskLink }, "all episodes of this task"),
    );
  }

  viewer.episodePage = async (g, e, query) => {
    const group = viewer.group(g);
    const siblings = await viewer.episodesOf(g);
    if (!siblings[e]) return null;
    const box = h("div", { class: "episode" });
    const draw = (kind) => box.replaceChildren(...column(g, e, siblings, kind).flat(2));
    const { first, choice } = stripChoice([siblings[e]], draw);
    draw(first);
    return {
      title: `${viewer.short(group.task, 60)}, episode ${e + 1}`,
      neighbours: [e - 1, e + 1].map((near) => (siblings[near] ? viewer.episodeLink(g, near) : null)),
      focus: query.turn ? `turn-${query.turn}` : null,
      trail: [viewer.groupTrail(group), [viewer.short(group.task, 40), viewer.groupLink(g)], [`episode ${e + 1}`]],
      page: [h("h1", null, viewer.short(group.task, 120)), siblingLinks(g, e, siblings), choice, box],
    };
  };

  viewer.comparePage = async (left, right) => {
    const load = async ([g, e]) => ({ g, e, siblings: await viewer.episodesOf(g) });
    const pair = await Promise.all([left, right].map(load));
    if (pair.some(({ e, siblings }) => !siblings[e])) return null;
    const box = h("div", { class: "compare" });
    const section = ({ g, e, siblings }, kind) => {
      const source = viewer.sourceName(viewer.group(g).source);
      const head = h("h2", { class: "which" }, h("a", { href: viewer.episodeLink(g, e) }, source));
      return h("section", { "aria-label": source }, head, column(g, e, siblings, kind));
    };
    const draw = (kind) => box.replaceChildren(...pair.map((side) => section(side, kind)));
    const episodes = pair.map(({ e, siblings }) => siblings[e]);
    const { first, choice } = stripChoice(episodes, draw);
    draw(first);
    const { task } = viewer.group(left[0]);
    const taskLink = viewer.link(["task", viewer.data.groups.task[left[0]]]);
    return {
      title: `${viewer.short(task, 60)}, two episodes`,
      trail: [[viewer.short(task, 40), taskLink], ["two episodes"]],
      page: [h("h1", null, viewer.short(task, 120)), choice, box],
    };
  };
})();
