"use strict";
// A page that follows a run while it trains. Every two seconds it loads a small script, which names the version of the
// index; another version is loaded, and the page is drawn again where it stands.
(() => {
  const { h } = viewer;
  const EVERY = 2000; // milliseconds
  const SILENT = 30; // seconds without a note of the command, which writes one every five
  const QUIET = 120; // seconds without a change after which the run may have stopped
  const line = document.getElementById("live");
  let version = null;
  let timer = 0;
  let requests = 0; // makes each address new, so that no browser shows a stored script
  let state = null;

  const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

  function stateText() {
    const now = Date.now() / 1000;
    if (state.ended) return `live: ended at ${clock(state.written)}; the page is complete up to then`;
    if (now - state.written > SILENT) {
      return `live: no update since ${clock(state.written)}; start gagpo view --live again`;
    }
    const changed = `live: last change at ${clock(state.changed)}`;
    const waiting = now - state.changed > QUIET;
    return waiting ? `${changed}; a run that was stopped goes on with gagpo train --resume RUN` : changed;
  }

  function drawState() {
    line.hidden = false;
    line.textContent = state ? stateText() : "live: waiting for the first note of gagpo view --live";
  }

  const ask = () => {
    requests += 1;
    viewer.script(`data/live.js?${requests}`, drawState);
  };

  // Pages of one group or episode do not change, and their addresses stay valid: they are not drawn again.
  const isFixed = () => /^#\/(group|episode|compare|task)\//.test(location.hash);

  // A note of the command. A page of an older version loads the new index.
  viewer.live = (note) => {
    state = note;
    drawState();
    if (note.ended) clearInterval(timer);
    if (note.version !== version && !isFixed()) viewer.script(`data/index.js?${note.version}`, drawState);
  };

  // Called with every index; one of a run that trains is requests for again.
  viewer.follow = (index) => {
    version = index.version;
    if (!index.live || timer) return;
    timer = setInterval(ask, EVERY);
    ask();
  };
  addEventListener("hashchange", () => state && viewer.live(state));

  // What the reader has done to a page, so that it stays when the page is drawn again: unfolded parts, the position,
  // and the field that has the focus with its cursor.
  viewer.place = () => {
    const texts = [...document.querySelectorAll("main details[open] > summary")].map((node) => node.textContent);
    const active = document.activeElement;
    const selection = active?.id === "filter" ? [active.selectionStart, active.selectionEnd] : null;
    return { texts, id: active?.id, selection, top: scrollY };
  };
  viewer.restore = ({ texts, id, selection, top }) => {
    for (const summary of document.querySelectorAll("main details > summary")) {
      if (texts.includes(summary.textContent)) summary.parentElement.open = true;
    }
    const target = id && document.getElementById(id);
    if (target) target.focus({ preventScroll: true });
    if (target && selection) target.setSelectionRange(...selection);
    scrollTo(0, top);
  };

  // The newest iteration whose episodes are here ----------------------------------------------------------------------

  const isMixed = ({ wins, size }) => wins > 0 && wins < size;

  function groupItem(group) {
    const success = viewer.data.runs[group.source.run].shows.includes("success");
    const result = success
      ? [viewer.bar(group.wins / group.size), h("span", null, `${group.wins} of ${group.size}`)]
      : h("span", null, viewer.number(group.reward));
    return h("li", null, result, h("a", { href: viewer.groupLink(group.g) }, viewer.short(group.name, 60)));
  }

  // Its groups, and the last one whose episodes end differently with the credit of every turn.
  viewer.newest = async (number) => {
    const { sources, groups } = viewer.data;
    const source = sources.findLastIndex(({ run, stage }) => run === number && stage === "train");
    if (source < 0) return h("p", { class: "soft" }, "No iteration has been written yet.");
    const ofSource = [...groups.source.keys()].filter((g) => groups.source[g] === source).map(viewer.group);
    const group = ofSource.findLast(isMixed) ?? ofSource.at(-1);
    if (!group) return null;
    const episodes = await viewer.episodesOf(group.g);
    const credits = viewer.creditNames(episodes);
    const credit = credits.find((name) => viewer.parting(episodes, name)) ?? credits[0];
    const label = `Credit of ${viewer.short(group.task, 60)}`;
    return h(
      "section",
      { class: "newest" },
      h("h2", null, `Episodes of iteration ${sources[source].iteration}`),
      h("ul", { class: "groups" }, ofSource.slice(-24).map(groupItem)),
      h("h2", null, "Credit of the last group with different ends"),
      h("p", { class: "task-goal" }, viewer.goal(episodes) || viewer.short(group.task, 120)),
      viewer.partingNote(group.g, episodes, credit),
      viewer.region(label, viewer.matrix(group.g, episodes, credit, new Set())),
    );
  };
})();
