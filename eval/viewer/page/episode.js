"use strict";
// One episode turn by turn, or two of them side by side.
(() => {
  const { h } = viewer;
  const STRIPS = {
    logprob: ["log-probability", (x) => Math.min(1, -x / 4), (x) => `log-probability ${viewer.number(x)}`, () => "cold"],
    ratio: ["ratio", (x) => Math.min(1, Math.abs(Math.log(Math.max(x, 1e-6))) / 0.3), (x) => `ratio ${viewer.number(x)}`, (x) => (x >= 1 ? "up" : "down")],
    gate_weight: ["gate weight", (x) => Math.min(1, Math.abs(1 - x)), (x) => `gate weight ${viewer.number(x)}${x === 0 ? ", clipped" : ""}`, (x) => (x > 1 ? "up" : "down")],
    advantage: ["advantage", (x) => Math.min(1, Math.abs(x) / 2.5), (x) => `advantage ${viewer.signed(x)}`, (x) => (x >= 0 ? "up" : "down")],
  };

  function strip(turn, kind, advantage, masked) {
    const tokens = turn.tokens;
    const [, size, label, way] = STRIPS[kind];
    const numbers = tokens[kind] || (kind === "advantage" && advantage !== undefined ? tokens.text.map(() => advantage) : null);
    const token = (text, number, dim) => {
      const shown = viewer.visible(text).replace(/\n/g, "⏎").replace(/ /g, "·") || "∅";
      if (dim || !Number.isFinite(number)) return h("span", { class: "token dim" }, shown);
      return h("span", { class: `token ${way(number)}`, "--size": size(number), title: label(number) }, shown);
    };
    return h("div", { class: "strip", role: "group", "aria-label": `Tokens by ${STRIPS[kind][0]}` },
      tokens.text.map((text, i) => token(text, numbers?.[i], masked)));
  }

  viewer.noTurns = () => h("p", { class: "soft" }, "No turns are recorded here. An evaluation writes them with --episodes FILE.");

  // The whole prompt of the first turn; of later turns what is new in it.
  function sent(turn, t) {
    const text = turn.sent || turn.tokens?.read?.join("");
    const length = turn.tokens?.prompt ? `, ${viewer.times(turn.tokens.prompt, "token")}` : "";
    return text ? h("details", { class: "sent" }, h("summary", null, t ? `Sent to the model: new in this turn${length && `, prompt of${length.slice(1)}`}` : `Sent to the model: the whole prompt${length}`), viewer.passage(text, `Prompt of turn ${t + 1}`)) : null;
  }

  function invalid(turn) {
    const reason = viewer.data.invalid_reasons[turn.invalid] || "invalid action";
    return turn.refusal ? [`${reason}: `, h("q", null, viewer.short(turn.refusal, 300))] : reason;
  }

  // The tool calls of a turn, each with its error or answer.
  function calls(turn, t) {
    if (!turn.calls?.length) return h("div", { class: "who" }, turn.action ? ["action ", h("code", null, viewer.short(viewer.callText(turn.action), 400))] : "no action found");
    return turn.calls.map((call, i) => [
      h("div", { class: "who" }, turn.calls.length > 1 ? `call ${i + 1} of ${turn.calls.length} ` : "call ",
        call.action ? h("code", null, viewer.short(viewer.callText(call.action), 400)) : null, call.error ? h("span", { class: "bad" }, viewer.short(call.error, 400)) : null),
      call.answer ? h("div", { class: "environment" }, viewer.passage(call.answer, `Answer to call ${i + 1} of turn ${t + 1}`)) : null,
    ]);
  }

  function turnCard(g, e, episode, t, kind, siblings) {
    const turn = episode.turns[t];
    const names = viewer.creditNames([episode]);
    const main = names[0];
    const advantage = viewer.advantage(episode, t, main);
    const state = episode.states?.[t];
    const shared = siblings.map((other, i) => [i, other.states ? other.states.indexOf(state) : -1]).filter(([i, at]) => i !== e && at >= 0 && state !== undefined);
    return h("article", { class: `turn-card${viewer.differs(episode, t) ? " differs" : ""}${episode.kept === false ? " masked" : ""}`, id: `turn-${t + 1}`, tabindex: -1 },
      h("h2", null, `Turn ${t + 1}`),
      h("div", { class: "side" },
        names.map((name) => { const value = viewer.advantage(episode, t, name); return value === undefined ? null : viewer.chip(value, viewer.creditLabel(name)); }),
        (turn.value ?? episode.values?.[t]) !== undefined && h("span", { class: "chip plain" }, h("small", null, "value"), viewer.number(turn.value ?? episode.values[t])),
        turn.reward ? h("span", { class: "chip plain" }, h("small", null, "reward"), viewer.number(turn.reward)) : null,
        turn.valid === false && h("span", { class: "bad" }, invalid(turn))),
      sent(turn, t),
      h("div", { class: "who" }, episode.info?.rewritten === undefined ? "environment" : "program"), h("div", { class: "environment" }, viewer.passage(turn.observation, `Observation of turn ${t + 1}`)),
      h("div", { class: "who" }, "model"), h("div", { class: "agent" }, viewer.passage(turn.response, `Response of turn ${t + 1}`)),
      calls(turn, t),
      turn.tokens?.text.length ? strip(turn, kind, advantage, episode.kept === false) : null,
      shared.length ? h("p", { class: "soft" }, "The same state in ", shared.map(([i, at], n) => [n ? ", " : "", h("a", { href: viewer.episodeLink(g, i, { turn: at + 1 }) }, `episode ${i + 1}, turn ${at + 1}`)])) : null);
  }

  function column(g, e, episode, siblings, kind) {
    const { source } = viewer.group(g);
    const verdict = h("b", { class: episode.success && episode.outcome !== "failed" ? "good" : "bad" }, episode.success && episode.outcome !== "failed" ? "success" : "no success");
    return [
      h("p", null, verdict, ` · ${viewer.times(episode.turns.length || episode.length, "turn")} · reward ${viewer.number(episode.reward)} · ${viewer.visible(episode.outcome)}`,
        episode.temperature !== undefined && ` · temperature ${viewer.number(episode.temperature)}`, ` · ${viewer.sourceName(source)}`, episode.info?.rewritten ? ` · ${viewer.times(episode.info.rewritten, "answer")} sent back altered` : null,
        episode.kept === false && h("b", { class: "bad" }, " · left out of training")),
      episode.turns.length ? episode.turns.map((_, t) => turnCard(g, e, episode, t, kind, siblings)) : viewer.noTurns(),
    ];
  }

  function strips(episodes, redraw) {
    const known = Object.keys(STRIPS).filter((kind) => episodes.some((one) => one.turns.some((turn) => turn.tokens?.[kind] || (kind === "advantage" && turn.tokens && (turn.advantage !== undefined || one.credit)))));
    return { first: known[0] || "logprob", choice: known.length ? viewer.choice("Tokens by", known.map((kind) => [kind, STRIPS[kind][0]]), known[0], redraw) : null };
  }

  viewer.episodePage = async (g, e, query) => {
    const group = viewer.group(g);
    const siblings = await viewer.episodesOf(g);
    const episode = siblings[e];
    if (!episode) return null;
    const box = h("div", { class: "episode" });
    const draw = (kind) => box.replaceChildren(...[column(g, e, episode, siblings, kind)].flat(2));
    const { first, choice } = strips([episode], draw);
    draw(first);
    const near = [e - 1, e + 1].map((other) => (siblings[other] ? viewer.episodeLink(g, other) : null));
    return {
      title: `${viewer.short(group.task, 60)}, episode ${e + 1}`, neighbours: near, focus: query.turn ? `turn-${query.turn}` : null,
      trail: [["Groups", viewer.link(["groups"], { run: group.source.run, source: group.source.label })], [viewer.short(group.task, 40), viewer.groupLink(g)], [`episode ${e + 1}`]],
      page: [
        h("h1", null, viewer.short(group.task, 120)),
        h("nav", { class: "siblings", "aria-label": "Episodes of the group" }, siblings.map((other, i) =>
          h("a", { href: viewer.episodeLink(g, i), class: other.success ? "good" : "bad", "aria-current": i === e ? "page" : null }, `episode ${i + 1} ${other.success ? "✓" : "✗"}`)),
        h("a", { href: viewer.link(["task", viewer.data.groups.task[g]]) }, "all episodes of this task")),
        choice, box,
      ],
    };
  };

  viewer.comparePage = async (left, right) => {
    const pairs = await Promise.all([left, right].map(async ([g, e]) => ({ g, e, siblings: await viewer.episodesOf(g) })));
    if (pairs.some(({ e, siblings }) => !siblings[e])) return null;
    const box = h("div", { class: "compare" });
    const draw = (kind) => box.replaceChildren(...pairs.map(({ g, e, siblings }) => h("section", { "aria-label": viewer.sourceName(viewer.group(g).source) },
      h("h2", { class: "which" }, h("a", { href: viewer.episodeLink(g, e) }, viewer.sourceName(viewer.group(g).source))), column(g, e, siblings[e], siblings, kind))));
    const { first, choice } = strips(pairs.map(({ e, siblings }) => siblings[e]), draw);
    draw(first);
    const group = viewer.group(left[0]);
    return {
      title: `${viewer.short(group.task, 60)}, two episodes`, trail: [[viewer.short(group.task, 40), viewer.link(["task", viewer.data.groups.task[left[0]]])], ["two episodes"]],
      page: [h("h1", null, viewer.short(group.task, 120)), choice, box],
    };
  };
})();
