"use strict";
// Line charts whose points may be links: the way from a curve to the episodes behind it.
(() => {
  const { h, s } = viewer;
  const LEFT = 46, RIGHT = 14, TOP = 12, BOTTOM = 26;

  function ticks(low, high, most) {
    const power = Math.floor(Math.log10((high - low) / most));
    for (const exponent of [power, power + 1, power + 2]) {
      for (const factor of [1, 2, 5]) {
        const step = factor * 10 ** exponent;
        const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
        if (last - first < most) return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
      }
    }
    return [low];
  }

  // series: {name, x, y, low?, high?, href?(x) -> address or null}. share: drawn from 0 to 100 %.
  viewer.chart = (title, series, { share = false, width = 340, height = 160, x: across = "iterations" } = {}) => {
    const lines = series.map((one) => {
      const kept = one.x.map((x, i) => [x, one.y[i], one.low?.[i], one.high?.[i]]).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
      return { ...one, points: kept };
    }).filter((one) => one.points.length);
    if (!lines.length) return null;
    const all = lines.flatMap((one) => one.points);
    let [left, right] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
    if (right - left < 1e-9) { left -= 1; right += 1; }
    let low = Math.min(...all.map((p) => p[1])), high = Math.max(...all.map((p) => p[1]));
    if (share && high > 0.3) [low, high] = [0, 1];
    else if (high - low < 1e-12 * Math.max(1, Math.abs(high))) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
    else { const pad = (high - low) * 0.08; low = share ? Math.min(0, low) : low - pad; high += pad; }
    const X = (x) => LEFT + ((width - LEFT - RIGHT) * (x - left)) / (right - left);
    const Y = (y) => height - BOTTOM - ((height - BOTTOM - TOP) * (Math.min(high, Math.max(low, y)) - low)) / (high - low);
    const last = lines.map((one) => `${one.name} ${share ? viewer.percent(one.points.at(-1)[1]) : viewer.number(one.points.at(-1)[1])}`);
    const linked = lines.some((one) => one.href);
    const drawn = s("svg", { viewBox: `0 0 ${width} ${height}`, role: linked ? "group" : "img", "aria-label": `${title}; last: ${last.join(", ")}` });
    for (const y of ticks(low, high, 5)) {
      drawn.append(s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: Y(y), y2: Y(y) }),
        s("text", { x: LEFT - 6, y: Y(y) + 4, "text-anchor": "end" }, share ? `${Math.round(100 * y)} %` : viewer.number(y)));
    }
    for (const x of ticks(left, right, 7)) {
      if (Number.isInteger(Math.round(x * 1e6) / 1e6)) drawn.append(s("text", { x: X(x), y: height - 8, "text-anchor": "middle" }, viewer.number(x, 6)));
    }
    lines.forEach((one, i) => {
      const colour = `c${i % 6}`;
      if (one.points.length > 1) drawn.append(s("polyline", { class: `line ${colour}`, points: one.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" ") }));
      for (const [x, y, below, above] of one.points) {
        if (below !== undefined) drawn.append(s("line", { class: `range ${colour}`, x1: X(x), x2: X(x), y1: Y(below), y2: Y(above) }));
        const address = one.href?.(x);
        const label = `${one.name}, ${across === "iterations" ? "iteration" : across} ${viewer.number(x, 6)}: ${share ? viewer.percent(y) : viewer.number(y)}`;
        if (address) {
          drawn.append(s("a", { href: address, class: "point", "aria-label": `${label}; open its groups` },
            s("circle", { class: "target", cx: X(x), cy: Y(y), r: 11 }), s("circle", { class: colour, cx: X(x), cy: Y(y), r: 4.5 }), s("title", null, label)));
        } else if (below !== undefined || one.points.length === 1) {
          drawn.append(s("circle", { class: colour, cx: X(x), cy: Y(y), r: 3.5 }, s("title", null, label)));
        }
      }
    });
    const legend = lines.length > 1 && h("p", { class: "legend" }, lines.map((one, i) => h("span", null, h("i", { class: `key c${i % 6}` }), one.name)));
    const value = lines.length === 1 && h("b", null, share ? viewer.percent(lines[0].points.at(-1)[1]) : viewer.number(lines[0].points.at(-1)[1]));
    return h("figure", null, h("figcaption", null, title, " ", value), drawn, legend);
  };
})();
