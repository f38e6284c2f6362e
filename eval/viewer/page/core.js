"use strict";
// Elements, text and numbers. Text from files becomes text nodes and is never parsed as HTML.
const viewer = {};

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LONGEST = 4000;
  const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
      else if (name.startsWith("--")) node.style.setProperty(name, value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child === undefined || child === null || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return node;
  }

  viewer.h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  viewer.s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // Control, format and direction-changing characters become visible escapes.
  viewer.visible = (text) =>
    String(text).replace(INVISIBLE, (c) => {
      if (c === "\n" || c === "\t") return c;
      const code = c.codePointAt(0).toString(16);
      return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
    });

  // A text in one line of at most `most` letters. Four times as many are read, as some become escapes or blanks.
  viewer.short = (text, most) => {
    const beginning = viewer.visible(String(text).slice(0, 4 * most));
    const letters = Array.from(beginning.replace(/\s+/g, " ").trim());
    return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
  };

  // The beginning of a text, and a button that shows the rest. A long text can be scrolled with the keyboard.
  viewer.passage = (text, label) => {
    if (text.length <= LONGEST) return viewer.h("pre", null, viewer.visible(text));
    const attributes = { tabindex: 0, role: "region", "aria-label": label };
    const box = viewer.h("pre", attributes, viewer.visible(text.slice(0, LONGEST)));
    const remaining = (text.length - LONGEST).toLocaleString("en");
    const more = viewer.h("button", { type: "button" }, `Show ${remaining} more characters`);
    more.addEventListener("click", () => {
      box.textContent = viewer.visible(text);
      more.remove();
    });
    return viewer.h("div", null, box, more);
  };

  // A line that is a tool call as name(argument: value, ...). Any other line is returned unchanged.
  function callLine(line) {
    try {
      const { name, arguments: values } = JSON.parse(line);
      if (typeof name !== "string" || typeof values !== "object" || values === null) return line;
      const parts = Object.entries(values).map(([key, value]) => `${key}: ${JSON.stringify(value)}`);
      return `${name}(${parts.join(", ")})`;
    } catch {
      return line; // not JSON
    }
  }

  viewer.callText = (action) => action.split("\n").map(callLine).join("\n");
  viewer.shortAction = (action, most) => viewer.short(viewer.callText(action), most);

  // Mark a box while its content does not fit, so that the page says that it scrolls.
  viewer.scrolls = (box) => {
    const check = () => {
      box.toggleAttribute("data-scrolls-x", box.scrollWidth > box.clientWidth + 1);
      box.toggleAttribute("data-scrolls-y", box.scrollHeight > box.clientHeight + 1);
    };
    const sizes = new ResizeObserver(check);
    const watch = () => {
      for (const part of [box, ...box.children]) sizes.observe(part);
      check();
    };
    new MutationObserver(watch).observe(box, { childList: true });
    watch();
    return box;
  };

  // A box that scrolls sideways and can be reached with the keyboard.
  viewer.scroller = (attributes, ...children) =>
    viewer.scrolls(viewer.h("div", { class: "wide", tabindex: 0, role: "region", ...attributes }, ...children));
  viewer.region = (label, ...children) => viewer.scroller({ "aria-label": label }, ...children);

  viewer.percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "-");
  viewer.number = (value, digits = 3) => {
    if (!Number.isFinite(value)) return "-";
    if (value && Math.abs(value) < 1e-4) return value.toExponential(digits - 1);
    if (Math.abs(value) >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(digits)));
  };
  viewer.signed = (value) => {
    if (!Number.isFinite(value)) return "-";
    const signs = { 1: "+", [-1]: "−" };
    return (signs[Math.sign(value)] ?? "") + Math.abs(value).toFixed(2);
  };
  viewer.times = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

  // What a run is judged by: mean reward where rewards are graded, success, or both. metric: its name in training.
  const range = (text) => ({ low, high }) =>
    Number.isFinite(low) && Number.isFinite(high) ? `[${text(low)}, ${text(high)}]` : "";
  const MEASURES = [
    { key: "reward", name: "mean reward", title: "Mean reward", metric: "reward_mean", share: false },
    { key: "success", name: "success", title: "Success", metric: "success_rate", share: true },
  ];
  MEASURES[0].text = (value) => viewer.number(value);
  MEASURES[1].text = (value) => viewer.percent(value);
  MEASURES[0].range = range((value) => viewer.number(value));
  MEASURES[1].range = range((value) => (100 * value).toFixed(1));

  // The measures of some runs, by default of all; the first one decides the order of tables.
  viewer.measures = (runs = viewer.data.runs) =>
    MEASURES.filter(({ key }) => runs.some((run) => run.shows.includes(key)));

  // One of five colours for a success rate: 0 is worst, 4 is best.
  viewer.bucket = (share) => (Number.isFinite(share) ? Math.min(4, Math.floor(share * 5)) : 2);

  viewer.bar = (share, label) =>
    viewer.h(
      "span",
      { class: "bar", role: "img", "aria-label": label || viewer.percent(share), "--share": share },
      viewer.h("span", { class: `fill share${viewer.bucket(share)}` }),
    );

  viewer.link = (parts, query) => {
    const path = "#/" + parts.map(encodeURIComponent).join("/");
    const pairs = Object.entries(query || {}).filter(
      ([, value]) => value !== "" && value !== undefined && value !== null,
    );
    return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
  };

  // Radio buttons. options: [value, label]; pick: called with the value.
  viewer.choice = (name, options, current, pick) => {
    const buttons = options.map(([value, label]) => {
      const attributes = { type: "radio", name, value, checked: value === current, onchange: () => pick(value) };
      return viewer.h("label", null, viewer.h("input", attributes), label);
    });
    return viewer.h("fieldset", { class: "choice" }, viewer.h("legend", null, name), buttons);
  };
})();
