// Begins the next episode in a page that is loaded, where the last one has left nothing.
//
// A fixed episode is begun after loading and again before each further episode. Both times everything that scripts can
// reach is written down: elements with their fields, properties and listeners, the page's variables, timers, styles. If
// the two differ, or if something was used that cannot be compared, the page has to be loaded again. Only variables
// inside of functions are not seen; the sources that repeat pages are those whose pages are made to be used again.
function repeat(gagpo) {
  const MOST_VALUES = 60000;
  const HANDLERS = ['click', 'dblclick', 'mousedown', 'mouseup', 'mousemove', 'mouseover', 'mouseout', 'keydown', 'keyup',
    'keypress', 'change', 'input', 'focus', 'blur', 'submit', 'scroll', 'load', 'resize', 'hashchange'].map((name) => `on${name}`);
  const builtin = new Map(Object.entries(Object.getOwnPropertyDescriptors(window)).map(([name, {value}]) => [name, value]));
  const SKIPPED = new Set(['length', 'name', 'prototype', 'arguments', 'caller']);
  let isComparable = true;
  const listeners = new WeakMap();
  const {addEventListener, removeEventListener} = EventTarget.prototype;
  const isCapture = (options) => Boolean(typeof options === 'object' && options !== null ? options.capture : options);
  EventTarget.prototype.addEventListener = function (type, listener, options) {
    const all = listeners.get(this ?? window) ?? [];
    const isNew = !all.some((one) => one.type === type && one.listener === listener && one.capture === isCapture(options));
    if (isNew && listener) listeners.set(this ?? window, [...all, {type, listener, capture: isCapture(options)}]);
    return addEventListener.call(this ?? window, type, listener, options);
  };
  EventTarget.prototype.removeEventListener = function (type, listener, options) {
    const all = listeners.get(this ?? window) ?? [];
    listeners.set(this ?? window, all.filter((one) =>
      one.type !== type || one.listener !== listener || one.capture !== isCapture(options)));
    return removeEventListener.call(this ?? window, type, listener, options);
  };
  for (const name of ['MutationObserver', 'IntersectionObserver', 'ResizeObserver', 'WebSocket', 'EventSource', 'RTCPeerConnection',
    'BroadcastChannel', 'AudioContext', 'FinalizationRegistry', 'WeakRef']) {
    if (!window[name]) continue;
    window[name] = new Proxy(window[name], {
      construct: (target, values, self) => { isComparable = false; return Reflect.construct(target, values, self); },
    });
    builtin.set(name, window[name]);
  }
  for (const [owner, name] of [[Element, 'attachShadow'], [Element, 'animate'], [window.CustomElementRegistry, 'define']]) {
    const method = owner.prototype[name];
    owner.prototype[name] = function (...values) { isComparable = false; return method.apply(this, values); };
  }

  // All that scripts can reach, as text. names: of variables that are not properties of the window.
  const describe = (names, ignored) => {
    const parts = [];
    const numbers = new Map();
    const pending = [];
    const write = (value) => {
      if (value === null || !['object', 'function'].includes(typeof value)) return parts.push(typeof value, String(value));
      if (!numbers.has(value)) {
        numbers.set(value, numbers.size);
        pending.push(value);
      }
      return parts.push('#', numbers.get(value));
    };
    const properties = (value) => {
      for (const key of Reflect.ownKeys(value)) {
        if (typeof value === 'function' && SKIPPED.has(key)) continue;
        const {get, value: inner} = Object.getOwnPropertyDescriptor(value, key);
        parts.push(String(key));
        write(get ?? inner);
      }
    };
    const node = (element) => {
      properties(element);
      for (const {type, listener, capture} of listeners.get(element) ?? []) {
        parts.push(type, capture);
        write(listener);
      }
      for (const name of HANDLERS) {
        if (element[name]) { parts.push(name); write(element[name]); }
      }
    };
    const elements = Array.from(document.querySelectorAll('*'));
    elements.forEach((element) => numbers.set(element, numbers.size));
    parts.push(document.documentElement.outerHTML, document.title, location.href, scrollX, scrollY);
    numbers.set(window, numbers.size);
    numbers.set(document, numbers.size);
    for (const element of [document, ...elements]) {
      node(element);
      if (element.scrollTop || element.scrollLeft) parts.push(numbers.get(element), element.scrollTop, element.scrollLeft);
      if (element.matches?.('input, textarea, select, option')) {
        parts.push(String(element.value), element.checked, element.selected, element.disabled, element.readOnly);
      }
    }
    for (const {type, listener, capture} of listeners.get(window) ?? []) { parts.push(type, capture); write(listener); }
    for (const key of Reflect.ownKeys(window)) {
      const {get, value} = Object.getOwnPropertyDescriptor(window, key);
      if (builtin.has(key)) {
        if (get === undefined && value !== builtin.get(key)) { parts.push(String(key)); write(value); }
        continue;
      }
      if (typeof key === 'string' && /^(\d+|__gagpo)$/.test(key)) continue;
      parts.push(String(key));
      write(get ?? value);
    }
    for (const name of HANDLERS) if (window[name]) { parts.push(name); write(window[name]); }
    for (const name of names) { parts.push(name); write((0, eval)(`typeof ${name} === 'undefined' ? undefined : ${name}`)); }
    write(Math.random);
    for (const timer of gagpo.timers()) { parts.push(timer.due, timer.every); write(timer.callback); }
    for (let i = 0; i < pending.length; i++) {
      const value = pending[i];
      if (i > MOST_VALUES) return null;
      if (value instanceof Node) {
        parts.push(value.nodeType === Node.ELEMENT_NODE ? value.outerHTML : String(value.data));
        node(value);
        continue;
      }
      if (value instanceof WeakMap || value instanceof WeakSet || value instanceof Promise) {
        return null; // what they contain cannot be listed
      }
      parts.push(typeof value === 'function' ? value.toString() : Object.prototype.toString.call(value));
      if (value instanceof Date) parts.push(value.getTime());
      if (value instanceof Map || value instanceof Set) for (const item of value) write(item);
      write(Object.getPrototypeOf(value));
      properties(value);
      if (typeof value === 'function' && value.prototype) properties(value.prototype);
    }
    parts.push(Array.from(document.styleSheets, (sheet) => sheet.cssRules.length).join(), document.adoptedStyleSheets.length);
    const unlike = elements.some((element) => element.shadowRoot ||
      (element.matches('canvas, iframe, video, audio, object, embed, dialog[open]') && !element.matches(ignored || 'x-none')));
    return unlike || gagpo.answered() || document.getAnimations().length ? null : parts.join('\u0001');
  };

  let first = null; // what the page was at the beginning of the fixed episode
  let address = '';
  const {replaceState} = History.prototype;
  const begin = (start, names, ignored) => {
    const place = document.createElement('span'); // where the Tab key goes on from is that of a new page
    place.tabIndex = -1;
    document.body.prepend(place);
    place.focus();
    place.remove();
    getSelection().removeAllRanges();
    gagpo.rewind();
    start();
    const text = describe(names, ignored);
    gagpo.rewind();
    gagpo.takeNotes();
    return text;
  };
  // After the page is loaded: begin the fixed episode.
  gagpo.keep = (start, names, ignored) => {
    address = location.href;
    isComparable &&= gagpo.timers().length === 0;
    gagpo.rewind(true);
    first = begin(start, names, ignored);
  };
  // Begin the fixed episode again; returns whether the page is as it was then.
  gagpo.again = (start, names, ignored) => {
    const isHere = location.pathname === new URL(address).pathname && !gagpo.leaving() && !gagpo.hasStored();
    if (isHere && location.href !== address) replaceState.call(history, null, '', address); // a link to # was clicked
    return isHere && first !== null && begin(start, names, ignored) === first && isComparable;
  };
}
