"use strict";
// Line charts. A point may link to the episodes behind it.
(() => {
  const { h, s } = viewer;
  const RIGHT = 14; // margins in pixels
  const TOP = 12;
  const BOTTOM = 26;

  // At most `most` round numbers between two values, and the step between them.
  function ticks(low, high, most) {
    const power = Math.floor(Math.log10((high - low) / most));
    for (const exponent of [power, power + 1, power + 2]) {
      for (const factor of [1, 2, 5]) {
        const step = factor * 10 ** exponent;
        const first = Math.ceil(low / step - 1e-9); // a tick on the edge counts despite rounding
        const last = Math.floor(high / step + 1e-9);
        if (last - first < most) {
          return { step, values: Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step) };
        }
      }
    }
    return { step: high - low, values: [low] };
  }

  // Enough digits to tell neighbouring ticks apart.
  function tickText(value, step, share) {
    const scaled = share ? 100 * value : value;
    const digits = Math.min(12, Math.max(0, -Math.floor(Math.log10(share ? 100 * step : step) + 1e-9)));
    if (!share && scaled && (digits > 4 || Math.abs(scaled) >= 1e6)) {
      const precision = Math.max(0, Math.floor(Math.log10(Math.abs(scaled)) + digits));
      return scaled.toExponential(precision).replace("e+", "e");
    }
    const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return scaled.toLocaleString("en", options) + (share ? " %" : "");
  }

  // The width of a text in pixels.
  const pen = document.createElement("canvas").getContext("2d");
  viewer.textWidth = (text, size, weight = 400) => {
    pen.font = `${weight} ${size}px system-ui, sans-serif`;
    return pen.measureText(text).width;
  };

  // Whole numbers for the labels of the x axis, as many as fit into `width` pixels without touching.
  function columns(left, right, width) {
    for (let most = 9; most > 1; most -= 1) {
      const numbers = ticks(left, right, most)
        .values.map((x) => Math.round(x * 1e6) / 1e6)
        .filter(Number.isInteger);
      if (numbers.length < 2) return numbers;
      const widest = Math.max(...numbers.map((x) => viewer.textWidth(viewer.number(x, 6), 12)));
      const available = width * ((numbers.at(-1) - numbers[0]) / (right - left));
      if ((widest + 12) * (numbers.length - 1) <= available) return numbers;
    }
    return [];
  }

  // The ranges of x and y that a chart shows. A constant curve gets a range around it.
  function limits(points, share) {
    let left = Math.min(...points.map(([x]) => x));
    let right = Math.max(...points.map(([x]) => x));
    if (right - left < 1e-9) {
      left -= 1;
      right += 1;
    }
    const low = Math.min(...points.map(([, y]) => y));
    const high = Math.max(...points.map(([, y]) => y));
    if (share && high > 0.3) return { left, right, low: 0, high: 1 };
    if (share && low >= 0 && high - low < 1e-12) return { left, right, low: 0, high: Math.max(0.1, 1.1 * high) };
    if (high - low < 1e-12 * Math.max(1, Math.abs(high))) {
      return { left, right, low: low - (Math.abs(low) || 1) / 10, high: high + (Math.abs(high) || 1) / 10 };
    }
    const padding = (high - low) * 0.08;
    return { left, right, low: share ? Math.min(0, low) : low - padding, high: high + padding };
  }

  // A vertical line for an interval, and a dot that links to its episodes.
  function pointMarks(chart, line, [x, y, below, above]) {
    const { X, Y, across, valueText } = chart;
    const { colour } = line;
    const marks = [];
    if (below !== undefined) {
      marks.push(s("line", { class: `range ${colour}`, x1: X(x), x2: X(x), y1: Y(below), y2: Y(above) }));
    }
    const address = line.href?.(x);
    const name = across === "iterations" ? "iteration" : across;
    const label = `${line.name}, ${name} ${viewer.number(x, 6)}: ${valueText(y)}`;
    const dot = (r, ...children) => s("circle", { class: colour, cx: X(x), cy: Y(y), r }, ...children);
    if (address) {
      const attributes = { href: address, class: "point", "aria-label": `${label}; open its groups` };
      const target = s("circle", { class: "target", cx: X(x), cy: Y(y), r: 11 }); // large enough for a finger
      marks.push(s("a", attributes, target, dot(4.5), s("title", null, label)));
    } else if (below !== undefined || line.points.length === 1) {
      marks.push(dot(3.5, s("title", null, label)));
    }
    return marks;
  }

  function lineMarks(chart, line) {
    const { X, Y } = chart;
    const points = line.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" ");
    const polyline = line.points.length > 1 ? [s("polyline", { class: `line ${line.colour}`, points })] : [];
    return [...polyline, ...line.points.flatMap((point) => pointMarks(chart, line, point))];
  }

  // One user unit is one pixel, so text has the same size on every screen.
  function draw(title, lines, width, { height, share, across }) {
    const points = lines.flatMap((line) => line.points);
    // Intervals are part of what is drawn, so the axis includes them where it has no fixed limits.
    const ends = ([x, , below, above]) => [below, above].filter(Number.isFinite).map((y) => [x, y]);
    const { left, right, low, high } = limits(share ? points : [...points, ...points.flatMap(ends)], share);
    const rows = ticks(low, high, 5);
    const rowLabels = rows.values.map((y) => [y, tickText(y, rows.step, share)]);
    const margin = Math.ceil(Math.max(...rowLabels.map(([, text]) => viewer.textWidth(text, 12)))) + 10;
    const plotWidth = width - margin - RIGHT;
    const plotHeight = height - BOTTOM - TOP;
    const chart = {
      X: (x) => margin + (plotWidth * (x - left)) / (right - left),
      Y: (y) => height - BOTTOM - (plotHeight * (Math.min(high, Math.max(low, y)) - low)) / (high - low),
      across,
      valueText: (y) => (share ? viewer.percent(y) : viewer.number(y)),
    };
    const { X, Y, valueText } = chart;
    const lastValues = lines.map((line) => `${line.name} ${valueText(line.points.at(-1)[1])}`);
    const grid = rowLabels.map(([y, text]) => [
      s("line", { class: "axis", x1: margin, x2: width - RIGHT, y1: Y(y), y2: Y(y) }),
      s("text", { x: margin - 6, y: Y(y) + 4, "text-anchor": "end" }, text),
    ]);
    const xLabels = columns(left, right, plotWidth).map((x) =>
      s("text", { x: X(x), y: height - 8, "text-anchor": "middle" }, viewer.number(x, 6)),
    );
    const attributes = {
      class: "chart",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: lines.some((line) => line.href) ? "group" : "img",
      "aria-label": `${title}; last: ${lastValues.join(", ")}`,
    };
    return s(
      "svg",
      attributes,
      grid,
      xLabels,
      lines.map((line) => lineMarks(chart, line)),
    );
  }

  // The points of a line that have finite numbers, and its colour: that of its number unless it has one.
  function finiteLine(line, i) {
    const points = line.x
      .map((x, n) => [x, line.y[n], line.low?.[n], line.high?.[n]])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
    return { ...line, points, colour: `c${(line.colour ?? i) % 6}` };
  }

  // series: {name, x, y, low?, high?, href?(x) -> address or null}. share: drawn from 0 to 100 %. The chart fills its
  // container, so it is drawn again when that has another width.
  viewer.chart = (title, series, { share = false, height = 160, x: across = "iterations" } = {}) => {
    const lines = series.map(finiteLine).filter((line) => line.points.length);
    if (!lines.length) return null;
    const drawing = h("div", { class: "drawing" });
    let width = 0;
    const fit = (newWidth) => {
      if (Math.abs(newWidth - width) < 1) return;
      width = newWidth;
      drawing.replaceChildren(draw(title, lines, width, { height, share, across }));
    };
    fit(320); // until the chart is on the page
    new ResizeObserver(([entry]) => {
      if (entry.contentRect.width > 60) fit(Math.floor(entry.contentRect.width));
    }).observe(drawing);
    if (series.length > 1) {
      const named = new Map(lines.map((line) => [line.name, line.colour])); // lines of one name have one colour
      const keys = [...named].map(([name, colour]) => h("span", null, h("i", { class: `key ${colour}` }), name));
      const legend = h("p", { class: "legend" }, keys);
      return h("figure", null, h("figcaption", null, title, " "), drawing, legend);
    }
    const lastValue = lines[0].points.at(-1)[1];
    const value = h("b", null, share ? viewer.percent(lastValue) : viewer.number(lastValue));
    return h("figure", null, h("figcaption", null, title, " ", value), drawing);
  };

  // A small curve in a table cell, with a dot at the last value: from 0 to 100 %, or from the lowest to the highest.
  viewer.sparkline = (values, label, share = true) => {
    const points = values.map((y, i) => [i, y]).filter(([, y]) => Number.isFinite(y));
    const width = 96;
    const height = 24;
    const lastIndex = Math.max(1, values.length - 1);
    const X = (i) => (2 + ((width - 4) * i) / lastIndex).toFixed(1);
    const low = share ? 0 : Math.min(...points.map(([, y]) => y));
    const high = share ? 1 : Math.max(...points.map(([, y]) => y));
    const part = (y) => Math.min(1, Math.max(0, (y - low) / (high - low || 1)));
    const Y = (y) => (height - 2 - (height - 4) * part(y)).toFixed(1);
    const line = points.map(([i, y]) => `${X(i)},${Y(y)}`).join(" ");
    const [i, y] = points.at(-1) ?? [];
    return s(
      "svg",
      { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      s("line", { class: "axis", x1: 0, x2: width, y1: height - 2, y2: height - 2 }),
      points.length > 1 && s("polyline", { class: "line c0", points: line }),
      points.length > 0 && s("circle", { class: "c0", cx: X(i), cy: Y(y), r: 2 }),
    );
  };
})();
