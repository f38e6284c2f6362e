// Knows whether a site has stored anything in the browser, and removes it: no visit begins with what another has left.
function storage(gagpo) {
  let stored = false;
  let isReported = false;
  let isLeft = false;
  // Nobody reads a page again that is left. The next one finds this mark.
  const mark = () => {
    if (stored && !isReported && isLeft) sessionStorage.gagpo = 1;
  };
  gagpo.remember = () => { stored = true; mark(); };
  window.addEventListener('pagehide', () => { isLeft = true; mark(); }, true);
  // What a frame stores, its page has stored; frames of other sites are never loaded.
  const remember = () => {
    gagpo.remember();
    if (window.top !== window) window.top.__gagpo?.remember();
  };
  const noted = (owner, name) => {
    const method = owner?.prototype?.[name];
    if (!method) return;
    owner.prototype[name] = function (...values) {
      remember();
      return method.apply(this, values);
    };
  };
  for (const name of ['IDBFactory.open', 'CacheStorage.open', 'CookieStore.set', 'ServiceWorkerContainer.register',
    'StorageManager.getDirectory', 'History.pushState', 'History.replaceState', 'Navigation.updateCurrentEntry']) {
    const [owner, method] = name.split('.');
    noted(window[owner], method);
  }
  for (const name of ['Worker', 'SharedWorker']) { // they may store without the page
    if (!window[name]) continue;
    window[name] = new Proxy(window[name], {
      construct: (target, values, self) => { remember(); return Reflect.construct(target, values, self); },
    });
  }
  const cookie = Object.getOwnPropertyDescriptor(Document.prototype, 'cookie'); // of any path, also one not shown here
  Object.defineProperty(Document.prototype, 'cookie', {...cookie, set(text) { remember(); cookie.set.call(this, text); }});

  const found = () => {
    try {
      return window.name !== '' || localStorage.length + sessionStorage.length + document.cookie.length > 0;
    } catch {
      return true; // a page of the browser's own
    }
  };
  gagpo.hasStored = () => {
    isReported = stored;
    return stored || found();
  };
  // What the page before has left, which may have written while it was left: seen before any script of this one runs.
  gagpo.unclean = window.top === window && found();

  // Removes everything that this site has stored. Returns what is still there.
  gagpo.forget = async () => {
    window.name = '';
    localStorage.clear();
    sessionStorage.clear();
    const worker = navigator.serviceWorker;
    const folder = await navigator.storage?.getDirectory?.();
    const kinds = {
      databases: [() => indexedDB.databases(), ({name}) => new Promise((resume) => {
        const request = indexedDB.deleteDatabase(name);
        request.onsuccess = request.onerror = request.onblocked = resume;
      })],
      caches: [() => window.caches?.keys() ?? [], (name) => window.caches.delete(name)],
      workers: [() => worker?.getRegistrations() ?? [], (registration) => registration.unregister()],
      files: [() => (folder ? Array.fromAsync(folder.keys()) : []), (name) => folder.removeEntry(name, {recursive: true})],
    };
    const left = [];
    for (const [kind, [list, remove]] of Object.entries(kinds)) {
      for (const item of await list()) await remove(item);
      if ((await list()).length) left.push(kind);
    }
    if (worker?.controller) left.push('a worker that answers for this site');
    if (found()) left.push('cookies or storage');
    stored = false; // looking for files was noted as if the site had stored some
    return left;
  };
}
