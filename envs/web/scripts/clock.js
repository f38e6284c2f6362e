// Replaces the page's time and randomness, so that a page is the same in every process and no action waits.
//
// Time stands still while the agent thinks. `advance` runs the timers that are due, in order, and moves the clock on.
// Libraries that animate with timers or frames therefore finish at once.
function clock(gagpo) {
  const START = Date.UTC(2026, 0, 5, 9, 0, 0);
  const MOST_CALLS = 3000; // of timers in one action: a page may set timers for ever
  const FRAME = 16; // milliseconds
  const timers = new Map(); // in order of creation, which decides between equal times
  const realTimeout = window.setTimeout.bind(window);
  let now = 0;
  let lastId = 0;

  // The browser's other tasks come before this one; unlike a timer it does not wait.
  const {port1, port2} = new MessageChannel();
  const turns = [];
  port1.onmessage = () => turns.shift()();
  gagpo.yield = () => new Promise((resume) => { turns.push(resume); port2.postMessage(null); });
  gagpo.wait = (milliseconds) => new Promise((resume) => { realTimeout(resume, milliseconds); });

  const add = (callback, delay, every, rest) => {
    const code = callback;
    const call = typeof code === 'function' ? () => code.apply(window, rest) : () => (0, eval)(String(code));
    const wait = Math.max(1, Number(delay) || 0);
    timers.set(++lastId, {due: now + wait, call, callback: code, every: every ? Math.max(4, wait) : 0});
    return lastId;
  };
  const remove = (id) => { timers.delete(Number(id)); };

  window.setTimeout = (callback, delay, ...rest) => add(callback, delay, false, rest);
  window.setInterval = (callback, delay, ...rest) => add(callback, delay, true, rest);
  window.clearTimeout = window.clearInterval = remove;
  window.requestAnimationFrame = (callback) => add(() => callback(now), FRAME - (now % FRAME), false, []);
  window.requestIdleCallback = (callback) =>
    add(() => callback({didTimeout: false, timeRemaining: () => 50}), 1, false, []);
  window.cancelAnimationFrame = window.cancelIdleCallback = remove;
  window.Date = new Proxy(Date, {
    construct: (target, values, self) => Reflect.construct(target, values.length ? values : [START + now], self),
    apply: (target) => new target(START + now).toString(),
    get: (target, name) => (name === 'now' ? () => START + now : Reflect.get(target, name)),
  });
  Performance.prototype.now = () => now;

  let seed = 1; // mulberry32
  const random = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  Math.random = random;
  Crypto.prototype.getRandomValues = (array) => {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = Math.floor(random() * 256);
    return array;
  };

  const earliest = (end) => {
    let found = null;
    for (const [id, timer] of timers) {
      if (timer.due <= end && (found === null || timer.due < found[1].due)) found = [id, timer];
    }
    return found;
  };

  gagpo.advance = async (milliseconds) => {
    const end = now + milliseconds;
    for (let calls = 0, due = earliest(end); due !== null && calls < MOST_CALLS; calls++, due = earliest(end)) {
      const [id, timer] = due;
      now = Math.max(now, timer.due);
      if (timer.every) timer.due = now + timer.every;
      else timers.delete(id);
      try {
        timer.call();
      } catch (error) {
        console.error(error);
      }
      await null; // what promises of the page continue with comes before the next timer
      if (gagpo.leaving()) break;
    }
    now = end;
    for (const timer of timers.values()) timer.due = Math.max(timer.due, now + 1);
  };
  gagpo.timers = () => Array.from(timers.values());
  // Set the clock back to the start of the page. isLoaded: the page's own preparation is over.
  let loadedId = 0;
  let loadedSeed = 1;
  gagpo.rewind = (isLoaded = false) => {
    if (isLoaded) [loadedId, loadedSeed] = [lastId, seed];
    timers.clear();
    [now, lastId, seed] = [0, loadedId, loadedSeed];
  };
  // When the page will change by itself; part of its state. What an interval changes can be seen.
  gagpo.pending = () => Array.from(timers.values()).filter((timer) => !timer.every)
    .map((timer) => timer.due - now).sort((a, b) => a - b);
}
