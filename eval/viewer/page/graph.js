"use strict";
// The states of a group as a graph: where its episodes diverge and meet, and which transitions lead to success.
(() => {
  const { h, s } = viewer;
  const MARGIN = 34,
    LANE = 16,
    LABEL = 10.5,
    LONGEST = 190; // of a label, in pixels

  // Nodes are states; a chain that all its episodes pass through is one node. Edges hold the episodes that took them.
  viewer.stateGraph = (episodes) => {
    const nodes = new Map(),
      edges = new Map();
    const node = (key, depth, try_) => {
      if (!nodes.has(key))
        nodes.set(key, {
          key,
          depth,
          tries: new Set(),
          states: [key],
          loops: 0,
          out: new Map(),
          in: new Map(),
          values: [],
        });
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
    for (const node of nodes.values()) node.share = share(node.tries);
    for (const edge of edges.values()) edge.share = share(edge.tries);
    for (const node of nodes.values()) {
      const ways = [...node.out.values()];
      const best = Math.max(...ways.map((way) => way.share)),
        worst = Math.min(...ways.map((way) => way.share));
      if (ways.length > 1 && best > worst)
        ways.forEach((way) => {
          way.mark = way.share === best ? "best" : "worse";
        });
    }
    return { nodes: [...nodes.values()], edges: [...edges.values()] };
  };

  function merge(nodes, edges) {
    for (const head of [...nodes.values()]) {
      if (!nodes.has(head.key)) continue;
      for (;;) {
        const [edge] = head.out.values();
        const next = edge?.to;
        if (
          head.out.size !== 1 ||
          next === head ||
          next.in.size !== 1 ||
          next.key === "won" ||
          next.key === "lost" ||
          next.depth <= head.depth
        )
          break;
        if (head.tries.size !== next.tries.size) break;
        head.states.push(...next.states);
        head.loops += next.loops;
        head.values.push(...next.values);
        for (const [name, entry] of edges) if (entry === edge) edges.delete(name);
        nodes.delete(next.key);
        head.out = next.out;
        for (const way of head.out.values()) {
          way.from = head;
          way.to.in.delete(next.key);
          way.to.in.set(head.key, way);
        }
      }
    }
  }

  // A state's layer is the first turn in which it occurs. Within a layer, states are ordered by their neighbours.
  function layout({ nodes, edges }) {
    const depths = [...new Set(nodes.filter((node) => !isEnd(node)).map((node) => node.depth))].sort((a, b) => a - b);
    const layers = depths.map((depth) => nodes.filter((node) => !isEnd(node) && node.depth === depth));
    layers.push(nodes.filter(isEnd));
    layers.forEach((layer, i) =>
      layer.forEach((node) => Object.assign(node, { layer: i, left: new Set(), right: new Set(), passed: [] })),
    );
    addStops(edges, layers);
    const number = (layer) =>
      layer.forEach((node, i) => {
        node.row = i - (layer.length - 1) / 2;
      });
    layers.forEach(number);
    for (let sweep = 0; sweep < 6; sweep += 1) {
      for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
        for (const node of layer) {
          const near = [...(sweep % 2 ? node.right : node.left)];
          node.pull = near.length ? near.reduce((sum, other) => sum + other.row, 0) / near.length : node.row;
          if (isEnd(node)) node.pull = node.key === "won" ? -1 : 1;
          node.pull -= 0.6 * (node.share - 0.5); // successful states move up
        }
        layer.sort((a, b) => a.pull - b.pull);
        number(layer);
      }
    }
    setHeights(layers);
    return layers;
  }

  // An edge over several layers has a stop in each layer between, which all edges to the same state share.
  function addStops(edges, layers) {
    for (const edge of edges) {
      const { from, to } = edge;
      edge.way = [from];
      for (let i = from.layer + 1; i < to.layer; i += 1) {
        if (!to.passed[i]) {
          to.passed[i] = { layer: i, stop: true, share: to.share, left: new Set(), right: new Set() };
          layers[i].push(to.passed[i]);
        }
        edge.way.push(to.passed[i]);
      }
      edge.way.push(to);
      if (to.layer > from.layer)
        edge.way.slice(1).forEach((stop, i) => {
          stop.left.add(edge.way[i]);
          edge.way[i].right.add(stop);
        });
    }
  }

  const room = (node) => (node.stop ? 9 : radius(node) + 19); // above and below

  // Each state and stop is as near to the height of its neighbours as the order of its layer allows.
  function setHeights(layers) {
    for (const layer of layers) {
      layer.forEach((node, i) => {
        node.offset = i ? layer[i - 1].offset + room(layer[i - 1]) + room(node) : 0;
      });
      for (const node of layer) node.y = node.offset - layer.at(-1).offset / 2;
    }
    for (let sweep = 0; sweep < 8; sweep += 1) {
      for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
        const pools = []; // neighbours that push each other and move together
        for (const node of layer) {
          const near = [...(sweep % 2 ? node.right : node.left)];
          const wish = near.length ? near.reduce((sum, other) => sum + other.y, 0) / near.length : node.y;
          let pool = { sum: wish - node.offset, all: [node] };
          while (pools.length && pools.at(-1).sum / pools.at(-1).all.length > pool.sum / pool.all.length) {
            const last = pools.pop();
            pool = { sum: last.sum + pool.sum, all: [...last.all, ...pool.all] };
          }
          pools.push(pool);
        }
        for (const { sum, all } of pools) for (const node of all) node.y = node.offset + sum / all.length;
      }
    }
    const top = Math.min(...layers.flat().map((node) => node.y - room(node)));
    for (const node of layers.flat()) node.y += MARGIN / 2 - top;
  }

  const radius = (node) => (isEnd(node) ? 15 : 7 + 2.2 * Math.sqrt(node.tries.size));
  const isEnd = (node) => node.key === "won" || node.key === "lost";
  const below = (node) => (node.states.length > 1 ? `+${viewer.times(node.states.length - 1, "turn")}` : "");
  const above = (node) => (node.loops > 0 ? `↻ ${node.loops}` : "");

  // A column begins with the labels of its states and ends with a lane for edges that lead back. Within it edges are
  // horizontal, between columns they bend, so that no edge crosses a label.
  function place({ nodes, edges }) {
    const layers = layout({ nodes, edges });
    for (const node of nodes) {
      node.half = Math.max(radius(node), viewer.textWidth(below(node), 10) / 2, viewer.textWidth(above(node), 10) / 2);
      const ways = edges.filter((way) => way.to === node && way.from.layer < node.layer);
      // Each state shows the label of its main incoming edge; the other labels appear on hover.
      [node.main] = ways.sort((a, b) => (b.mark === "best") - (a.mark === "best") || b.tries.size - a.tries.size);
      if (node.main) [node.label, node.labelled] = fitted(node.main);
    }
    let x = MARGIN / 2;
    for (const layer of layers) {
      const states = layer.filter((node) => !node.stop);
      const half = Math.max(...states.map((node) => node.half));
      const centre = x + Math.max(half, ...states.map((node) => (node.main ? node.labelled + radius(node) + 12 : 0)));
      const end = centre + half + LANE;
      for (const node of layer) Object.assign(node, { x: centre, begin: x, end });
      const steep = Math.max(0, ...layer.flatMap((node) => [...node.right].map((other) => Math.abs(other.y - node.y))));
      x = end + Math.min(90, Math.max(24, 0.4 * steep));
    }
    const bottom = Math.max(...layers.flat().map((node) => node.y + room(node))) + 6;
    const targets = [
      ...new Set(
        edges
          .filter(isBack)
          .filter((edge) => edge.to.layer < edge.from.layer)
          .map((edge) => edge.to),
      ),
    ];
    targets.forEach((node, i) => {
      node.floor = bottom + 8 * i;
    });
    return { width: Math.ceil(layers.at(-1)[0].end), height: Math.ceil(bottom + 8 * targets.length) };
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

  const thickness = (edge) => (isBack(edge) ? 1.6 : 1.4 + 1.9 * Math.sqrt(edge.tries.size));
  const isBack = (edge) => edge.to.layer <= edge.from.layer;

  // Straight lines between points with rounded corners.
  function rounded(points) {
    const toward = ([x, y], [a, b]) => {
      const far = Math.hypot(a - x, b - y) || 1,
        step = Math.min(8, far / 2);
      return `${x + ((a - x) * step) / far},${y + ((b - y) * step) / far}`;
    };
    return points
      .map((point, i) => {
        if (i === 0) return `M${point}`;
        return i === points.length - 1
          ? `L${point}`
          : `L${toward(point, points[i - 1])} Q${point} ${toward(point, points[i + 1])}`;
      })
      .join(" ");
  }

  function path(edge) {
    const { from, to } = edge;
    if (isBack(edge)) {
      const [down, up] = [from, to].map((node) => node.end - LANE / 2);
      const turns =
        to.layer === from.layer
          ? [
              [down, from.y],
              [down, to.y],
            ]
          : [
              [down, from.y],
              [down, to.floor],
              [up, to.floor],
              [up, to.y],
            ];
      return rounded([[from.x, from.y], ...turns, [to.x, to.y]]);
    }
    return (
      edge.way.slice(1).reduce((drawn, stop, i) => {
        const before = edge.way[i],
          middle = (before.end + stop.begin) / 2;
        return `${drawn} H${before.end} C${middle},${before.y} ${middle},${stop.y} ${stop.begin},${stop.y}`;
      }, `M${from.x},${from.y}`) + ` H${to.x}`
    );
  }

  viewer.drawGraph = (episodes, choose) => {
    const graph = viewer.stateGraph(episodes);
    if (!graph.nodes.length) return null;
    const size = place(graph);
    const caption = `${graph.nodes.length} states, ${graph.edges.length} transitions; blue ones lead to success more often, orange ones less often`;
    const drawn = s("svg", {
      class: "graph",
      viewBox: `0 0 ${size.width} ${size.height}`,
      width: size.width,
      height: size.height,
      role: "group",
      "aria-label": `Graph of the group's states: ${caption}`,
    });
    const marks = s("g"),
      labels = s("g"),
      dots = s("g"),
      names = s("g");
    for (const edge of graph.edges.sort((a, b) => a.tries.size - b.tries.size)) {
      const [action] = [...edge.actions].sort((a, b) => b[1] - a[1])[0];
      const count = edge.tries.size,
        wins = Math.round(edge.share * count);
      const others = edge.actions.size > 1 ? ` and ${edge.actions.size - 1} other` : "";
      marks.append(
        s(
          "path",
          {
            class: `way share${viewer.bucket(edge.share)} ${edge.mark || ""} ${isBack(edge) ? "back" : ""}`,
            d: path(edge),
            "stroke-width": thickness(edge).toFixed(1),
          },
          s("title", null, `${viewer.visible(action)}${others}: ${wins} of ${count} succeed`),
        ),
      );
    }
    for (const node of graph.nodes) {
      if (node.main)
        labels.append(
          s(
            "text",
            {
              class: `label ${node.main.mark || ""}`,
              x: node.x - radius(node) - 7,
              y: node.y - 5 - thickness(node.main) / 2,
              "text-anchor": "end",
            },
            node.label,
          ),
        );
    }
    for (const node of graph.nodes) {
      const value = node.values.length ? node.values.reduce((a, b) => a + b, 0) / node.values.length : NaN;
      const count = node.tries.size;
      const name = isEnd(node)
        ? node.key === "won"
          ? "success"
          : "no success"
        : `state with value ${viewer.number(value)}`;
      const label = `${name}, ${viewer.times(count, "episode")}, ${viewer.percent(node.share)} succeed${node.states.length > 1 ? `, ${node.states.length} turns in a row` : ""}`;
      const r = radius(node);
      const shape = s(
        "g",
        {
          class: `place share${viewer.bucket(node.share)} ${isEnd(node) ? node.key : ""}`,
          transform: `translate(${node.x},${node.y})`,
        },
        s("circle", { r }),
        s("title", null, label),
      );
      names.append(
        s(
          "g",
          {
            class: `name share${viewer.bucket(node.share)} ${isEnd(node) ? node.key : ""}`,
            transform: `translate(${node.x},${node.y})`,
            "aria-hidden": "true",
          },
          isEnd(node)
            ? s("text", { y: 5, "text-anchor": "middle" }, node.key === "won" ? "✓" : "✗")
            : s("text", { y: 4, "text-anchor": "middle" }, count),
          below(node) && s("text", { class: "more", y: r + 12, "text-anchor": "middle" }, below(node)),
          above(node) && s("text", { class: "more", y: -r - 4, "text-anchor": "middle" }, above(node)),
        ),
      );
      if (isEnd(node)) {
        shape.setAttribute("role", "img");
        shape.setAttribute("aria-label", label);
        dots.append(shape);
      } else {
        const act = () => choose(node.states.map(Number));
        shape.setAttribute("role", "button");
        shape.setAttribute("tabindex", "0");
        shape.setAttribute("aria-label", label);
        shape.addEventListener("click", act);
        shape.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            act();
          }
        });
        dots.append(shape);
      }
    }
    drawn.append(marks, dots, names, labels);
    return h(
      "figure",
      null,
      h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Graph of the group's states" }, drawn),
      h(
        "figcaption",
        null,
        h(
          "ul",
          { class: "legend" },
          legend(graph).map((item) => h("li", null, item)),
        ),
      ),
    );
  };

  // What the marks of a graph mean, only those that it has.
  const legend = ({ nodes, edges }) =>
    [
      "Circles: states, with the number of episodes that reached them. Click one to highlight its turns below.",
      [
        "Lines from left to right: actions. ",
        h(
          "span",
          { class: "scale" },
          "none succeed",
          [0, 1, 2, 3, 4].map((i) => h("i", { class: `key share${i}` })),
          "all succeed",
        ),
      ],
      "2/8: of 8 episodes that took the action, 2 succeed.",
      edges.some((edge) => edge.mark) && "★: the better choice where episodes diverge.",
      edges.some(isBack) && "Dotted lines: back to an earlier state.",
      nodes.some(above) && "↻ 12: 12 turns that did not leave the state.",
      nodes.some(below) && "+6 turns: the circle stands for a chain of states, 6 turns longer.",
    ].filter(Boolean);
})();
