"use strict";
// The first page: results, curves, health, and the files of episodes.
(() => {
  const { h } = viewer;
  // The evaluations of a split: before training, the last one (the run's result), and of the averaged weights.
  viewer.ends = (run, split) => {
    const { trained = [], average = null } = run.results[split] ?? {};
    return trained.length
      ? { before: trained.find((evaluation) => evaluation.stage === "before"), last: trained.at(-1), average }
      : null;
  };
  // The evaluations of a split, by iteration.
  viewer.measured = (run, split) =>
    (run.results[split]?.trained ?? [])
      .map((evaluation) => [evaluation.iteration ?? run.metrics.iteration?.at(-1) ?? 1, evaluation])
      .sort((a, b) => a[0] - b[0]);
  viewer.range = ({ low, high }) =>
    Number.isFinite(low) && Number.isFinite(high) ? `[${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]` : "";

  function headline(run) {
    return Object.keys(run.results).map((split) => {
      const { before, last, average } = viewer.ends(run, split) ?? {};
      if (last?.stage !== "after") return null;
      return [
        h(
          "p",
          { class: "headline" },
          `${viewer.visible(split)}: `,
          before && `${viewer.percent(before.success.value)} before, `,
          h("b", null, viewer.percent(last.success.value)),
          before && " after training",
          ` ${viewer.range(last.success)}`,
        ),
        average &&
          h(
            "p",
            { class: "soft" },
            `averaged weights: ${viewer.percent(average.success.value)} ${viewer.range(average.success)}`,
          ),
      ];
    });
  }

  function curves(run, number) {
    const { sources } = viewer.data;
    const kept = new Map(
      sources.filter((source) => source.run === number && source.stage === "train").map((source) => [source.iteration, source]),
    );
    const at = run.metrics.iteration || [];
    const series = [
      {
        name: "training",
        x: at,
        y: run.metrics.success_rate || [],
        href: (x) => (kept.has(x) ? viewer.link(["groups"], { run: number, source: kept.get(x).label }) : null),
      },
    ];
    for (const split of Object.keys(run.results)) {
      const points = viewer.measured(run, split);
      const labels = new Map(points.map(([x, evaluation]) => [x, evaluation.label]));
      const written = new Set(sources.filter((source) => source.run === number).map((source) => source.label));
      series.push({
        name: viewer.visible(split),
        x: points.map(([x]) => x),
        y: points.map(([, evaluation]) => evaluation.success.value),
        low: points.map(([, evaluation]) => evaluation.success.low),
        high: points.map(([, evaluation]) => evaluation.success.high),
        href: (x) =>
          written.has(labels.get(x)) ? viewer.link(["groups"], { run: number, source: labels.get(x) }) : null,
      });
    }
    if (series.every((line) => line.x.length < 2)) return null;
    const environments = run.environments.map((environment) => ({
      name: viewer.visible(environment),
      x: at,
      y: run.metrics[`success_rate/${environment}`],
    }));
    return [
      viewer.chart("success; click a point to see its groups", series, { share: true, height: 300 }),
      environments.length
        ? viewer.chart("success in training, by environment", environments, { share: true, height: 300 })
        : null,
    ];
  }

  function files(numbers) {
    const { sources, groups } = viewer.data;
    const counts = sources.map(() => [0, 0, 0]);
    groups.source.forEach((source, g) => {
      counts[source][0] += 1;
      counts[source][1] += groups.size[g];
      counts[source][2] += groups.wins[g];
    });
    const mine = sources.map((source, i) => [source, ...counts[i]]).filter(([source]) => numbers.includes(source.run));
    const of = numbers.length === 1 ? { run: numbers[0] } : {};
    return [
      h("h2", { id: "files" }, "Episodes"),
      h(
        "p",
        null,
        h("a", { href: viewer.link(["groups"], of) }, "All groups"),
        " · ",
        h("a", { href: viewer.link(["episodes"], of) }, "All episodes"),
      ),
      h(
        "div",
        { class: "wide", tabindex: 0, role: "region", "aria-labelledby": "files" },
        h(
          "table",
          null,
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              ["file", "groups", "episodes", "success"].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          h(
            "tbody",
            null,
            mine.map(([source, inside, episodes, wins]) =>
              h(
                "tr",
                null,
                h(
                  "th",
                  { scope: "row" },
                  h(
                    "a",
                    { href: viewer.link(["groups"], { run: source.run, source: source.label }) },
                    viewer.sourceName(source),
                  ),
                ),
                h("td", null, inside),
                h("td", null, episodes),
                h("td", null, viewer.bar(wins / episodes), viewer.percent(wins / episodes)),
              ),
            ),
          ),
        ),
      ),
    ];
  }

  viewer.problems = () => {
    const { problems } = viewer.data;
    return problems.length
      ? [
          h("h2", null, "Files that cannot be read"),
          h(
            "ul",
            { class: "notes" },
            problems.slice(0, 50).map((problem) => h("li", null, viewer.visible(problem))),
          ),
        ]
      : null;
  };

  // The title of a curve: its caption and the name of the metric.
  viewer.caption = (name, caption) => (caption === name.replaceAll("_", " ") ? name : `${caption} (${name})`);

  viewer.runPage = (number) => {
    const { runs, curves: shown } = viewer.data;
    const run = runs[number];
    const metrics = shown
      .filter(({ name }) => run.metrics[name]?.some(Number.isFinite))
      .map(({ name, caption, share }) =>
        viewer.chart(
          viewer.caption(name, caption),
          [
            { name: run.environments.length ? "the whole" : caption, x: run.metrics.iteration, y: run.metrics[name] },
            ...run.environments
              .filter((environment) => run.metrics[`${name}/${environment}`])
              .map((environment) => ({
                name: viewer.visible(environment),
                x: run.metrics.iteration,
                y: run.metrics[`${name}/${environment}`],
              })),
          ],
          { share },
        ),
      );
    const page = [
      h(
        "section",
        { class: "run" },
        h("h1", null, viewer.visible(run.name), run.algorithm && h("small", null, viewer.visible(run.algorithm))),
        headline(run),
        curves(run, number),
        run.notes.length
          ? [
              h("h2", null, "Health"),
              h(
                "ul",
                { class: "notes" },
                run.notes.map((note) => h("li", null, viewer.visible(note))),
              ),
            ]
          : null,
        metrics.length
          ? h(
              "details",
              { class: "more-curves" },
              h("summary", null, "More curves"),
              h("div", { class: "charts" }, metrics),
            )
          : null,
      ),
      files([number]),
      runs.length === 1 ? viewer.problems() : null,
    ];
    return { title: run.name, trail: runs.length > 1 ? [["Runs", "#/"], [viewer.short(run.name, 40)]] : [], page };
  };

  // The first page of one run is the run, of several runs their table.
  viewer.overview = (query) => (viewer.data.runs.length === 1 ? viewer.runPage(0) : viewer.runs(query));
})();
