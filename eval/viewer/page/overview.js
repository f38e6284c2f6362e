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

  // The measure before and after training, and of the averaged weights. named: whether it is called by its name.
  function headlineOf({ key, name, text, range }, split, { before, last, average }, named) {
    return [
      h(
        "p",
        { class: "headline" },
        `${viewer.visible(split)}: ${named ? `${name} ` : ""}`,
        before && `${text(before[key].value)} before, `,
        h("b", null, text(last[key].value)),
        before && " after training",
        ` ${range(last[key])}`,
      ),
      average &&
        h("p", { class: "soft" }, `averaged weights: ${text(average[key].value)} ${range(average[key])}`),
    ];
  }

  function headline(run) {
    const measures = viewer.measures([run]);
    const named = run.shows.includes("reward");
    return Object.keys(run.results).map((split) => {
      const ends = viewer.ends(run, split);
      if (ends?.last.stage !== "after") return null;
      return measures.map((measure) => headlineOf(measure, split, ends, named));
    });
  }

  // A measure of a run's evaluations on a split; a point links to its episodes, if their file is here.
  function splitLine(run, number, split, measure, labelsHere) {
    const points = viewer.measured(run, split);
    const labels = new Map(points.map(([x, evaluation]) => [x, evaluation.label]));
    const numbers = (key) => points.map(([, evaluation]) => evaluation[measure.key][key]);
    return {
      name: viewer.visible(split),
      x: points.map(([x]) => x),
      y: numbers("value"),
      low: numbers("low"),
      high: numbers("high"),
      href: (x) => {
        const label = labels.get(x);
        return labelsHere.has(label) ? viewer.link(["groups"], { run: number, source: label }) : null;
      },
    };
  }

  function trainingLine(run, number, measure, sources) {
    const labels = new Map(
      sources.filter((source) => source.stage === "train").map((source) => [source.iteration, source.label]),
    );
    return {
      name: "training",
      x: run.metrics.iteration || [],
      y: run.metrics[measure.metric] || [],
      href: (x) => (labels.has(x) ? viewer.link(["groups"], { run: number, source: labels.get(x) }) : null),
    };
  }

  // A metric of each of a run's environments.
  const environmentLines = (run, metric) =>
    run.environments.map((environment) => ({
      name: viewer.visible(environment),
      x: run.metrics.iteration || [],
      y: run.metrics[`${metric}/${environment}`],
    }));

  function measureCurves(run, number, measure) {
    const sources = viewer.data.sources.filter((source) => source.run === number);
    const labelsHere = new Set(sources.map((source) => source.label));
    const lines = [
      trainingLine(run, number, measure, sources),
      ...Object.keys(run.results).map((split) => splitLine(run, number, split, measure, labelsHere)),
    ];
    if (lines.every((line) => line.x.length < 2)) return null;
    const options = { share: measure.share, height: 300 };
    const charts = [viewer.chart(`${measure.name}; click a point to see its groups`, lines, options)];
    const environments = environmentLines(run, measure.metric).filter((line) => line.y);
    if (environments.length) {
      charts.push(viewer.chart(`${measure.name} in training, by environment`, environments, options));
    }
    return charts;
  }

  const curves = (run, number) => viewer.measures([run]).map((measure) => measureCurves(run, number, measure));

  // Groups, episodes, successes and rewards of each file.
  function countsOfSources() {
    const { sources, groups } = viewer.data;
    const counts = sources.map(() => ({ groups: 0, episodes: 0, wins: 0, reward: 0 }));
    groups.source.forEach((source, g) => {
      counts[source].groups += 1;
      counts[source].episodes += groups.size[g];
      counts[source].wins += groups.wins[g];
      counts[source].reward += groups.reward[g] * groups.size[g];
    });
    return counts;
  }

  function fileRow(source, { groups, episodes, wins, reward }, measures) {
    const results = {
      reward: () => viewer.number(reward / episodes),
      success: () => [viewer.bar(wins / episodes), viewer.percent(wins / episodes)],
    };
    const href = viewer.link(["groups"], { run: source.run, source: source.label });
    return h(
      "tr",
      null,
      h("th", { scope: "row" }, h("a", { href }, viewer.sourceName(source))),
      h("td", null, groups),
      h("td", null, episodes),
      measures.map(({ key }) => h("td", null, results[key]())),
    );
  }

  // The files of episodes of a run.
  function files(number) {
    const counts = countsOfSources();
    const measures = viewer.measures([viewer.data.runs[number]]);
    const rows = viewer.data.sources
      .map((source, i) => (source.run === number ? fileRow(source, counts[i], measures) : null))
      .filter(Boolean);
    const names = ["file", "groups", "episodes", ...measures.map(({ name }) => name)];
    const heads = names.map((name) => h("th", { scope: "col" }, name));
    const table = h("table", null, h("thead", null, h("tr", null, heads)), h("tbody", null, rows));
    return [
      h("h2", { id: "files" }, "Episodes"),
      h(
        "p",
        null,
        h("a", { href: viewer.link(["groups"], { run: number }) }, "All groups"),
        " · ",
        h("a", { href: viewer.link(["episodes"], { run: number }) }, "All episodes"),
      ),
      viewer.scroller({ "aria-labelledby": "files" }, table),
    ];
  }

  // A heading and a list of texts; nothing without any.
  function notes(title, texts) {
    if (!texts.length) return null;
    const items = texts.map((text) => h("li", null, viewer.visible(text)));
    return [h("h2", null, title), h("ul", { class: "notes" }, items)];
  }

  // The health of a run, the worst first, each with its level in words and in colour.
  function health(findings) {
    if (!findings.length) return null;
    const items = findings.map(({ level, word, sentence }) =>
      h("li", null, h("b", { class: `level ${level}` }, word), " ", viewer.visible(sentence)),
    );
    return [h("h2", null, "Health"), h("ul", { class: "notes health" }, items)];
  }

  viewer.problems = () => notes("Files that cannot be read", viewer.data.problems.slice(0, 50));

  // The title of a curve: its caption and the name of the metric.
  viewer.caption = (name, caption) => (caption === name.replaceAll("_", " ") ? name : `${caption} (${name})`);

  function metricChart(run, { name, caption, share }) {
    const total = {
      name: run.environments.length ? "the whole" : caption,
      x: run.metrics.iteration,
      y: run.metrics[name],
    };
    const parts = environmentLines(run, name).filter((line) => line.y);
    return viewer.chart(viewer.caption(name, caption), [total, ...parts], { share });
  }

  function moreCurves(run) {
    const charts = viewer.data.curves
      .filter(({ name }) => run.metrics[name]?.some(Number.isFinite))
      .map((curve) => metricChart(run, curve));
    if (!charts.length) return null;
    const summary = h("summary", null, "More curves");
    return h("details", { class: "more-curves" }, summary, h("div", { class: "charts" }, charts));
  }

  function progress(run) {
    if (!viewer.data.live) return null;
    const done = viewer.number(run.metrics.iteration?.at(-1) ?? 0, 6);
    const total = run.iterations ? ` of ${viewer.visible(run.iterations)}` : "";
    return h("p", { class: "headline" }, "iteration ", h("b", null, done), total);
  }

  viewer.runPage = async (number) => {
    const { runs, live } = viewer.data;
    const run = runs[number];
    const algorithm = run.algorithm && h("small", null, viewer.visible(run.algorithm));
    const section = h(
      "section",
      { class: "run" },
      h("h1", null, viewer.visible(run.name), algorithm),
      progress(run),
      headline(run),
      curves(run, number),
      health(run.health),
      live ? await viewer.newest(number) : null,
      moreCurves(run),
    );
    return {
      title: run.name,
      trail: runs.length > 1 ? [["Runs", "#/"], [viewer.short(run.name, 40)]] : [],
      page: [section, files(number), runs.length === 1 ? viewer.problems() : null],
    };
  };

  // The first page of one run is the run, of several runs their table.
  viewer.overview = (query) => (viewer.data.runs.length === 1 ? viewer.runPage(0) : viewer.runs(query));
})();
