"use strict";
// The states of a group as a graph: where its episodes diverge and meet, and which transitions lead to success.
(() => {
  const { h, s } = viewer;
  const MARGIN = 34, LABEL = 10.5, LONGEST = 190; // of a label, in pixels

  // Nodes are states; a chain that all its episodes pass through is one node. Edges hold the episodes that took them.
  viewer.stateGraph = (episodes) => {
    const nodes = new Map(), edges = new Map();
    const node = (key, depth, try_) => {
      if (!nodes.has(key)) nodes.set(key, { key, depth, tries: new Set(), states: [key], loops: 0, out: new Map(), in: new Map(), values: [] });
      const found = nodes.get(key);
      found.depth = Math.min(found.depth, depth);
      found.tries.add(try_);
      return found;
    };
    episodes.forEach((episode, number) => {
      if (!episode.states?.length) return;
      let before = null;
      const path = [...episode.states.map(String), episode.success && episode.outcome !== "failed" ? "won" : "lost"];
      path.forEach((key, depth) => {
        const here = node(key, depth, number);
        if (episode.values?.[depth] !== undefined) here.values.push(episode.values[depth]);
        if (before) {
          const action = episode.turns[depth - 1].action;
          if (before === here) here.loops += 1;
          else {
            const name = `${before.key} ${key}`;
            if (!edges.has(name)) {
              edges.set(name, { from: before, to: here, tries: new Set(), actions: new Map() });
              before.out.set(key, edges.get(name));
              here.in.set(before.key, edges.get(name));
            }
            const edge = edges.get(name);
            edge.tries.add(number);
            edge.actions.set(action, (edge.actions.get(action) || 0) + 1);
          }
        }
        before = here;
      });
    });
    const won = episodes.map((episode) => Boolean(episode.success && episode.outcome !== "failed"));
    const share = (tries) => [...tries].filter((number) => won[number]).length / tries.size;
    merge(nodes, edges);
    for (const one of nodes.values()) one.share = share(one.tries);
    for (const one of edges.values()) one.share = share(one.tries);
    for (const one of nodes.values()) {
      const ways = [...one.out.values()];
      const best = Math.max(...ways.map((way) => way.share)), worst = Math.min(...ways.map((way) => way.share));
      if (ways.length > 1 && best > worst) ways.forEach((way) => { way.mark = way.share === best ? "best" : "worse"; });
    }
    return { nodes: [...nodes.values()], edges: [...edges.values()] };
  };

  function merge(nodes, edges) {
    for (const head of [...nodes.values()]) {
      if (!nodes.has(head.key)) continue;
      for (;;) {
        const [edge] = head.out.values();
        const next = edge?.to;
        if (head.out.size !== 1 || next === head || next.in.size !== 1 || next.key === "won" || next.key === "lost" || next.depth <= head.depth) break;
        if (head.tries.size !== next.tries.size) break;
        head.states.push(...next.states);
        head.loops += next.loops;
        head.values.push(...next.values);
        for (const [name, one] of edges) if (one === edge) edges.delete(name);
        nodes.delete(next.key);
        head.out = next.out;
        for (const way of head.out.values()) { way.from = head; way.to.in.delete(next.key); way.to.in.set(head.key, way); }
      }
    }
  }

  // A state's layer is the first turn in which it occurs. Within a layer, states are ordered by their neighbours.
  function layout({ nodes, edges }) {
    const depths = [...new Set(nodes.filter((one) => !isEnd(one)).map((one) => one.depth))].sort((a, b) => a - b);
    const layers = depths.map((depth) => nodes.filter((one) => !isEnd(one) && one.depth === depth));
    layers.push(nodes.filter(isEnd).sort((a) => (a.key === "won" ? -1 : 1)));
    layers.forEach((layer, i) => layer.forEach((one) => { one.layer = i; }));
    layers[0].forEach((one, i) => { one.row = i; });
    const centre = (layer) => layer.forEach((one, i) => { one.row = i - (layer.length - 1) / 2; });
    layers.forEach(centre);
    for (let sweep = 0; sweep < 6; sweep += 1) {
      const order = sweep % 2 ? [...layers].reverse() : layers;
      for (const layer of order) {
        for (const one of layer) {
          const near = (sweep % 2 ? [...one.out.values()].map((way) => way.to) : [...one.in.values()].map((way) => way.from)).filter((other) => other.layer !== one.layer);
          one.pull = near.length ? near.reduce((sum, other) => sum + other.row, 0) / near.length : one.row;
          if (isEnd(one)) one.pull = one.key === "won" ? -1 : 1;
          one.pull -= 0.6 * (one.share - 0.5); // successful states move up
        }
        layer.sort((a, b) => a.pull - b.pull);
        centre(layer);
      }
    }
    return layers;
  }

  const radius = (node) => (isEnd(node) ? 15 : 7 + 2.2 * Math.sqrt(node.tries.size));
  const isEnd = (node) => node.key === "won" || node.key === "lost";
  const below = (node) => (node.states.length > 1 ? `+${viewer.times(node.states.length - 1, "turn")}` : "");
  const above = (node) => (node.loops > 0 ? `↻ ${node.loops}` : "");

  // Columns are far enough apart for a label between them.
  function place({ nodes, edges }) {
    const layers = layout({ nodes, edges });
    for (const node of nodes) {
      node.half = Math.max(radius(node), viewer.textWidth(below(node), 10) / 2, viewer.textWidth(above(node), 10) / 2);
      const ways = [...node.in.values()].filter((way) => way.to.layer > way.from.layer);
      // Each state shows the label of its main incoming edge; the other labels appear on hover.
      [node.main] = ways.sort((a, b) => (b.mark === "best") - (a.mark === "best") || b.tries.size - a.tries.size);
      if (node.main) [node.label, node.labelled] = fitted(node.main);
    }
    let x = MARGIN;
    layers.forEach((layer, i) => {
      const half = Math.max(...layer.map((one) => one.half));
      const before = Math.max(60, ...layer.map((one) => (one.main ? one.labelled + radius(one) + 12 : 0)), half + 6);
      x += i ? before : half;
      for (const one of layer) one.x = x;
      x += half + 6; // the column's right edge
    });
    const rows = nodes.map((one) => one.row);
    const top = Math.min(...rows), bottom = Math.max(...rows);
    const high = Math.max(56, 2 * Math.max(...nodes.map(radius)) + 34);
    for (const one of nodes) one.y = MARGIN + 14 + (one.row - top) * high;
    const back = edges.some((edge) => edge.to.layer <= edge.from.layer);
    return { width: Math.ceil(x + MARGIN - 6), height: 2 * MARGIN + 28 + (bottom - top) * high + (back ? 40 : 0) };
  }

  // The label of an edge, cut to fit, and its width.
  function fitted(edge) {
    const [action] = [...edge.actions].sort((a, b) => b[1] - a[1])[0];
    const wins = Math.round(edge.share * edge.tries.size);
    const weight = edge.mark === "best" ? 700 : 400;
    for (let letters = 40; ; letters -= 1) {
      const text = `${edge.mark === "best" ? "★ " : ""}${viewer.short(action || "(no action)", letters)} ${wins}/${edge.tries.size}`;
      const width = viewer.textWidth(text, LABEL, weight);
      if (width <= LONGEST || letters < 2) return [text, width];
    }
  }

  function path(edge, floor) {
    const { from, to } = edge;
    if (to.layer > from.layer) {
      const bend = (to.x - from.x) / 2;
      return `M${from.x},${from.y} C${from.x + bend},${from.y} ${to.x - bend},${to.y} ${to.x},${to.y}`;
    }
    const deep = Math.min(floor, Math.max(from.y, to.y) + 46);
    return `M${from.x},${from.y} C${from.x + 40},${deep} ${to.x - 40},${deep} ${to.x},${to.y}`;
  }

  viewer.drawGraph = (episodes, choose) => {
    const graph = viewer.stateGraph(episodes);
    if (!graph.nodes.length) return null;
    const size = place(graph);
    const caption = `${graph.nodes.length} states, ${graph.edges.length} transitions; blue ones lead to success more often, orange ones less often`;
    const drawn = s("svg", { class: "graph", viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "group", "aria-label": `Graph of the group's states: ${caption}` });
    const marks = s("g"), labels = s("g"), dots = s("g"), names = s("g");
    for (const edge of graph.edges.sort((a, b) => a.tries.size - b.tries.size)) {
      const [action] = [...edge.actions].sort((a, b) => b[1] - a[1])[0];
      const count = edge.tries.size, wins = Math.round(edge.share * count);
      const others = edge.actions.size > 1 ? ` and ${edge.actions.size - 1} other` : "";
      marks.append(s("path", { class: `way share${viewer.bucket(edge.share)} ${edge.mark || ""} ${edge.to.layer > edge.from.layer ? "" : "back"}`, d: path(edge, size.height - 8), "stroke-width": (1.4 + 1.9 * Math.sqrt(count)).toFixed(1) },
        s("title", null, `${viewer.visible(action)}${others}: ${wins} of ${count} succeed`)));
    }
    for (const node of graph.nodes) {
      if (node.main) labels.append(s("text", { class: `label ${node.main.mark || ""}`, x: node.x - radius(node) - 7, y: node.y - 6, "text-anchor": "end" }, node.label));
    }
    for (const node of graph.nodes) {
      const value = node.values.length ? node.values.reduce((a, b) => a + b, 0) / node.values.length : NaN;
      const count = node.tries.size;
      const name = isEnd(node) ? (node.key === "won" ? "success" : "no success") : `state with value ${viewer.number(value)}`;
      const label = `${name}, ${viewer.times(count, "episode")}, ${viewer.percent(node.share)} succeed${node.states.length > 1 ? `, ${node.states.length} turns in a row` : ""}`;
      const r = radius(node);
      const shape = s("g", { class: `place share${viewer.bucket(node.share)} ${isEnd(node) ? node.key : ""}`, transform: `translate(${node.x},${node.y})` },
        s("circle", { r }), s("title", null, label));
      names.append(s("g", { class: `name share${viewer.bucket(node.share)} ${isEnd(node) ? node.key : ""}`, transform: `translate(${node.x},${node.y})`, "aria-hidden": "true" },
        isEnd(node) ? s("text", { y: 5, "text-anchor": "middle" }, node.key === "won" ? "✓" : "✗") : s("text", { y: 4, "text-anchor": "middle" }, count),
        below(node) && s("text", { class: "more", y: r + 12, "text-anchor": "middle" }, below(node)),
        above(node) && s("text", { class: "more", y: -r - 4, "text-anchor": "middle" }, above(node))));
      if (isEnd(node)) { shape.setAttribute("role", "img"); shape.setAttribute("aria-label", label); dots.append(shape); } else {
        const act = () => choose(node.states.map(Number));
        shape.setAttribute("role", "button");
        shape.setAttribute("tabindex", "0");
        shape.setAttribute("aria-label", label);
        shape.addEventListener("click", act);
        shape.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } });
        dots.append(shape);
      }
    }
    drawn.append(marks, dots, names, labels);
    return h("figure", null,
      h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Graph of the group's states" }, drawn),
      h("figcaption", null, "Circles are states, with the number of episodes that reached them. Arrows point from left to right. ",
        h("span", { class: "scale" }, "none succeed", [0, 1, 2, 3, 4].map((i) => h("i", { class: `key share${i}` })), "all succeed"),
        " ★ marks the better choice where episodes diverge. Click a circle to highlight its turns below."));
  };
})();
