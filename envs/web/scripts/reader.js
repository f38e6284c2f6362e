// Reads the page as a list of lines, and finds where an element of the list can be clicked.
function reader(gagpo) {
  const PATIENCE = 5000; // milliseconds of real time for the network
  const MOST_LINES = 3000;
  const MOST_INSIDE = 5; // things to use in something that can be clicked itself
  const LONGEST_TEXT = 1000;
  const CLICKS = new Set(['click', 'mousedown', 'mouseup', 'pointerdown', 'pointerup', 'dblclick']);
  const ROLES = new Set(['button', 'link', 'tab', 'checkbox', 'radio', 'menuitem', 'menuitemcheckbox',
    'menuitemradio', 'option', 'switch', 'combobox', 'textbox', 'searchbox', 'treeitem', 'slider', 'spinbutton']);
  const GROUPS = {NAV: 'navigation', FIELDSET: 'group', TABLE: 'table', DIALOG: 'dialog', FORM: 'form'};
  const GROUP_ROLES = new Set(['dialog', 'alertdialog', 'menu', 'menubar', 'tablist', 'tabpanel', 'tree', 'listbox',
    'radiogroup', 'group', 'navigation']);
  const SKIPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'META', 'LINK', 'TITLE', 'OPTION']);
  const TYPED = new Set(['text', 'search', 'email', 'url', 'tel', 'password', 'number', 'date', 'time', 'month',
    'week', 'datetime-local', 'color']);
  const FORMATTED = new Set(['date', 'time', 'month', 'week', 'datetime-local', 'color', 'number']);
  const PRESSED = new Set(['submit', 'button', 'reset', 'image']);

  let elements = []; // of the last reading; number 1 is the first
  let ignored = ''; // selector of what belongs to the task's frame and not to the page
  const listeners = new WeakSet();
  const {addEventListener} = EventTarget.prototype;
  EventTarget.prototype.addEventListener = function (type, ...values) {
    if (this instanceof Element && CLICKS.has(type)) listeners.add(this);
    return addEventListener.call(this, type, ...values);
  };

  const squeeze = (text) => String(text ?? '').replace(/\s+/g, ' ').trim().slice(0, LONGEST_TEXT);
  const attribute = (element, name) => squeeze(element.getAttribute(name));

  const PLACED = new Set(['absolute', 'fixed']);
  const onPage = (box) => box.right + scrollX > 0 && box.bottom + scrollY > 0;

  // The tree that is shown: a shadow root in place of its host's children, which stand in its slots.
  const parentOf = (node) => {
    const parent = node.assignedSlot ?? node.parentNode;
    return parent instanceof ShadowRoot ? parent.host : parent instanceof Element ? parent : null;
  };
  const childrenOf = (node) => {
    const slotted = node.tagName === 'SLOT' ? node.assignedNodes() : [];
    return slotted.length ? slotted : (node.shadowRoot ?? node).childNodes;
  };
  let hasShadows = false; // most pages have none, and the browser's own search is faster
  const entered = new WeakSet(); // the shadow roots that were found
  const enter = (root) => {
    if (entered.has(root)) return;
    entered.add(root);
    hasShadows = true;
    root.adoptedStyleSheets = [...root.adoptedStyleSheets, ...document.adoptedStyleSheets];
    gagpo.watch(root);
  };
  const descendants = (element) => {
    const all = Array.from(element.querySelectorAll('*'));
    if (!hasShadows) all.forEach((inner) => inner.shadowRoot && enter(inner.shadowRoot));
    if (!hasShadows) return all;
    const visit = (node) => {
      if (node.nodeType !== Node.ELEMENT_NODE) return [];
      if (node.shadowRoot) enter(node.shadowRoot);
      return [node, ...Array.from(childrenOf(node)).flatMap(visit)];
    };
    return visit(element).slice(1);
  };
  const active = () => {
    let element = document.activeElement;
    while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
    return element;
  };
  const hitAt = (x, y) => {
    let hit = document.elementFromPoint(x, y);
    for (let inner = hit; inner && (inner = hit.shadowRoot?.elementFromPoint(x, y)) && inner !== hit;) hit = inner;
    return hit;
  };

  // What is left of a box by `clip-path` or `clip`; shapes other than these are taken to show it.
  const clippedAway = (style, {width, height}) => {
    const pixels = (size, whole = 0) => parseFloat(size) * (size.endsWith('%') ? whole / 100 : 1);
    const sizes = (text) => text.trim().split(/[\s,]+/);
    const [, shape, inner] = /^(inset|circle|ellipse|polygon)\((.*)\)/.exec(style.clipPath) ?? [];
    if (shape === 'inset') {
      const [top, right = top, bottom = top, left = right] = sizes(inner.split('round')[0]);
      return pixels(top, height) + pixels(bottom, height) >= height || pixels(left, width) + pixels(right, width) >= width;
    }
    if (shape === 'circle' || shape === 'ellipse') return sizes(inner.split('at')[0]).some((size) => pixels(size) === 0);
    if (shape === 'polygon') {
      const corners = inner.replace(/^(evenodd|nonzero),/, '').split(',').map(sizes)
        .map(([x, y]) => [pixels(x, width), pixels(y, height)]);
      const area = corners.reduce((sum, [x, y], i) => {
        const [nextX, nextY] = corners[(i + 1) % corners.length];
        return sum + x * nextY - nextX * y;
      }, 0);
      return Math.abs(area) < 1;
    }
    if (!style.clip.startsWith('rect(') || !PLACED.has(style.position)) return false;
    const [top, right, bottom, left] = sizes(style.clip.slice(5)).map((size) => pixels(size));
    return bottom - top <= 1 || right - left <= 1;
  };
  // Whether what is moved out of the page comes back when a part of the page is scrolled.
  const scrolledOut = (element) => {
    for (let outer = element; outer && outer !== document.body; outer = parentOf(outer)) {
      if (outer.scrollTop > 0 || outer.scrollLeft > 0) return true;
    }
    return false;
  };
  // Whether what stands in the element can be seen, wherever it stands.
  const visible = (element) => {
    const style = getComputedStyle(element);
    if (style.display === 'contents') return style.visibility === 'visible' && visible(parentOf(element));
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) return false;
    if (/opacity\(0(\.0*)?%?\)/.test(style.filter)) return false;
    const box = element.getBoundingClientRect();
    if ((style.clipPath !== 'none' || style.clip !== 'auto') && clippedAway(style, box)) return false;
    // A transform to nothing; a box without an area of its own may still have visible children.
    return box.width * box.height >= 1 || !(element.offsetWidth * element.offsetHeight >= 1);
  };
  // The nearest element around one that may cut it off: a positioned one is cut by the element that it is placed in.
  const holder = (element) => {
    const {position} = getComputedStyle(element);
    let outer = parentOf(element);
    while (outer && PLACED.has(position)) {
      const style = getComputedStyle(outer);
      if (style.transform !== 'none' || (position === 'absolute' && style.position !== 'static')) break;
      outer = parentOf(outer);
    }
    return outer;
  };
  const EVERYWHERE = {left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity};
  const meets = (box, other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top;
  let regions = null; // those found so far, while the page is read and nothing moves
  // Where what stands in an element can be seen, also after scrolling; null for nowhere.
  const region = (element) => {
    if (!element || element === document.body || element === document.documentElement) return EVERYWHERE;
    if (regions?.has(element)) return regions.get(element);
    let seen = region(holder(element));
    const {overflowX, overflowY} = getComputedStyle(element);
    if (seen && (overflowX !== 'visible' || overflowY !== 'visible')) {
      const box = element.getBoundingClientRect();
      const scrolls = [overflowX, overflowY].some((overflow) => ['auto', 'scroll'].includes(overflow));
      const cut = {left: Math.max(seen.left, box.left), top: Math.max(seen.top, box.top),
        right: Math.min(seen.right, box.right), bottom: Math.min(seen.bottom, box.bottom)};
      if (cut.right - cut.left < 1 || cut.bottom - cut.top < 1) seen = null;
      else seen = scrolls ? EVERYWHERE : cut;
    }
    regions?.set(element, seen);
    return seen;
  };
  // Whether an element has a size and does not stand outside of all that can be scrolled to.
  const inSight = (element) => {
    const box = element.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) return false;
    const seen = region(holder(element));
    return seen !== null && meets(box, seen) && (onPage(box) || scrolledOut(parentOf(element)));
  };
  const range = document.createRange();
  const colourless = (colour) => /^rgba\(.*, 0\)$/.test(colour);
  // Whether the letters of a text can be seen in a visible element.
  const legible = (text) => {
    if (!/\S/.test(text.data)) return true;
    const parent = parentOf(text);
    if (!parent || (parent.tagName === 'DETAILS' && !parent.open)) return false;
    const style = getComputedStyle(parent);
    if (style.contentVisibility === 'hidden') return false;
    range.selectNodeContents(text);
    const seen = region(parent);
    const boxes = Array.from(range.getClientRects()).filter((box) => box.width >= 1 && box.height >= 1);
    if (seen === null || !boxes.some((box) => meets(box, seen))) return false;
    if (!boxes.some(onPage) && !scrolledOut(parent)) return false;
    if (!colourless(style.webkitTextFillColor)) return true;
    // Letters that show the picture behind them, or only their outline or shadow.
    const outlined = parseFloat(style.webkitTextStrokeWidth) > 0 || style.textShadow !== 'none';
    for (let outer = parent; outer && !outlined; outer = parentOf(outer)) {
      if (getComputedStyle(outer).backgroundClip.includes('text')) return true;
    }
    return outlined;
  };
  // Whether a text is the label of a field that is listed with it.
  const labels = (element) => {
    const control = element.closest('label')?.control;
    return Boolean(control) && nature(control) !== '' && visible(control) && inSight(control) && !named(control);
  };
  // One pixel is the usual size of what only a screen reader is to find.
  const clipped = (element) => {
    const {width, height} = element.getBoundingClientRect();
    const nothing = width === 0 || height === 0 || (width <= 1 && height <= 1);
    return nothing && getComputedStyle(element).overflow !== 'visible';
  };
  const disabled = (element) => element.matches(':disabled') || (element.tagName === 'LABEL' && element.control?.matches(':disabled'));

  // The role of an element that is used by its nature, or ''.
  const nature = (element) => {
    const role = attribute(element, 'role');
    switch (element.tagName) {
      case 'A': case 'AREA': if (element.hasAttribute('href')) return ROLES.has(role) ? role : 'link'; break;
      case 'BUTTON': return ROLES.has(role) ? role : 'button';
      case 'SUMMARY': return 'button';
      case 'SELECT': return 'select';
      case 'TEXTAREA': return 'textarea';
      case 'INPUT':
        if (element.type === 'hidden') return '';
        if (PRESSED.has(element.type)) return 'button';
        if (element.type === 'range') return 'slider';
        return TYPED.has(element.type) && !FORMATTED.has(element.type) ? 'input' : element.type;
      case 'LABEL':
        if (element.control && !(visible(element.control) && inSight(element.control))) return element.control.type;
        break;
      default:
    }
    if (element.isContentEditable && !parentOf(element)?.isContentEditable) return 'textarea';
    return ROLES.has(role) ? role : '';
  };
  // The role of an element that a click may do something to; 'clickable' for one with a listener or a hand cursor.
  const use = (element) => {
    if (element === document.body || element === document.documentElement) return '';
    const role = nature(element);
    if (role) return role;
    if (element.tagName === 'LABEL' || element.tagName === 'FORM') return '';
    if (listeners.has(element) || element.onclick || element.onmousedown || element.hasAttribute('onclick')) {
      return 'clickable';
    }
    if (getComputedStyle(element).cursor !== 'pointer') return '';
    const parent = parentOf(element);
    return parent && getComputedStyle(parent).cursor === 'pointer' ? '' : 'clickable';
  };
  const used = (element) => use(element) !== '' && visible(element) && inSight(element);
  const usedInside = (element) => descendants(element).filter(used);

  const inline = (element) => /^(inline|contents)/.test(getComputedStyle(element).display);
  // The text that can be seen. taken: whether what stands in an element counts.
  const textOf = (node, written, taken) => {
    if (node.nodeType === Node.TEXT_NODE) return legible(node) ? written(node) : '';
    if (node.nodeType !== Node.ELEMENT_NODE || SKIPPED.has(node.tagName) || !visible(node) || clipped(node)) return '';
    if (!taken(node)) return ' ';
    if (node.tagName === 'IMG') return inSight(node) ? attribute(node, 'alt') : '';
    if (node.tagName === 'BR') return ' ';
    const inner = Array.from(childrenOf(node), (child) => textOf(child, written, taken)).join('');
    return inline(node) ? inner : ` ${inner} `;
  };
  const shownText = (node) => textOf(node, (text) => text.data, () => true);

  // Whether an element has text of its own, outside of what can be used in it.
  const hasText = (element) => Array.from(childrenOf(element)).some((node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data.trim() !== '' && legible(node);
    return node.nodeType === Node.ELEMENT_NODE && !SKIPPED.has(node.tagName) && visible(node) && !used(node) &&
      hasText(node);
  });

  const named = (element) => {
    const by = attribute(element, 'aria-labelledby').split(' ')
      .map((id) => element.getRootNode().getElementById?.(id)?.textContent);
    return attribute(element, 'aria-label') || squeeze(by.filter(Boolean).join(' '));
  };
  const hint = (element) => // what an icon is called in its markup, where nothing else names it
    squeeze(attribute(element, 'title') || element.id || element.getAttribute('class'));
  const label = (element, role) => {
    const name = named(element);
    if (name) return name;
    if (element.tagName === 'LABEL') return squeeze(shownText(element));
    if (element.labels?.length) {
      const text = squeeze(Array.from(element.labels, (one) => shownText(one)).join(' '));
      if (text) return text;
    }
    if (role === 'button' && element.tagName === 'INPUT') return squeeze(element.value || element.alt || element.type);
    if (element.tagName === 'INPUT' || ['textarea', 'select'].includes(role)) {
      const hidden = squeeze(Array.from(element.labels ?? [], (caption) => caption.textContent).join(' '));
      return attribute(element, 'placeholder') || attribute(element, 'title') || hidden || attribute(element, 'name') ||
        element.id;
    }
    return squeeze(shownText(element)) || attribute(element, 'title') || attribute(element, 'alt');
  };

  const chosen = (element) => {
    const states = [];
    const aria = (name) => element.getAttribute(`aria-${name}`);
    if (element.type === 'checkbox' || element.type === 'radio') {
      if (element.checked) states.push(element.type === 'radio' ? 'selected' : 'checked');
    } else if (element.tagName === 'LABEL') {
      if (element.control.checked) states.push('checked');
    } else if (aria('checked') === 'true') states.push('checked');
    if (aria('selected') === 'true') states.push('selected');
    if (aria('expanded') === 'true') states.push('expanded');
    if (aria('expanded') === 'false') states.push('collapsed');
    if (disabled(element) || aria('disabled') === 'true') states.push('disabled');
    if (element.readOnly) states.push('read-only');
    if (active() === element && element !== document.body) states.push('focused');
    return states;
  };

  const inView = (x, y) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight;
  // Whether a click at this point reaches the element and not another one of the list.
  const reaches = (element, x, y) => {
    let isInside = false; // whether something else to use stands in the element, at this point
    let hit = hitAt(x, y);
    while (hit && hit !== element && !(hit.tagName === 'LABEL' && hit.control === element)) {
      isInside ||= use(hit) !== '';
      hit = parentOf(hit);
    }
    return hit !== null && (hit !== element || !isInside);
  };
  // Whether this point of the element is inside of everything that cuts it off, such as a part that is scrolled.
  const uncut = (element, x, y) => {
    for (let outer = holder(element); outer && outer !== document.body; outer = holder(outer)) {
      if (getComputedStyle(outer).overflow === 'visible') continue;
      const box = outer.getBoundingClientRect();
      if (x < box.left || x >= box.right || y < box.top || y >= box.bottom) return false;
    }
    return true;
  };
  // A point at which a click reaches the element, or why there is none; null if it is outside of the window.
  const place = (element) => {
    let shown = false;
    for (const box of element.getClientRects()) {
      for (const [across, down] of [[.5, .5], [.1, .5], [.9, .5], [.5, .1], [.5, .9], [.1, .1], [.9, .9]]) {
        const [x, y] = [box.left + across * box.width, box.top + down * box.height];
        if (!inView(x, y) || !uncut(element, x, y)) continue;
        shown = true;
        if (reaches(element, x, y)) return {x, y};
      }
    }
    return shown ? {why: 'covered'} : null;
  };

  gagpo.read = () => {
    const lines = [];
    let words = '';
    let wordsTop = 0;
    elements = [];
    regions = new Map();

    const flush = (depth) => {
      const text = squeeze(words);
      words = '';
      if (text) lines.push([0, depth, 'text', text, null, [], wordsTop]);
    };
    const push = (element, depth, role, name, value, states) => {
      elements.push(element);
      const top = Math.round(element.getBoundingClientRect().top);
      if (place(element)?.why) states.push('covered');
      lines.push([elements.length, depth, role, name, value, states, top]);
    };
    const pushSelect = (element, depth) => {
      const value = Array.from(element.selectedOptions, (option) => squeeze(option.label)).join(', ');
      push(element, depth, 'select', label(element, 'select'), value, chosen(element));
      const covered = lines[lines.length - 1][5].includes('covered') ? 'covered' : '';
      for (const option of element.options) {
        const unusable = disabled(option) || disabled(element) ? 'disabled' : '';
        const states = [option.selected ? 'selected' : '', unusable, covered];
        elements.push(option);
        const top = lines[lines.length - 1][6];
        lines.push([elements.length, depth + 1, 'option', squeeze(option.label), null, states.filter(Boolean), top]);
      }
    };
    const pushUsed = (element, depth, role, inside) => {
      if (role === 'select') return pushSelect(element, depth);
      const typed = ['input', 'textarea'].includes(role);
      const value = typed || role === 'slider' || FORMATTED.has(element.type) ?
        element.value ?? squeeze(shownText(element)) : null;
      if (inside.length === 1 && !typed && place(element)?.why) {
        // A tab around a link, say: one thing to click with the properties of both.
        const [inner] = inside;
        const states = chosen(element);
        for (const state of chosen(inner)) if (!states.includes(state)) states.push(state);
        const name = label(element, role) || label(inner, use(inner));
        return push(inner, depth, role === 'clickable' ? use(inner) : role, name, value, states);
      }
      if (inside.length && !typed) {
        push(element, depth, role, named(element), value, chosen(element));
        for (const child of childrenOf(element)) walk(child, depth + 1);
        return flush(depth + 1);
      }
      const states = chosen(element);
      const name = label(element, role);
      if (!name && hint(element)) states.unshift(hint(element));
      return push(element, depth, role, name, value, states);
    };
    const pushRow = (row, depth) => {
      const cells = Array.from(row.cells, (cell) => squeeze(shownText(cell)));
      const top = Math.round(row.getBoundingClientRect().top);
      if (cells.some(Boolean)) lines.push([0, depth, 'text', cells.join(' | '), null, [], top]);
    };
    const group = (element) => {
      const role = attribute(element, 'role');
      return GROUP_ROLES.has(role) ? role : GROUPS[element.tagName] ?? '';
    };
    const walk = (node, depth) => {
      if (lines.length >= MOST_LINES) return;
      if (node.nodeType === Node.TEXT_NODE) {
        if (!legible(node) || (node.parentElement && labels(node.parentElement))) return;
        if (!words.trim() && node.data.trim() && node.parentElement) {
          wordsTop = Math.round(node.parentElement.getBoundingClientRect().top);
        }
        words += node.data;
        return;
      }
      if (node.nodeType !== Node.ELEMENT_NODE || SKIPPED.has(node.tagName)) return;
      if (ignored && node.matches(ignored)) return;
      if (!visible(node) || clipped(node)) return;
      const role = inSight(node) ? use(node) : '';
      if (role) {
        const inside = usedInside(node);
        // A listener at an element with other things to use counts if the element shows something itself: it may be
        // that of a whole list.
        const weak = role === 'clickable' && inside.length > 0 &&
          (group(node) !== '' || inside.length > MOST_INSIDE || !hasText(node));
        if (!weak) {
          flush(depth);
          return pushUsed(node, depth, role, inside);
        }
      }
      if (node.tagName === 'BR') return flush(depth);
      if (node.tagName === 'IMG') { words += ` ${shownText(node)} `; return; }
      if (/^H[1-6]$/.test(node.tagName) && !usedInside(node).length) {
        flush(depth);
        const text = squeeze(shownText(node));
        if (text) lines.push([0, depth, 'heading', text, null, [], Math.round(node.getBoundingClientRect().top)]);
        return;
      }
      if (node.tagName === 'TR' && !usedInside(node).length) { flush(depth); return pushRow(node, depth); }
      const isInline = inline(node);
      if (!isInline) flush(depth);
      const kind = group(node);
      const start = lines.length;
      if (kind) lines.push([0, depth, kind, named(node), null, [], Math.round(node.getBoundingClientRect().top)]);
      const deeper = depth + (kind || node.tagName === 'LI' ? 1 : 0);
      for (const child of childrenOf(node)) walk(child, deeper);
      if (!isInline) flush(deeper);
      if (kind && lines.length === start + 1) lines.pop(); // an empty group says nothing
    };

    walk(document.body, 0);
    flush(0);
    regions = null;
    return lines;
  };
  const everything = () => (document.documentElement ? descendants(document.documentElement) : []);
  const values = () => everything().filter((field) => field.matches('input, textarea, select'))
    .map((field) => [field.value, field.checked ?? false]);

  // Pictures that a style or the page loads after it is complete: icons have no size before.
  const loaded = new Map(); // by address
  const pictures = () => {
    const addresses = new Set(Array.from(document.images, (image) => image.currentSrc || image.src));
    for (const element of document.body ? descendants(document.body) : []) {
      const {content} = getComputedStyle(element);
      if (content.startsWith('url("')) addresses.add(content.slice(5, content.indexOf('"', 5)));
    }
    addresses.delete('');
    for (const address of addresses) {
      if (loaded.has(address)) continue;
      const picture = new Image();
      picture.src = address;
      loaded.set(address, picture.decode().catch(() => {}));
    }
    return Promise.all([document.fonts.ready, ...loaded.values()]);
  };

  // Resolves once the page and what it names are loaded, and its own functions for that have run.
  gagpo.loaded = async () => {
    if (document.readyState === 'complete') return;
    await new Promise((resume) => { addEventListener.call(window, 'load', resume, {once: true}); });
    await gagpo.yield(); // the page's own listeners may come after this one
  };

  // What the page is, once its timers of the next `milliseconds` have run.
  gagpo.look = async (milliseconds, ignore) => {
    ignored = ignore;
    // If the page is left, the browser ends this call. A server that answers without a page leaves it where it is.
    const leave = async () => {
      await gagpo.turn();
      if (gagpo.leaving()) await gagpo.wait(PATIENCE);
      gagpo.stay();
    };
    await leave();
    await gagpo.loaded();
    await gagpo.advance(milliseconds - 1);
    await Promise.race([gagpo.answered(), gagpo.wait(PATIENCE)]);
    await Promise.race([pictures(), gagpo.wait(PATIENCE)]);
    await gagpo.advance(1);
    await leave();
    const root = document.scrollingElement ?? {scrollTop: 0, scrollHeight: 0}; // a page may have no body, or nothing at all
    return {
      path: location.pathname + location.search + location.hash,
      title: squeeze(document.title),
      lines: document.body ? gagpo.read() : [],
      notes: gagpo.takeNotes(),
      hidden: JSON.stringify([values(), gagpo.pending(), Math.round(scrollX), Math.round(scrollY)]),
      stored: gagpo.hasStored(),
      unclean: gagpo.unclean,
      place: window.navigation?.currentEntry?.index ?? 0,
      scroll: [root.scrollTop > 0, root.scrollTop + innerHeight < root.scrollHeight - 1],
    };
  };

  // Whether something visible matches the selector and was not written by the agent, as markup that the page shows.
  // typed: all that the agent has typed, in lower case.
  const stems = (element, typed) => {
    if (!/[<="']/.test(typed)) return false;
    const names = Array.from(element.attributes, ({value}) => value.toLowerCase()).flatMap((value) => value.split(/\s+/));
    return typed.includes(`<${element.localName}`) || names.some((name) => name !== '' && typed.includes(name));
  };
  const matching = (selector, typed, taken) => Array.from(document.querySelectorAll(selector)).filter((element) => {
    if (!visible(element) || !taken(element)) return false;
    for (let outer = element; outer && outer !== document.body; outer = parentOf(outer)) {
      if (stems(outer, typed)) return false;
    }
    return true;
  });
  const editedByAgent = (element) => Boolean(parentOf(element)?.isContentEditable);
  gagpo.shows = (selector, typed) => matching(selector, typed, (element) => !editedByAgent(element)).length > 0;

  // Whether the text can be seen, in an element of the selector, or without one anywhere that cannot be edited.
  const CASES = {uppercase: (text) => text.toUpperCase(), lowercase: (text) => text.toLowerCase(),
    capitalize: (text) => text.replace(/(^|\s)\S/gu, (start) => start.toUpperCase())};
  gagpo.says = (text, selector, typed) => {
    const drawn = (node) => (CASES[getComputedStyle(parentOf(node)).textTransform] ?? String)(node.data);
    const roots = selector === null ? [document.body] : matching(selector, typed, () => true);
    const taken = (element) => selector !== null || !element.isContentEditable;
    return roots.some((root) => root !== null && [drawn, (node) => node.data].some((written) =>
      textOf(root, written, taken).replace(/\s+/g, ' ').includes(text)));
  };

  // Width and height of the part of the window that contains everything which can be seen.
  gagpo.extent = (ignore) => {
    const MARGIN = 8; // pixels
    let [right, bottom] = [1, 1];
    for (const element of document.body ? descendants(document.body) : []) {
      if (SKIPPED.has(element.tagName) || (ignore && element.closest(ignore)) || !visible(element)) continue;
      const box = element.getBoundingClientRect();
      right = Math.max(right, box.right);
      bottom = Math.max(bottom, box.bottom);
    }
    return [Math.min(innerWidth, Math.ceil(right) + MARGIN), Math.min(innerHeight, Math.ceil(bottom) + MARGIN)];
  };

  // Where to click the element with this number, or why it cannot be clicked.
  gagpo.aim = (number) => {
    const element = elements[number - 1];
    if (!element || !element.isConnected) return {why: 'gone'};
    if (element.tagName === 'OPTION') return {why: 'option'};
    if (!visible(element) || !inSight(element)) return {why: 'hidden'};
    if (disabled(element)) return {why: 'disabled'};
    let spot = place(element);
    if (spot === null || spot.why) {
      element.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
      spot = place(element);
    }
    return spot ?? {why: 'hidden'};
  };

  // Where to click to type this text into the element, or why that is impossible.
  gagpo.aimToType = (number, text) => {
    const spot = gagpo.aim(number);
    if (spot.why) return spot;
    const element = elements[number - 1];
    const field = element.tagName === 'TEXTAREA' || (element.tagName === 'INPUT' && TYPED.has(element.type));
    if (!field && !element.isContentEditable) return {why: 'no field'};
    if (element.readOnly) return {why: 'read-only'};
    if (FORMATTED.has(element.type)) {
      const probe = document.createElement('input');
      probe.type = element.type;
      probe.value = text;
      if (text && probe.value !== text) return {why: `no ${element.type}`};
    }
    return {...spot, formatted: FORMATTED.has(element.type), focused: active() === element,
      lines: element.tagName !== 'INPUT'};
  };
  // Prepare the element for typing: its text is selected. The value of a field with a format is set at once.
  gagpo.enter = (number, text) => {
    const element = elements[number - 1];
    if (active() !== element) element.focus();
    if (FORMATTED.has(element.type)) {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(element, text);
      element.dispatchEvent(new Event('input', {bubbles: true}));
      element.dispatchEvent(new Event('change', {bubbles: true}));
    } else if (element.isContentEditable) {
      getSelection().selectAllChildren(element);
    } else {
      element.select();
    }
  };
  // Choose an option; returns '' or why not.
  gagpo.choose = (number) => {
    const option = elements[number - 1];
    if (!option || !option.isConnected) return 'gone';
    if (option.tagName !== 'OPTION') return 'no option';
    const select = option.closest('select');
    if (disabled(option) || disabled(select)) return 'disabled';
    if (!visible(select)) return 'hidden';
    if (place(select)?.why) return 'covered';
    select.focus();
    option.selected = select.multiple ? !option.selected : true;
    select.dispatchEvent(new Event('input', {bubbles: true}));
    select.dispatchEvent(new Event('change', {bubbles: true}));
    return '';
  };
  // Scroll the page by most of a window, or the largest scrolled part of it; returns whether anything moved.
  gagpo.scroll = (direction) => {
    const area = (element) => element.clientWidth * element.clientHeight;
    const scrolled = everything().filter((element) =>
      element.scrollHeight > element.clientHeight + 1 && element.clientHeight > 0 &&
      ['auto', 'scroll'].includes(getComputedStyle(element).overflowY) && visible(element));
    const page = document.scrollingElement ? [document.scrollingElement] : [];
    const parts = [...page, ...scrolled.sort((one, two) => area(two) - area(one))];
    for (const part of parts) {
      const before = part.scrollTop;
      part.scrollBy({top: direction * .8 * (part.clientHeight || innerHeight), behavior: 'instant'});
      if (part.scrollTop !== before) {
        part.dispatchEvent(new Event('scroll', {bubbles: part === document.scrollingElement}));
        return true;
      }
    }
    return false;
  };
}
