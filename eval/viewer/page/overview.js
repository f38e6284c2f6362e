"use strict";
// The first page: what the runs achieved, their curves, their health, and the files of episodes.
(() => {
  const { h } = viewer;
  function headline(run) {
    const splits = [...new Set(run.evaluations.map((one) => one.split))];
    return splits.map((split) => {
      const [before, after] = ["before", "after"].map((stage) => run.evaluations.find((one) => one.split === split && one.stage === stage));
      if (!before || !after) return null;
      return h("p", { class: "headline" }, `${viewer.visible(split)}: ${viewer.percent(before.success.value)} before, `,
        h("b", null, viewer.percent(after.success.value)), ` after training [${(100 * after.success.low).toFixed(1)}, ${(100 * after.success.high).toFixed(1)}]`);
    });
  }

  function curves(run, number) {
    const { sources } = viewer.data;
    const kept = new Map(sources.filter((one) => one.run === number && one.stage === "train").map((one) => [one.iteration, one]));
    const at = run.metrics.iteration || [];
    const series = [{
      name: "training", x: at, y: run.metrics.success_rate || [],
      href: (x) => (kept.has(x) ? viewer.link(["groups"], { run: number, source: kept.get(x).label }) : null),
    }];
    for (const split of new Set(run.evaluations.map((one) => one.split))) {
      const last = at.at(-1) ?? 1;
      const points = run.evaluations.filter((one) => one.split === split && one.stage)
        .map((one) => [one.iteration ?? last, one]).sort((a, b) => a[0] - b[0]);
      const labels = new Map(points.map(([x, one]) => [x, one.label]));
      const written = new Set(sources.filter((one) => one.run === number).map((one) => one.label));
      series.push({
        name: viewer.visible(split), x: points.map(([x]) => x), y: points.map(([, one]) => one.success.value),
        low: points.map(([, one]) => one.success.low), high: points.map(([, one]) => one.success.high),
        href: (x) => (written.has(labels.get(x)) ? viewer.link(["groups"], { run: number, source: labels.get(x) }) : null),
      });
    }
    return viewer.chart("success; open a point to see its groups", series, { share: true, width: 760, height: 300 });
  }

  viewer.overview = () => {
    const { runs, sources, problems, groups } = viewer.data;
    const counts = sources.map(() => [0, 0]);
    groups.source.forEach((source, g) => { counts[source][0] += 1; counts[source][1] += groups.size[g]; });
    const page = [];
    runs.forEach((run, number) => {
      const metrics = viewer.data.curves.filter(({ name }) => run.metrics[name]?.some(Number.isFinite))
        .map(({ name, caption, share }) => viewer.chart(caption, [{ name: caption, x: run.metrics.iteration, y: run.metrics[name] }], { share }));
      page.push(h("section", { class: "run" },
        h("h1", null, viewer.visible(run.name), run.algorithm && h("small", null, viewer.visible(run.algorithm))),
        headline(run), h("div", { class: "large" }, curves(run, number)),
        run.notes.length ? [h("h2", null, "Health"), h("ul", { class: "notes" }, run.notes.map((note) => h("li", null, viewer.visible(note))))] : null,
        metrics.length ? h("details", null, h("summary", null, "More curves"), h("div", { class: "charts" }, metrics)) : null));
    });
    page.push(h("h2", { id: "files" }, "Episodes"),
      h("p", null, h("a", { href: viewer.link(["groups"]) }, "All groups"), " · ", h("a", { href: viewer.link(["episodes"]) }, "All episodes")),
      h("div", { class: "wide", tabindex: 0, role: "region", "aria-labelledby": "files" }, h("table", null,
        h("thead", null, h("tr", null, ["file", "groups", "episodes", "success"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, sources.map((source, i) => {
          let wins = 0;
          for (let g = viewer.data.start[i] ?? 0, n = counts[i][0]; n > 0; g += 1, n -= 1) wins += groups.wins[g];
          return h("tr", null,
            h("th", { scope: "row" }, h("a", { href: viewer.link(["groups"], { run: source.run, source: source.label }) }, viewer.sourceName(source))),
            h("td", null, counts[i][0]), h("td", null, counts[i][1]),
            h("td", null, viewer.bar(wins / counts[i][1]), viewer.percent(wins / counts[i][1])));
        })))));
    if (problems.length) {
      page.push(h("h2", null, "Not readable"), h("ul", { class: "notes" }, problems.slice(0, 50).map((one) => h("li", null, viewer.visible(one)))));
    }
    return { title: runs.map((run) => run.name).join(", "), trail: [], page };
  };
})();
