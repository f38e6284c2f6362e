"use strict";
// The runs of a folder as a table; and a comparison of two runs.
(() => {
  const { h } = viewer;

  const rowOf = (run, number) => {
    const bySplit = (end) =>
      Object.fromEntries(Object.keys(run.results).map((split) => [split, viewer.ends(run, split)?.[end]]));
    const [{ metric }] = viewer.measures();
    return {
      number,
      name: run.name,
      algorithm: run.algorithm,
      environment: run.environment,
      seed: run.seed,
      last: bySplit("last"),
      average: bySplit("average"),
      curve: run.metrics[metric] || [],
      iterations: run.metrics.iteration?.at(-1) ?? 0,
      progress: `${run.metrics.iteration?.at(-1) ?? 0}${run.iterations ? ` of ${viewer.visible(run.iterations)}` : ""}`,
    };
  };

  // The split of the filter, by default the row's first.
  const splitOf = (row, query) => query.split || Object.keys(row.last).find((split) => row.last[split]);
  const lastOf = (row, query, key) => row.last[splitOf(row, query)]?.[key];
  const averageOf = (row, query, key) => row.average[splitOf(row, query)]?.[key];
  const lowest = (x) => x ?? -Infinity;

  // A number with its interval; a share also as a bar from 0 to 100 %.
  function interval(estimate, measure, colour = "c0") {
    if (!estimate) return "-";
    const { value, low, high } = estimate;
    const attributes = {
      class: `interval ${colour}`,
      role: "img",
      "aria-label": `95 % interval ${measure.range(estimate)}`,
      "--low": Math.max(0, low),
      "--high": Math.min(1, high),
      "--value": value,
    };
    const bounded = measure.share && Number.isFinite(low) && Number.isFinite(high);
    return [
      bounded && h("span", attributes, h("i"), h("b")),
      h("span", null, `${measure.text(value)} `),
      h("small", { class: "soft" }, measure.range(estimate)),
    ];
  }

  const averageText = (estimate, measure) =>
    h("small", { class: "soft average" }, `averaged weights: ${measure.text(estimate.value)}`);

  const selected = []; // numbers of runs; they stay when the page is drawn again

  // The two runs that are selected, and a link that compares them.
  function selection(runs) {
    const offer = h("p", { role: "status", class: "offer" });
    const draw = () => {
      const names = selected.map((number) => viewer.short(runs[number].name, 30));
      const href = viewer.link(["runs", ...selected]);
      offer.replaceChildren(
        selected.length === 2
          ? h("a", { class: "button", href }, names.join(" and "))
          : h("span", { class: "soft" }, "Select two runs to compare them."),
      );
    };
    const toggle = (number) => {
      const place = selected.indexOf(number);
      if (place >= 0) selected.splice(place, 1);
      else selected.push(number);
      while (selected.length > 2) selected.shift();
      document.querySelectorAll("input[data-run]").forEach((checkbox) => {
        checkbox.checked = selected.includes(Number(checkbox.dataset.run));
      });
      draw();
    };
    const checkbox = ({ number, name }) =>
      h("input", {
        type: "checkbox",
        "aria-label": `Select ${viewer.short(name, 60)}`,
        "data-run": number,
        checked: selected.includes(number),
        onchange: () => toggle(number),
      });
    draw();
    return { offer, checkbox };
  }

  const measureColumn = (measure, query) => [
    measure.key,
    measure.title,
    (row) => {
      const average = averageOf(row, query, measure.key);
      return [interval(lastOf(row, query, measure.key), measure), average && averageText(average, measure)];
    },
    (row) => lowest(lastOf(row, query, measure.key)?.value),
  ];

  // Of the table: key, name, cell and what rows are sorted by.
  const columns = (query, checkbox) => [
    [
      "name",
      "Run",
      (row) => [checkbox(row), " ", h("a", { href: viewer.link(["run", row.number]) }, viewer.short(row.name, 60))],
      (row) => row.name,
    ],
    ...viewer.measures().map((measure) => measureColumn(measure, query)),
    [
      "curve",
      "In training",
      (row) => {
        const [{ name, text, share }] = viewer.measures();
        return viewer.sparkline(row.curve, `${name} in training, last ${text(row.curve.at(-1))}`, share);
      },
      (row) => lowest(row.curve.at(-1)),
    ],
    ["algorithm", "Algorithm", (row) => viewer.short(row.algorithm, 60), (row) => row.algorithm],
    ["environment", "Environment", (row) => viewer.short(row.environment, 50), (row) => row.environment],
    ["seed", "Seed", (row) => viewer.short(row.seed, 30), (row) => Number(row.seed) || 0],
    ["iterations", "Iterations", (row) => row.progress, (row) => row.iterations],
  ];

  function matches(row, query) {
    const part = (query.name || "").toLowerCase();
    return (
      (!part || row.name.toLowerCase().includes(part)) &&
      (!query.environment || row.environment === query.environment) &&
      (!query.algorithm || row.algorithm === query.algorithm) &&
      (!query.split || row.last[query.split])
    );
  }

  // The filters above the table.
  const filters = (runs, splits) => (query, changed) => {
    const names = (key) => [...new Set(runs.map((run) => run[key]))];
    const splitNames = [["", "each run's first split"], ...splits.map((split) => [split, viewer.visible(split)])];
    return [
      viewer.search(query, "name", "Run", "part of a run's name", changed),
      viewer.pickName(query, "environment", "Environment", "any environment", names("environment"), changed),
      viewer.pickName(query, "algorithm", "Algorithm", "any algorithm", names("algorithm"), changed),
      splits.length > 1 && viewer.pick(query, "split", `${viewer.measures()[0].title} on`, splitNames, changed),
    ];
  };

  function allGroups() {
    const { sources, groups } = viewer.data;
    const count = groups.size.length;
    if (!count) return null;
    const link = h("a", { href: viewer.link(["groups"]) }, `All ${viewer.times(count, "group")}`);
    return h("p", null, link, ` in ${viewer.times(sources.length, "episode file")}.`);
  }

  // One chart for training and one for each split, with a line per run. Seeds of the same settings have one colour.
  function allCurves(runs, splits, measure) {
    const variants = [...new Set(runs.map(({ variant }) => variant))];
    const line = (run, x, y) => ({ name: viewer.visible(run.variant), x, y, colour: variants.indexOf(run.variant) });
    const training = runs.map((run) => line(run, run.metrics.iteration ?? [], run.metrics[measure.metric] ?? []));
    const evaluated = splits.map((split) => {
      const lines = runs.map((run) => {
        const points = viewer.measured(run, split);
        const values = points.map(([, evaluation]) => evaluation[measure.key].value);
        return line(run, points.map(([x]) => x), values);
      });
      return viewer.chart(`${measure.name} on ${viewer.visible(split)}`, lines, { share: measure.share, height: 260 });
    });
    const title = `${measure.name} in training`;
    return [viewer.chart(title, training, { share: measure.share, height: 260 }), ...evaluated];
  }

  viewer.runs = (query) => {
    const { runs } = viewer.data;
    const rows = runs.map(rowOf);
    const splits = [...new Set(rows.flatMap((row) => Object.keys(row.last)))];
    const [measure] = viewer.measures();
    const { offer, checkbox } = selection(runs);
    const table = viewer.table("Runs", query, {
      form: filters(runs, splits),
      find: (state) => rows.filter((row) => matches(row, state)),
      columns: (state) => columns(state, checkbox),
      noun: "run",
      standard: {
        value: (row) => lowest(lastOf(row, {}, measure.key)?.value),
        words: `highest ${measure.name} first`,
      },
    });
    table.page.splice(3, 0, offer);
    const curves = viewer.measures().map((measure) => allCurves(runs, splits, measure));
    return {
      ...table,
      title: viewer.times(runs.length, "run"),
      trail: [],
      page: [
        ...table.page,
        h("h2", null, "Curves"),
        h("div", { class: "charts" }, curves),
        allGroups(),
        viewer.problems(),
      ],
    };
  };

  // A comparison of two runs ------------------------------------------------------------------------------------------

  // pair: the runs with their numbers and names; runs of one name are numbered.
  function pairOf(left, right) {
    const { runs } = viewer.data;
    const sameName = runs[left].name === runs[right].name;
    return [left, right].map((number, i) => {
      const run = runs[number];
      return { run, number, name: viewer.visible(sameName ? `${run.name} (${i + 1})` : run.name) };
    });
  }

  function pairHead(first, pair) {
    const heads = pair.map(({ number, name }, i) =>
      h("th", { scope: "col" }, h("i", { class: `key c${i}` }), h("a", { href: viewer.link(["run", number]) }, name)),
    );
    return h("thead", null, h("tr", null, h("th", { scope: "col" }, first), heads));
  }

  function resultCell(end, i, measure) {
    const { key, text } = measure;
    if (!end) return h("td", null, "-");
    return h(
      "td",
      null,
      end.before && `${text(end.before[key].value)} → `,
      interval(end.last[key], measure, `c${i}`),
      end.average && averageText(end.average[key], measure),
    );
  }

  function resultRow(split, pair, measure) {
    const ends = pair.map(({ run }) => viewer.ends(run, split));
    const differ = ends[0] && ends[1] && ends[0].last.task_set !== ends[1].last.task_set;
    return h(
      "tr",
      null,
      h("th", { scope: "row" }, viewer.visible(split), differ && h("small", { class: "bad" }, " different tasks")),
      ends.map((end, i) => resultCell(end, i, measure)),
    );
  }

  function settingsTable(pair) {
    const differ = Object.entries(viewer.data.settings).filter(
      ([name, values]) => name !== "name" && values[pair[0].number] !== values[pair[1].number],
    );
    const head = h("h2", { id: "settings" }, differ.length ? "Settings that differ" : "All settings are equal");
    if (!differ.length) return [head];
    const cell = (value) => h("td", { class: "said" }, value === null ? "-" : viewer.visible(value));
    const rows = differ.map(([name, values]) =>
      h(
        "tr",
        null,
        h("th", { scope: "row" }, h("code", null, viewer.visible(name))),
        pair.map(({ number }) => cell(values[number])),
      ),
    );
    const table = h("table", null, pairHead("setting", pair), h("tbody", null, rows));
    return [head, viewer.scroller({ "aria-labelledby": "settings" }, table)];
  }

  // One chart with a line per run. values(run): the numbers of its iterations.
  function pairChart(title, pair, values, options) {
    const lines = pair.map(({ run, name }) => ({ name, x: run.metrics.iteration || [], y: values(run) }));
    return viewer.chart(title, lines, options);
  }

  function splitChart(split, pair, measure) {
    const lines = pair.map(({ run, name }) => {
      const points = viewer.measured(run, split);
      const numbers = (key) => points.map(([, evaluation]) => evaluation[measure.key][key]);
      return { name, x: points.map(([x]) => x), y: numbers("value"), low: numbers("low"), high: numbers("high") };
    });
    return viewer.chart(`${measure.name} on ${viewer.visible(split)}`, lines, { share: measure.share, height: 260 });
  }

  function metricCharts(pair) {
    const logged = viewer.data.curves.filter(({ name }) =>
      pair.some(({ run }) => run.metrics[name]?.some(Number.isFinite)),
    );
    const charts = logged.map(({ name, caption, share }) =>
      pairChart(viewer.caption(name, caption), pair, (run) => run.metrics[name] || [], { share }),
    );
    return h("div", { class: "charts" }, charts);
  }

  // A table of a measure, and its curves on each split and in training.
  function results(pair, splits, measure) {
    const rows = splits.map((split) => resultRow(split, pair, measure));
    return viewer.region(
      `Results, ${measure.name}`,
      h("table", null, pairHead(measure.name, pair), h("tbody", null, rows)),
    );
  }

  function resultCharts(pair, splits, measure) {
    const options = { share: measure.share, height: 260 };
    const values = (run) => run.metrics[measure.metric] || [];
    return [
      ...splits.map((split) => splitChart(split, pair, measure)),
      pairChart(`${measure.name} in training`, pair, values, options),
    ];
  }

  // Two runs: their results, the settings that differ, and their curves in the same charts.
  viewer.twoRuns = (left, right) => {
    const pair = pairOf(left, right);
    const splits = [...new Set(pair.flatMap(({ run }) => Object.keys(run.results)))];
    const measures = viewer.measures(pair.map(({ run }) => run));
    const command = `gagpo report ${pair.map(({ run }) => viewer.short(run.name, 60)).join(" ")}`;
    const title = pair.map(({ name }) => name).join(" and ");
    const shortTitle = pair.map(({ name }) => viewer.short(name, 24)).join(" and ");
    return {
      title,
      trail: [["Runs", "#/"], [shortTitle]],
      page: [
        h("h1", null, title),
        measures.map((measure) => results(pair, splits, measure)),
        h(
          "p",
          { class: "soft" },
          h("code", null, command),
          " in the folder of the runs compares them task by task, with statistical tests.",
        ),
        measures.map((measure) => resultCharts(pair, splits, measure)),
        settingsTable(pair),
        h("h2", null, "Curves"),
        metricCharts(pair),
      ],
    };
  };
})();
