"use strict";
// Line charts. A point may link to the episodes behind it.
(() => {
  const { h, s } = viewer;
  const RIGHT = 14,
    TOP = 12,
    BOTTOM = 26;

  function ticks(low, high, most) {
    const power = Math.floor(Math.log10((high - low) / most));
    for (const exponent of [power, power + 1, power + 2]) {
      for (const factor of [1, 2, 5]) {
        const step = factor * 10 ** exponent;
        const first = Math.ceil(low / step - 1e-9),
          last = Math.floor(high / step + 1e-9);
        if (last - first < most)
          return { step, at: Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step) };
      }
    }
    return { step: high - low, at: [low] };
  }

  // Enough digits to tell neighbouring ticks apart.
  function tickText(value, step, share) {
    const scaled = share ? 100 * value : value;
    const digits = Math.min(12, Math.max(0, -Math.floor(Math.log10(share ? 100 * step : step) + 1e-9)));
    if (!share && scaled && (digits > 4 || Math.abs(scaled) >= 1e6))
      return scaled.toExponential(Math.max(0, Math.floor(Math.log10(Math.abs(scaled)) + digits))).replace("e+", "e");
    return (
      scaled.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) +
      (share ? " %" : "")
    );
  }

  // The width of a text in pixels.
  const pen = document.createElement("canvas").getContext("2d");
  viewer.textWidth = (text, size, weight = 400) => {
    pen.font = `${weight} ${size}px system-ui, sans-serif`;
    return pen.measureText(text).width;
  };

  // Whole numbers for the labels of the x axis, as many as fit without touching.
  function columns(left, right, room) {
    for (let most = 9; most > 1; most -= 1) {
      const found = ticks(left, right, most)
        .at.map((x) => Math.round(x * 1e6) / 1e6)
        .filter(Number.isInteger);
      const widest = Math.max(0, ...found.map((x) => viewer.textWidth(viewer.number(x, 6), 12)));
      if (found.length < 2 || (widest + 12) * (found.length - 1) <= room * ((found.at(-1) - found[0]) / (right - left)))
        return found;
    }
    return [];
  }

  function limits(points, share) {
    let [left, right] = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
    if (right - left < 1e-9) {
      left -= 1;
      right += 1;
    }
    let low = Math.min(...points.map((p) => p[1])),
      high = Math.max(...points.map((p) => p[1]));
    if (share && high > 0.3) [low, high] = [0, 1];
    else if (high - low < 1e-12 * Math.max(1, Math.abs(high)))
      [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
    else {
      const pad = (high - low) * 0.08;
      low = share ? Math.min(0, low) : low - pad;
      high += pad;
    }
    return { left, right, low, high };
  }

  // One user unit is one pixel, so text has the same size on every screen.
  function draw(title, lines, width, height, share, across) {
    const { left, right, low, high } = limits(
      lines.flatMap((line) => line.points),
      share,
    );
    const rows = ticks(low, high, 5);
    const named = rows.at.map((y) => [y, tickText(y, rows.step, share)]);
    const margin = Math.ceil(Math.max(...named.map(([, text]) => viewer.textWidth(text, 12)))) + 10;
    const X = (x) => margin + ((width - margin - RIGHT) * (x - left)) / (right - left);
    const Y = (y) =>
      height - BOTTOM - ((height - BOTTOM - TOP) * (Math.min(high, Math.max(low, y)) - low)) / (high - low);
    const last = lines.map(
      (line) => `${line.name} ${share ? viewer.percent(line.points.at(-1)[1]) : viewer.number(line.points.at(-1)[1])}`,
    );
    const linked = lines.some((line) => line.href);
    const drawn = s("svg", {
      class: "chart",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: linked ? "group" : "img",
      "aria-label": `${title}; last: ${last.join(", ")}`,
    });
    for (const [y, text] of named) {
      drawn.append(
        s("line", { class: "axis", x1: margin, x2: width - RIGHT, y1: Y(y), y2: Y(y) }),
        s("text", { x: margin - 6, y: Y(y) + 4, "text-anchor": "end" }, text),
      );
    }
    for (const x of columns(left, right, width - margin - RIGHT))
      drawn.append(s("text", { x: X(x), y: height - 8, "text-anchor": "middle" }, viewer.number(x, 6)));
    for (const { colour, ...line } of lines) {
      if (line.points.length > 1)
        drawn.append(
          s("polyline", {
            class: `line ${colour}`,
            points: line.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" "),
          }),
        );
      for (const [x, y, below, above] of line.points) {
        if (below !== undefined)
          drawn.append(s("line", { class: `range ${colour}`, x1: X(x), x2: X(x), y1: Y(below), y2: Y(above) }));
        const address = line.href?.(x);
        const label = `${line.name}, ${across === "iterations" ? "iteration" : across} ${viewer.number(x, 6)}: ${share ? viewer.percent(y) : viewer.number(y)}`;
        if (address) {
          drawn.append(
            s(
              "a",
              { href: address, class: "point", "aria-label": `${label}; open its groups` },
              s("circle", { class: "target", cx: X(x), cy: Y(y), r: 11 }),
              s("circle", { class: colour, cx: X(x), cy: Y(y), r: 4.5 }),
              s("title", null, label),
            ),
          );
        } else if (below !== undefined || line.points.length === 1) {
          drawn.append(s("circle", { class: colour, cx: X(x), cy: Y(y), r: 3.5 }, s("title", null, label)));
        }
      }
    }
    return drawn;
  }

  // series: {name, x, y, low?, high?, href?(x) -> address or null}. share: drawn from 0 to 100 %. The chart fills its container.
  viewer.chart = (title, series, { share = false, height = 160, x: across = "iterations" } = {}) => {
    const lines = series
      .map((line, i) => {
        const kept = line.x
          .map((x, n) => [x, line.y[n], line.low?.[n], line.high?.[n]])
          .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
        return { ...line, points: kept, colour: `c${i % 6}` };
      })
      .filter((line) => line.points.length);
    if (!lines.length) return null;
    const place = h("div", { class: "drawing" });
    let width = 0;
    const fit = (wide) => {
      if (Math.abs(wide - width) < 1) return;
      width = wide;
      place.replaceChildren(draw(title, lines, width, height, share, across));
    };
    fit(320); // until the chart is on the page
    new ResizeObserver(([entry]) => {
      if (entry.contentRect.width > 60) fit(Math.floor(entry.contentRect.width));
    }).observe(place);
    const several = series.length > 1;
    const legend =
      several &&
      h(
        "p",
        { class: "legend" },
        lines.map((line) => h("span", null, h("i", { class: `key ${line.colour}` }), line.name)),
      );
    const value =
      !several &&
      h("b", null, share ? viewer.percent(lines[0].points.at(-1)[1]) : viewer.number(lines[0].points.at(-1)[1]));
    return h("figure", null, h("figcaption", null, title, " ", value), place, legend);
  };

  // A small curve in a table cell, with a dot at the last value.
  viewer.sparkline = (ys, label) => {
    const points = ys.map((y, i) => [i, y]).filter(([, y]) => Number.isFinite(y));
    const width = 96,
      height = 24,
      most = Math.max(1, ys.length - 1);
    const at = ([x, y]) =>
      `${(2 + ((width - 4) * x) / most).toFixed(1)},${(height - 2 - (height - 4) * Math.min(1, Math.max(0, y))).toFixed(1)}`;
    const [x, y] = points.length ? at(points.at(-1)).split(",") : [];
    return s(
      "svg",
      { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      s("line", { class: "axis", x1: 0, x2: width, y1: height - 2, y2: height - 2 }),
      points.length > 1 && s("polyline", { class: "line c0", points: points.map(at).join(" ") }),
      points.length > 0 && s("circle", { class: "c0", cx: x, cy: y, r: 2 }),
    );
  };
})();
