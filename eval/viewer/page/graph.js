"use strict";
// The states of a group as a graph: where its episodes diverge and meet, and which transitions lead to success.
(() => {
  const { h, s } = viewer;
  const MARGIN = 34;
  const LANE = 16;
  const LABEL_SIZE = 10.5; // pixels
  const MAX_LABEL_WIDTH = 190; // pixels

  const newNode = (key, depth) => ({
    key,
    depth,
    episodes: new Set(),
    states: [key],
    loops: 0,
    out: new Map(),
    in: new Map(),
    values: [],
  });

  // Add the path of an episode. Its last node is "won" or "lost".
  function addEpisode(nodes, edges, episode, number) {
    if (!episode.states?.length) return;
    let before = null;
    const path = [...episode.states.map(String), episode.good ? "won" : "lost"];
    path.forEach((key, depth) => {
      if (!nodes.has(key)) nodes.set(key, newNode(key, depth));
      const node = nodes.get(key);
      node.depth = Math.min(node.depth, depth);
      node.episodes.add(number);
      if (episode.values?.[depth] !== undefined) node.values.push(episode.values[depth]);
      if (before === node) node.loops += 1;
      else if (before) addStep(edges, before, node, number, episode.turns[depth - 1].action);
      before = node;
    });
  }

  function addStep(edges, from, to, number, action) {
    const name = `${from.key} ${to.key}`;
    if (!edges.has(name)) {
      const edge = { from, to, episodes: new Set(), actions: new Map() };
      edges.set(name, edge);
      from.out.set(to.key, edge);
      to.in.set(from.key, edge);
    }
    const edge = edges.get(name);
    edge.episodes.add(number);
    edge.actions.set(action, (edge.actions.get(action) || 0) + 1);
  }

  // Mark the best and the worse edges of each node at which success depends on the edge.
  function markChoices(nodes) {
    for (const node of nodes.values()) {
      const edges = [...node.out.values()];
      const best = Math.max(...edges.map((edge) => edge.share));
      const worst = Math.min(...edges.map((edge) => edge.share));
      if (edges.length > 1 && best > worst) {
        for (const edge of edges) edge.mark = edge.share === best ? "best" : "worse";
      }
    }
  }

  // How good episodes are called: those that succeed, or those with the highest reward of the group.
  const WORDS = [
    { verb: "succeed", won: "success", lost: "no success", plural: "succeed" },
    { verb: "get the highest reward", won: "highest reward", lost: "lower reward", plural: "get it" },
  ];

  // Nodes are states; a chain that all its episodes pass through is one node. Edges hold the episodes that took them.
  viewer.stateGraph = (episodes) => {
    const nodes = new Map();
    const edges = new Map();
    episodes.forEach((episode, number) => addEpisode(nodes, edges, episode, number));
    const won = episodes.map(({ good }) => good);
    const share = (numbers) => [...numbers].filter((number) => won[number]).length / numbers.size;
    merge(nodes, edges);
    for (const node of nodes.values()) node.share = share(node.episodes);
    for (const edge of edges.values()) edge.share = share(edge.episodes);
    markChoices(nodes);
    return { nodes: [...nodes.values()], edges: [...edges.values()], words: WORDS[Number(episodes[0].byReward)] };
  };

  // The edge to the only next node, if every episode of a node goes there and none comes from elsewhere.
  function chainEdge(node) {
    const [edge] = node.out.values();
    const next = edge?.to;
    if (node.out.size !== 1 || next === node || next.in.size !== 1 || isEnd(next)) return null;
    return next.depth > node.depth && node.episodes.size === next.episodes.size ? edge : null;
  }

  function merge(nodes, edges) {
    for (const head of [...nodes.values()]) {
      if (!nodes.has(head.key)) continue;
      for (let edge = chainEdge(head); edge; edge = chainEdge(head)) {
        const next = edge.to;
        head.states.push(...next.states);
        head.loops += next.loops;
        head.values.push(...next.values);
        for (const [name, value] of edges) if (value === edge) edges.delete(name);
        nodes.delete(next.key);
        head.out = next.out;
        for (const following of head.out.values()) {
          following.from = head;
          following.to.in.delete(next.key);
          following.to.in.set(head.key, following);
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
    const setRows = (layer) =>
      layer.forEach((node, i) => {
        node.row = i - (layer.length - 1) / 2;
      });
    layers.forEach(setRows);
    sweep(layers, 6, (layer, side) => {
      for (const node of layer) {
        node.pull = meanOf(node[side], "row") ?? node.row;
        if (isEnd(node)) node.pull = node.key === "won" ? -1 : 1;
        node.pull -= 0.6 * (node.share - 0.5); // successful states move up
      }
      layer.sort((a, b) => a.pull - b.pull);
      setRows(layer);
    });
    setHeights(layers);
    return layers;
  }

  // Visit all layers, in turn from the left, when nodes follow their left neighbours, and from the right.
  function sweep(layers, times, visit) {
    for (let i = 0; i < times; i += 1) {
      const side = i % 2 ? "right" : "left";
      for (const layer of i % 2 ? [...layers].reverse() : layers) visit(layer, side);
    }
  }

  // The mean of a number over nodes; undefined without any.
  function meanOf(nodes, key) {
    if (!nodes.size) return undefined;
    return [...nodes].reduce((sum, node) => sum + node[key], 0) / nodes.size;
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
      if (to.layer > from.layer) {
        edge.way.slice(1).forEach((stop, i) => {
          stop.left.add(edge.way[i]);
          edge.way[i].right.add(stop);
        });
      }
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
    sweep(layers, 8, moveToNeighbours);
    const top = Math.min(...layers.flat().map((node) => node.y - room(node)));
    for (const node of layers.flat()) node.y += MARGIN / 2 - top;
  }

  // Least squares with a fixed order (pool adjacent violators): nodes that would overlap form a pool, which stands at
  // the mean of what its nodes wish.
  function moveToNeighbours(layer, side) {
    const pools = [];
    const mean = (pool) => pool.sum / pool.nodes.length;
    for (const node of layer) {
      const wish = meanOf(node[side], "y") ?? node.y;
      let pool = { sum: wish - node.offset, nodes: [node] };
      while (pools.length && mean(pools.at(-1)) > mean(pool)) {
        const above = pools.pop();
        pool = { sum: above.sum + pool.sum, nodes: [...above.nodes, ...pool.nodes] };
      }
      pools.push(pool);
    }
    for (const pool of pools) {
      for (const node of pool.nodes) node.y = node.offset + mean(pool);
    }
  }

  const radius = (node) => (isEnd(node) ? 15 : 7 + 2.2 * Math.sqrt(node.episodes.size));
  const isEnd = (node) => node.key === "won" || node.key === "lost";
  const below = (node) => (node.states.length > 1 ? `+${viewer.times(node.states.length - 1, "turn")}` : "");
  const above = (node) => (node.loops > 0 ? `↻ ${node.loops}` : "");

  // A column begins with the labels of its states and ends with a lane for edges that lead back. Within it edges are
  // horizontal, between columns they bend, so that no edge crosses a label.
  function place({ nodes, edges }) {
    const layers = layout({ nodes, edges });
    for (const node of nodes) setLabel(node, edges);
    let x = MARGIN / 2;
    for (const layer of layers) {
      const states = layer.filter((node) => !node.stop);
      const half = Math.max(...states.map((node) => node.half));
      const labels = states.map((node) => (node.main ? node.labelWidth + radius(node) + 12 : 0));
      const centre = x + Math.max(half, ...labels);
      const end = centre + half + LANE;
      for (const node of layer) Object.assign(node, { x: centre, begin: x, end });
      const climbs = layer.flatMap((node) => [...node.right].map((next) => Math.abs(next.y - node.y)));
      x = end + Math.min(90, Math.max(24, 0.4 * Math.max(0, ...climbs)));
    }
    const bottom = Math.max(...layers.flat().map((node) => node.y + room(node))) + 6;
    // Edges that lead back run below the graph, with one height for each state that they lead to.
    const leadBack = edges.filter((edge) => edge.to.layer < edge.from.layer);
    const targets = [...new Set(leadBack.map((edge) => edge.to))];
    targets.forEach((node, i) => {
      node.floor = bottom + 8 * i;
    });
    return { width: Math.ceil(layers.at(-1)[0].end), height: Math.ceil(bottom + 8 * targets.length) };
  }

  // Each state shows the label of its main incoming edge; the other labels appear on hover.
  function setLabel(node, edges) {
    node.half = Math.max(radius(node), viewer.textWidth(below(node), 10) / 2, viewer.textWidth(above(node), 10) / 2);
    const incoming = edges.filter((edge) => edge.to === node && edge.from.layer < node.layer);
    [node.main] = incoming.sort(
      (a, b) => (b.mark === "best") - (a.mark === "best") || b.episodes.size - a.episodes.size,
    );
    if (node.main) [node.label, node.labelWidth] = fitLabel(node.main);
  }

  const commonAction = (edge) => [...edge.actions].sort((a, b) => b[1] - a[1])[0][0];
  const winsOf = (edge) => Math.round(edge.share * edge.episodes.size);

  // The label of an edge, cut to fit, and its width.
  function fitLabel(edge) {
    const star = edge.mark === "best" ? "★ " : "";
    const weight = edge.mark === "best" ? 700 : 400;
    for (let letters = 40; ; letters -= 1) {
      const action = viewer.short(commonAction(edge) || "(no action)", letters);
      const text = `${star}${action} ${winsOf(edge)}/${edge.episodes.size}`;
      const width = viewer.textWidth(text, LABEL_SIZE, weight);
      if (width <= MAX_LABEL_WIDTH || letters < 2) return [text, width];
    }
  }

  const thickness = (edge) => (isBack(edge) ? 1.6 : 1.4 + 1.9 * Math.sqrt(edge.episodes.size));
  const isBack = (edge) => edge.to.layer <= edge.from.layer;

  // Straight lines between points with rounded corners.
  function roundedPath(points) {
    const toward = ([x, y], [a, b]) => {
      const distance = Math.hypot(a - x, b - y) || 1;
      const step = Math.min(8, distance / 2);
      return `${x + ((a - x) * step) / distance},${y + ((b - y) * step) / distance}`;
    };
    const part = (point, i) => {
      if (i === 0) return `M${point}`;
      if (i === points.length - 1) return `L${point}`;
      return `L${toward(point, points[i - 1])} Q${point} ${toward(point, points[i + 1])}`;
    };
    return points.map(part).join(" ");
  }

  // Down in the lane after the edge's state, below the graph, and up in the lane after the state it leads to.
  function backPath({ from, to }) {
    const down = from.end - LANE / 2;
    const up = to.end - LANE / 2;
    const start = [from.x, from.y];
    const end = [to.x, to.y];
    if (to.layer === from.layer) return roundedPath([start, [down, from.y], [down, to.y], end]);
    return roundedPath([start, [down, from.y], [down, to.floor], [up, to.floor], [up, to.y], end]);
  }

  function edgePath(edge) {
    if (isBack(edge)) return backPath(edge);
    const { from, to, way } = edge;
    const curves = way.slice(1).map((stop, i) => {
      const before = way[i];
      const middle = (before.end + stop.begin) / 2;
      return ` H${before.end} C${middle},${before.y} ${middle},${stop.y} ${stop.begin},${stop.y}`;
    });
    return `M${from.x},${from.y}${curves.join("")} H${to.x}`;
  }

  function edgeMark(edge, words) {
    const count = edge.episodes.size;
    const more = edge.actions.size > 1 ? ` and ${edge.actions.size - 1} other` : "";
    const title = `${viewer.visible(commonAction(edge))}${more}: ${winsOf(edge)} of ${count} ${words.verb}`;
    const attributes = {
      class: `way share${viewer.bucket(edge.share)} ${edge.mark || ""} ${isBack(edge) ? "back" : ""}`,
      d: edgePath(edge),
      "stroke-width": thickness(edge).toFixed(1),
    };
    return s("path", attributes, s("title", null, title));
  }

  function edgeLabel(node) {
    const attributes = {
      class: `label ${node.main.mark || ""}`,
      x: node.x - radius(node) - 7,
      y: node.y - 5 - thickness(node.main) / 2,
      "text-anchor": "end",
    };
    return s("text", attributes, node.label);
  }

  function nodeTitle(node, words) {
    const value = node.values.length ? node.values.reduce((a, b) => a + b, 0) / node.values.length : NaN;
    let name = `state with value ${viewer.number(value)}`;
    if (isEnd(node)) name = words[node.key];
    const chain = node.states.length > 1 ? `, ${node.states.length} turns in a row` : "";
    const episodes = viewer.times(node.episodes.size, "episode");
    return `${name}, ${episodes}, ${viewer.percent(node.share)} ${words.verb}${chain}`;
  }

  const nodeGroup = (kind, node, attributes, ...children) =>
    s(
      "g",
      {
        class: `${kind} share${viewer.bucket(node.share)} ${isEnd(node) ? node.key : ""}`,
        transform: `translate(${node.x},${node.y})`,
        ...attributes,
      },
      ...children,
    );

  // The number of episodes in a circle, and what stands above and below it. Drawn over all circles.
  function nodeText(node) {
    const text = (attributes, content) => s("text", { ...attributes, "text-anchor": "middle" }, content);
    const end = node.key === "won" ? "✓" : "✗";
    const r = radius(node);
    return nodeGroup(
      "name",
      node,
      { "aria-hidden": "true" },
      isEnd(node) ? text({ y: 5 }, end) : text({ y: 4 }, node.episodes.size),
      below(node) && text({ class: "more", y: r + 12 }, below(node)),
      above(node) && text({ class: "more", y: -r - 4 }, above(node)),
    );
  }

  // The circle of a state, which is a button, or of an end. choose: called with its states.
  function nodeCircle(node, words, choose) {
    const label = nodeTitle(node, words);
    const content = [s("circle", { r: radius(node) }), s("title", null, label)];
    if (isEnd(node)) return nodeGroup("place", node, { role: "img", "aria-label": label }, ...content);
    const act = () => choose(node.states.map(Number));
    const onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    };
    const attributes = { role: "button", tabindex: "0", "aria-label": label, onclick: act, onkeydown };
    return nodeGroup("place", node, attributes, ...content);
  }

  viewer.drawGraph = (episodes, choose) => {
    const graph = viewer.stateGraph(episodes);
    if (!graph.nodes.length) return null;
    const { width, height } = place(graph);
    const caption =
      `${graph.nodes.length} states, ${graph.edges.length} transitions; ` +
      `blue ones lead to ${graph.words.won} more often, orange ones less often`;
    const attributes = {
      class: "graph",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "group",
      "aria-label": `Graph of the group's states: ${caption}`,
    };
    const edges = graph.edges.sort((a, b) => a.episodes.size - b.episodes.size);
    const drawing = s(
      "svg",
      attributes,
      s("g", null, edges.map((edge) => edgeMark(edge, graph.words))),
      s(
        "g",
        null,
        graph.nodes.map((node) => nodeCircle(node, graph.words, choose)),
      ),
      s("g", null, graph.nodes.map(nodeText)),
      s("g", null, graph.nodes.filter((node) => node.main).map(edgeLabel)),
    );
    const items = legend(graph).map((item) => h("li", null, item));
    return h(
      "figure",
      null,
      viewer.region("Graph of the group's states", drawing),
      h("figcaption", null, h("ul", { class: "legend" }, items)),
    );
  };

  // What the marks of a graph mean, only those that it has.
  const legend = ({ nodes, edges, words }) =>
    [
      "Circles: states, with the number of episodes that reached them. Click one to highlight its turns below.",
      [
        "Lines from left to right: actions. ",
        h(
          "span",
          { class: "scale" },
          `none ${words.verb}`,
          [0, 1, 2, 3, 4].map((i) => h("i", { class: `key share${i}` })),
          `all ${words.plural}`,
        ),
      ],
      `2/8: of 8 episodes that took the action, 2 ${words.verb}.`,
      edges.some((edge) => edge.mark) && "★: the better choice where episodes diverge.",
      edges.some(isBack) && "Dotted lines: back to an earlier state.",
      nodes.some(above) && "↻ 12: 12 turns that did not leave the state.",
      nodes.some(below) && "+6 turns: the circle stands for a chain of states, 6 turns longer.",
    ].filter(Boolean);
})();
