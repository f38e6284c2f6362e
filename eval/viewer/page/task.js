"use strict";
// All episodes of one task: before, during and after training, and in other runs. Two of them can be compared.
(() => {
  const { h } = viewer;

  viewer.compareLink = ([g, e], [g2, e2]) => {
    const address = (number, episode) => {
      const { source, ordinal } = viewer.group(number);
      return [source.run, source.label, ordinal, episode];
    };
    return viewer.link(["compare", ...address(g, e), ...address(g2, e2)]);
  };

  // The two episodes that are selected, and a link that compares them.
  function selection() {
    const selected = [];
    const offer = h("p", { role: "status" });
    const draw = () => {
      const ready = selected.length === 2;
      const link = ready && h("a", { class: "button", href: viewer.compareLink(...selected) }, "Compare them");
      offer.replaceChildren(link || h("span", { class: "soft" }, "Select two episodes to compare them."));
    };
    const toggle = (g, e) => {
      const place = selected.findIndex(([group, episode]) => group === g && episode === e);
      if (place >= 0) selected.splice(place, 1);
      else selected.push([g, e]);
      if (selected.length > 2) {
        selected.shift();
        document.querySelectorAll("input:checked").forEach((checkbox) => {
          checkbox.checked = selected.some(([group, episode]) => checkbox.dataset.at === `${group}.${episode}`);
        });
      }
      draw();
    };
    draw();
    return { offer, toggle };
  }

  function episodeRow(g, e, toggle) {
    const { first, episodes } = viewer.data;
    const number = first[g] + e;
    const source = viewer.sourceName(viewer.group(g).source);
    const flags = episodes.flags[number];
    const checkbox = h("input", {
      type: "checkbox",
      "aria-label": `Select episode ${e + 1} of ${source}`,
      onchange: () => toggle(g, e),
    });
    checkbox.dataset.at = `${g}.${e}`;
    return h(
      "tr",
      null,
      h("td", null, checkbox),
      h("th", { scope: "row" }, h("a", { href: viewer.episodeLink(g, e) }, `episode ${e + 1}`)),
      h("td", null, h("a", { href: viewer.groupLink(g) }, source)),
      h("td", { class: flags & 1 ? "good" : "bad" }, viewer.outcome(flags)),
      h("td", null, episodes.turns[number]),
    );
  }

  function beforeAndAfter(groupsOfTask) {
    const find = (stage) => groupsOfTask.find((g) => viewer.group(g).source.stage === stage);
    const before = find("before");
    const after = find("after");
    if (before === undefined || after === undefined) return null;
    const href = viewer.compareLink([before, 0], [after, 0]);
    return h("p", null, h("a", { class: "button", href }, "Before and after training"));
  }

  viewer.taskPage = async (number) => {
    const { groups, tasks } = viewer.data;
    const groupsOfTask = [];
    groups.task.forEach((task, g) => {
      if (task === Number(number)) groupsOfTask.push(g);
    });
    const { offer, toggle } = selection();
    const rows = groupsOfTask.flatMap((g) =>
      Array.from({ length: groups.size[g] }, (_, e) => episodeRow(g, e, toggle)),
    );
    const heads = ["", "episode", "from", "outcome", "turns"].map((column) =>
      h("th", { scope: "col" }, column || h("span", { class: "hidden" }, "select")),
    );
    const table = h("table", { class: "tries" }, h("thead", null, h("tr", null, heads)), h("tbody", null, rows));
    return {
      title: viewer.short(tasks[number], 80),
      trail: [["Groups", viewer.link(["groups"])], [viewer.short(tasks[number], 40)]],
      page: [
        h("h1", null, viewer.short(tasks[number], 120)),
        beforeAndAfter(groupsOfTask),
        offer,
        viewer.region("Episodes of the task", table),
      ],
    };
  };
})();
