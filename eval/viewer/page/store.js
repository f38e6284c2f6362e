"use strict";
// The index, and the shards of episodes: scripts that are loaded when a page needs them.
(() => {
  const shards = new Map(); // name -> groups
  const waiting = new Map(); // name -> {promise, resolve}
  const MAX_SHARDS = 12; // in memory
  let data = null;

  viewer.load = (index) => {
    if (index.format !== "gagpo view 2") throw new Error("unknown format of the index: " + index.format);
    const { groups, episodes } = index;
    const count = groups.size.length;
    const first = new Uint32Array(count + 1);
    for (let g = 0; g < count; g += 1) first[g + 1] = first[g] + groups.size[g];
    const owner = new Uint32Array(episodes.flags.length);
    for (let g = 0; g < count; g += 1) owner.fill(g, first[g], first[g + 1]);
    const start = []; // the first group of each source
    for (let g = 0; g < count; g += 1) start[groups.source[g]] ??= g;
    const lower = index.tasks.map((task, t) => `${task} ${index.goals[t]}`.toLowerCase());
    data = { ...index, first, owner, start, lower };
    const isRedrawn = viewer.data !== undefined;
    viewer.data = data;
    viewer.show(isRedrawn);
    viewer.follow(index);
  };

  viewer.shard = (name, groups) => {
    shards.set(name, groups);
    if (shards.size > MAX_SHARDS) shards.delete(shards.keys().next().value);
    waiting.get(name)?.resolve(groups);
    waiting.delete(name);
  };

  viewer.script = (source, failed) => {
    const script = viewer.h("script", { src: source });
    script.addEventListener("load", () => script.remove());
    script.addEventListener("error", () => {
      script.remove();
      failed();
    });
    document.head.append(script);
  };

  // The groups of a shard. Pages that wait for the same shard share one promise, which `viewer.shard` resolves.
  function loadShard(name) {
    if (shards.has(name)) return Promise.resolve(shards.get(name));
    if (!waiting.has(name)) {
      const entry = {};
      entry.promise = new Promise((resolve, reject) => {
        Object.assign(entry, { resolve, reject });
      });
      waiting.set(name, entry);
      viewer.script("data/" + name, () => {
        waiting.delete(name);
        entry.reject(new Error(`data/${name} cannot be read: run gagpo view again`));
      });
    }
    return waiting.get(name).promise;
  }

  // One group, by its number in the index.
  viewer.group = (g) => {
    const { groups, sources, tasks, goals, types, start } = data;
    const source = sources[groups.source[g]];
    return {
      g,
      source,
      task: tasks[groups.task[g]],
      name: goals[groups.task[g]] || tasks[groups.task[g]], // for people
      type: types[groups.type[g]],
      size: groups.size[g],
      wins: groups.wins[g],
      reward: groups.reward[g],
      turns: groups.turns[g],
      differ: groups.differ[g],
      ordinal: g - start[groups.source[g]],
    };
  };

  // Note of each episode of a group whether it is good: it succeeded or, where success is not reported, it has the
  // highest reward of a group whose rewards differ.
  function judge(episodes, byReward) {
    const rewards = episodes.map(({ reward }) => reward);
    const most = Math.max(...rewards);
    const differ = most > Math.min(...rewards);
    for (const episode of episodes) {
      const succeeded = Boolean(episode.success && episode.outcome !== "failed");
      const best = differ && episode.reward === most;
      Object.assign(episode, { byReward, good: byReward ? best : succeeded });
    }
    return episodes;
  }

  viewer.episodesOf = async (g) => {
    const { groups, sources, runs } = data;
    const source = sources[groups.source[g]];
    const { episodes } = (await loadShard(source.shards[groups.shard[g]]))[groups.place[g]];
    return judge(episodes, !runs[source.run].shows.includes("success"));
  };

  // An address names run, file, group and episode, so it stays valid when the run is exported again.
  viewer.groupLink = (g, query) => {
    const group = viewer.group(g);
    return viewer.link(["group", group.source.run, group.source.label, group.ordinal], query);
  };
  viewer.episodeLink = (g, e, query) => {
    const group = viewer.group(g);
    return viewer.link(["episode", group.source.run, group.source.label, group.ordinal, e], query);
  };
  viewer.find = (run, label, ordinal) => {
    const number = data.sources.findIndex((source) => source.run === Number(run) && source.label === label);
    if (number < 0 || data.start[number] === undefined) return null;
    const g = data.start[number] + Number(ordinal);
    return data.groups.source[g] === number ? g : null;
  };

  viewer.outcome = (flags) =>
    flags & 1 ? "success" : ["no success", "truncated", "failed"][(flags >> 1) & 3] || "no success";
  viewer.sourceName = (source) => {
    const run = data.runs.length > 1 ? `${viewer.visible(data.runs[source.run].name)}: ` : "";
    if (source.stage === "train") return `${run}training, iteration ${source.iteration}`;
    if (source.stage === "other") return run + viewer.visible(source.label);
    const stages = { iteration: `at iteration ${source.iteration}`, average: "averaged weights" };
    return `${run}${viewer.visible(source.split)}, ${stages[source.stage] ?? `${source.stage} training`}`;
  };
})();
