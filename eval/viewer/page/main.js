"use strict";
// Routes, keyboard shortcuts, and light or dark colours.
(() => {
  const { h } = viewer;
  const main = document.getElementById("main");
  const KEYS = {
    "/": "go to the filter",
    "j or ↓, k or ↑": "next and previous row or turn",
    Enter: "open the row",
    "[ and ]": "previous and next group or try",
    u: "up one level",
    o: "overview",
    g: "groups",
    e: "episodes",
    t: "light or dark",
    "?": "show these keys",
  };
  let neighbours = [null, null]; // addresses of the previous and the next page
  let trail = [];
  let latest = 0; // the number of the latest page that was requested

  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  // The page of the address; null if there is none.
  async function route() {
    const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
    const [page, ...rest] = path.split("/").map(decoded);
    const query = Object.fromEntries(new URLSearchParams(search || ""));
    if (page === "groups") return viewer.groups(query);
    if (page === "episodes") return viewer.episodes(query);
    if (page === "task" && viewer.data.tasks[rest[0]] !== undefined) return viewer.taskPage(rest[0]);
    const { runs } = viewer.data;
    if (page === "run" && runs[rest[0]]) return viewer.runPage(Number(rest[0]));
    if (page === "runs" && runs.length > 1 && rest.length < 2) return viewer.runs(query);
    if (page === "runs" && runs[rest[0]] && runs[rest[1]]) return viewer.twoRuns(Number(rest[0]), Number(rest[1]));
    const g = viewer.find(...rest);
    if (page === "group" && g !== null) return viewer.groupPage(g, query);
    if (page === "episode" && g !== null) return viewer.episodePage(g, Number(rest[3]), query);
    const g2 = viewer.find(...rest.slice(4));
    if (page === "compare" && g !== null && g2 !== null) {
      return viewer.comparePage([g, Number(rest[3])], [g2, Number(rest[7])]);
    }
    return page ? null : viewer.overview(query);
  }

  const notFound = (complaint) => ({
    title: "not found",
    trail: [],
    page: [
      h("h1", null, "Not found"),
      h("p", null, complaint),
      h("p", null, h("a", { href: "#/" }, "Back to the overview")),
    ],
  });

  async function load() {
    try {
      const page = await route();
      return page || notFound("There is no such page. The run may have been exported again.");
    } catch (error) {
      return notFound(error.message);
    }
  }

  function drawTrail() {
    const parts = trail.map(([name, address]) => [
      " › ",
      address ? h("a", { href: address }, name) : h("span", null, name),
    ]);
    document.getElementById("trail").replaceChildren(...parts.flat());
  }

  function steps() {
    const links = ["previous", "next"].map((name, i) =>
      neighbours[i] ? h("a", { href: neighbours[i] }, name) : h("span", { class: "soft" }, name),
    );
    return h("p", { class: "steps" }, links);
  }

  function moveTo(id) {
    const target = id && document.getElementById(id);
    if (target) {
      target.classList.add("chosen");
      target.scrollIntoView({ block: "center" });
      target.focus({ preventScroll: true });
    } else {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  }

  // isRedrawn: whether the page was there before, so that the reader's place in it is restored.
  async function show(isRedrawn) {
    latest += 1;
    const number = latest;
    const content = await load();
    if (number !== latest) return; // another page was requested while this one waited for its episodes
    const place = isRedrawn ? viewer.place() : null;
    document.title = `${viewer.visible(content.title)} · gagpo view`;
    neighbours = content.neighbours || [null, null];
    trail = content.trail;
    drawTrail();
    main.replaceChildren(...[content.page, content.neighbours && steps()].flat(Infinity).filter(Boolean));
    if (place) viewer.restore(place);
    else moveTo(content.focus);
    performance.mark("drawn");
    document.documentElement.dataset.ready = location.hash || "#/";
  }

  // Move the focus to another row or turn, from none to the first.
  function walk(step) {
    const stops = [...main.querySelectorAll(".rows tbody a, .turn-card")];
    const current = stops.findIndex((stop) => stop === document.activeElement || stop.contains(document.activeElement));
    const next = stops[Math.max(0, Math.min(stops.length - 1, current < 0 ? 0 : current + step))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  function colours(scheme) {
    document.documentElement.dataset.theme = scheme;
    document.getElementById("theme").textContent = scheme === "dark" ? "Light" : "Dark";
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try {
      return localStorage.getItem("gagpo view theme");
    } catch {
      return null;
    }
  };
  const toggle = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("gagpo view theme", next);
    } catch {
      /* no storage for pages opened from disk */
    }
    colours(next);
  };
  colours(remembered() || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => {
    if (!remembered()) colours(dark.matches ? "dark" : "light");
  });
  document.getElementById("theme").addEventListener("click", toggle);

  const keys = document.getElementById("keys");
  for (const [key, meaning] of Object.entries(KEYS)) {
    document.getElementById("keys-list").append(h("dt", null, h("kbd", null, key)), h("dd", null, meaning));
  }
  document.getElementById("help").addEventListener("click", () => keys.showModal());

  const go = (address) => {
    if (address) location.hash = address.replace(/^#/, "");
  };
  const COMMANDS = {
    "/": () => document.getElementById("filter")?.focus(),
    j: () => walk(1),
    k: () => walk(-1),
    ArrowDown: () => walk(1),
    ArrowUp: () => walk(-1),
    "[": () => go(neighbours[0]),
    "]": () => go(neighbours[1]),
    o: () => go("#/"),
    g: () => go("#/groups"),
    e: () => go("#/episodes"),
    u: () => go(trail.filter(([, address]) => address).at(-1)?.[1] || "#/"),
    t: toggle,
    "?": () => keys.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") main.focus();
      return;
    }
    if (event.target.closest(".wide") === event.target && event.key.startsWith("Arrow")) return; // it scrolls
    const command = COMMANDS[event.key];
    if (command) {
      event.preventDefault();
      command();
    }
  });

  viewer.show = show;
  addEventListener("hashchange", () => show(false));
})();
