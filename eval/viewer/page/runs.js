"use strict";
// The runs of a folder as a table; and a comparison of two runs.
(() => {
  const { h } = viewer;

  const rowOf = (run, number) => {
    const [success, average] = ["last", "average"].map((end) =>
      Object.fromEntries(Object.keys(run.results).map((split) => [split, viewer.ends(run, split)?.[end]?.success])),
    );
    const { name, algorithm, environment, seed } = run;
    return {
      number,
      name,
      algorithm,
      environment,
      seed,
      success,
      average,
      curve: run.metrics.success_rate || [],
      iterations: run.metrics.iteration?.at(-1) ?? 0,
    };
  };

  // The success on the chosen split, by default on the row's first.
  const measured = (row, query) => query.split || Object.keys(row.success).find((split) => row.success[split]);
  const found = (row, query) => row.success[measured(row, query)];
  const averaged = (row, query) => row.average[measured(row, query)];

  function interval(success, colour = "c0") {
    if (!success) return "-";
    const { value, low, high } = success;
    const whole = Number.isFinite(low) && Number.isFinite(high);
    return [
      whole &&
        h(
          "span",
          {
            class: `interval ${colour}`,
            role: "img",
            "aria-label": `95 % interval ${viewer.range(success)}`,
            "--low": Math.max(0, low),
            "--high": Math.min(1, high),
            "--value": value,
          },
          h("i"),
          h("b"),
        ),
      h("span", null, `${viewer.percent(value)} `),
      h("small", { class: "soft" }, viewer.range(success)),
    ];
  }

  viewer.runs = (query) => {
    const { runs, sources, groups } = viewer.data;
    const rows = runs.map(rowOf);
    const splits = [...new Set(rows.flatMap((row) => Object.keys(row.success)))];
    const environments = [...new Set(runs.map((run) => run.environment))];
    const algorithms = [...new Set(runs.map((run) => run.algorithm))];
    const chosen = [];
    const offer = h("p", { role: "status", class: "offer" });
    const offered = () =>
      offer.replaceChildren(
        chosen.length === 2
          ? h(
              "a",
              { class: "button", href: viewer.link(["runs", ...chosen]) },
              `${viewer.short(runs[chosen[0]].name, 30)} and ${viewer.short(runs[chosen[1]].name, 30)}`,
            )
          : h("span", { class: "soft" }, "Select two runs to compare them."),
      );
    offered();
    const choose = (row) => {
      const { number } = row;
      const box = h("input", {
        type: "checkbox",
        "aria-label": `Select ${viewer.short(row.name, 60)}`,
        "data-run": number,
        checked: chosen.includes(number),
        onchange: () => {
          const at = chosen.indexOf(number);
          if (at >= 0) chosen.splice(at, 1);
          else chosen.push(number);
          while (chosen.length > 2) chosen.shift();
          document.querySelectorAll("input[data-run]").forEach((checkbox) => {
            checkbox.checked = chosen.includes(Number(checkbox.dataset.run));
          });
          offered();
        },
      });
      return box;
    };
    const name = (row) => h("a", { href: viewer.link(["run", row.number]) }, viewer.short(row.name, 60));
    const columns = (state) => [
      ["name", "Run", (row) => [choose(row), " ", name(row)], (row) => row.name],
      [
        "success",
        "Success",
        (row) => [
          interval(found(row, state)),
          averaged(row, state) &&
            h("small", { class: "soft average" }, `averaged weights: ${viewer.percent(averaged(row, state).value)}`),
        ],
        (row) => found(row, state)?.value ?? -1,
      ],
      [
        "curve",
        "In training",
        (row) => viewer.sparkline(row.curve, `success in training, last ${viewer.percent(row.curve.at(-1))}`),
        (row) => row.curve.at(-1) ?? -1,
      ],
      ["algorithm", "Algorithm", (row) => viewer.short(row.algorithm, 60), (row) => row.algorithm],
      ["environment", "Environment", (row) => viewer.short(row.environment, 50), (row) => row.environment],
      ["seed", "Seed", (row) => viewer.short(row.seed, 30), (row) => Number(row.seed) || 0],
      ["iterations", "Iterations", (row) => row.iterations, (row) => row.iterations],
    ];
    const find = (state) => {
      const wanted = (state.name || "").toLowerCase();
      return rows.filter(
        (row) =>
          (!wanted || row.name.toLowerCase().includes(wanted)) &&
          (!state.environment || row.environment === state.environment) &&
          (!state.algorithm || row.algorithm === state.algorithm) &&
          (!state.split || row.success[state.split]),
      );
    };
    const form = (state, changed) => [
      viewer.search(state, "name", "Run", "part of a run's name", changed),
      viewer.pickName(state, "environment", "Environment", "any environment", environments, changed),
      viewer.pickName(state, "algorithm", "Algorithm", "any algorithm", algorithms, changed),
      splits.length > 1 &&
        viewer.pick(
          state,
          "split",
          "Success on",
          [["", "each run's first split"], ...splits.map((split) => [split, viewer.visible(split)])],
          changed,
        ),
    ];
    const table = viewer.table("Runs", query, {
      form,
      find,
      columns,
      noun: "run",
      standard: { value: (row) => found(row, {})?.value ?? -1, words: "highest success first" },
    });
    const played = groups.size.length
      ? h(
          "p",
          null,
          h("a", { href: viewer.link(["groups"]) }, `All ${viewer.times(groups.size.length, "group")}`),
          ` in ${viewer.times(sources.length, "episode file")}.`,
        )
      : null;
    table.page.splice(3, 0, offer);
    return {
      ...table,
      title: viewer.times(runs.length, "run"),
      trail: [],
      page: [...table.page, played, viewer.problems()],
    };
  };

  // Two runs: their results, the settings that differ, and their curves in the same charts.
  viewer.twoRuns = (left, right) => {
    const { runs, settings, curves } = viewer.data;
    const pair = [runs[left], runs[right]];
    const names = pair
      .map((run, i) => (pair[0].name === pair[1].name ? `${run.name} (${i + 1})` : run.name))
      .map((name) => viewer.visible(name));
    const splits = [...new Set(pair.flatMap((run) => Object.keys(run.results)))];
    const heads = (first) =>
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          h("th", { scope: "col" }, first),
          names.map((name, i) =>
            h(
              "th",
              { scope: "col" },
              h("i", { class: `key c${i}` }),
              h("a", { href: viewer.link(["run", [left, right][i]]) }, name),
            ),
          ),
        ),
      );
    const results = splits.map((split) => {
      const ends = pair.map((run) => viewer.ends(run, split));
      const same = ends[0] && ends[1] && ends[0].last.panel === ends[1].last.panel;
      return h(
        "tr",
        null,
        h(
          "th",
          { scope: "row" },
          viewer.visible(split),
          ends[0] && ends[1] && !same && h("small", { class: "bad" }, " different tasks"),
        ),
        ends.map((end, i) =>
          h(
            "td",
            null,
            end
              ? [
                  end.before && `${viewer.percent(end.before.success.value)} → `,
                  interval(end.last.success, `c${i}`),
                  end.average &&
                    h(
                      "small",
                      { class: "soft average" },
                      `averaged weights: ${viewer.percent(end.average.success.value)}`,
                    ),
                ]
              : "-",
          ),
        ),
      );
    });
    const differ = Object.entries(settings).filter(
      ([name, values]) => name !== "name" && values[left] !== values[right],
    );
    const chart = (title, ys, share, height) =>
      viewer.chart(
        title,
        pair.map((run, i) => ({ name: names[i], x: run.metrics.iteration || [], y: ys(run) })),
        { share, height },
      );
    const measured = splits.map((split) =>
      viewer.chart(
        `success on ${viewer.visible(split)}`,
        pair.map((run, i) => {
          const of = viewer.measured(run, split).map(([x, evaluation]) => [x, evaluation.success]);
          return {
            name: names[i],
            x: of.map(([x]) => x),
            y: of.map(([, success]) => success.value),
            low: of.map(([, success]) => success.low),
            high: of.map(([, success]) => success.high),
          };
        }),
        { share: true, height: 260 },
      ),
    );
    return {
      title: `${names[0]} and ${names[1]}`,
      trail: [["Runs", "#/"], [`${viewer.short(names[0], 24)} and ${viewer.short(names[1], 24)}`]],
      page: [
        h("h1", null, `${names[0]} and ${names[1]}`),
        h(
          "div",
          { class: "wide", tabindex: 0, role: "region", "aria-label": "Results" },
          h("table", null, heads("success"), h("tbody", null, results)),
        ),
        h(
          "p",
          { class: "soft" },
          h("code", null, `gagpo report ${pair.map((run) => viewer.short(run.name, 60)).join(" ")}`),
          " in the folder of the runs compares them task by task, with statistical tests.",
        ),
        measured,
        chart("success in training", (run) => run.metrics.success_rate || [], true, 260),
        h("h2", { id: "settings" }, differ.length ? "Settings that differ" : "All settings are equal"),
        differ.length
          ? h(
              "div",
              { class: "wide", tabindex: 0, role: "region", "aria-labelledby": "settings" },
              h(
                "table",
                null,
                heads("setting"),
                h(
                  "tbody",
                  null,
                  differ.map(([name, values]) =>
                    h(
                      "tr",
                      null,
                      h("th", { scope: "row" }, h("code", null, viewer.visible(name))),
                      [left, right].map((n) =>
                        h("td", { class: "said" }, values[n] === null ? "-" : viewer.visible(values[n])),
                      ),
                    ),
                  ),
                ),
              ),
            )
          : null,
        h("h2", null, "Curves"),
        h(
          "div",
          { class: "charts" },
          curves
            .filter(({ name }) => pair.some((run) => run.metrics[name]?.some(Number.isFinite)))
            .map(({ name, caption, share }) =>
              chart(viewer.caption(name, caption), (run) => run.metrics[name] || [], share),
            ),
        ),
      ],
    };
  };
})();
