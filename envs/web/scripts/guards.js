// Answers dialogs, blocks pop-ups, downloads and foreign addresses, and knows whether the page is still busy.
//
// The browser itself can reach its own server only. What happens here makes the reason readable for the agent.
function guards(gagpo) {
  const MOST_NOTES = 5;
  const LONGEST = 200;
  const notes = [];
  const note = (text) => {
    if (notes.length < MOST_NOTES) notes.push(text.replace(/\s+/g, ' ').slice(0, LONGEST));
  };
  gagpo.takeNotes = () => notes.splice(0);

  window.alert = (text = '') => note(`The page said: ${text}`);
  window.confirm = (text = '') => { note(`The page asked: ${text} (answered: OK)`); return true; };
  window.prompt = (text = '', preset = '') => { note(`The page asked: ${text} (answered: ${preset})`); return preset; };
  window.print = () => {};
  window.open = (url = '') => { note(`A pop-up was blocked: ${url}`); return null; };

  // A link or form for another window opens in this one.
  const here = (element) => {
    if (element && element.target && element.target !== '_self') element.target = '_self';
  };
  let clicked = []; // events on links that the browser refuses to follow, without any further event
  window.addEventListener('click', (event) => {
    const link = event.composedPath().find((element) => element instanceof Element && element.matches('a[href], area[href]'));
    here(link);
    const refused = ['file:', 'data:', 'filesystem:'].includes(link?.protocol) && !link.hasAttribute('download');
    if (refused) clicked.push([event, link.protocol]);
  }, true);
  // A form is sent a moment after its event, so the page waits for the navigation that follows.
  const SENDING = 250; // milliseconds
  let sent = null;
  // root: the window, or a shadow root: this event does not leave one.
  gagpo.watch = (root) => root.addEventListener('submit', (event) => { here(event.target); sent = event; }, true);
  gagpo.watch(window);
  const {submit} = HTMLFormElement.prototype;
  HTMLFormElement.prototype.submit = function () {
    here(this);
    sent = {target: this, defaultPrevented: false};
    return submit.call(this);
  };
  // Let the browser do what it has put off; resolves once a navigation that is due has begun.
  gagpo.turn = async () => {
    await gagpo.yield();
    for (const [event, protocol] of clicked) {
      if (!event.defaultPrevented) note(`${protocol} cannot be reached from here.`);
    }
    clicked = [];
    const due = () => sent !== null && !sent.defaultPrevented && sent.target.method !== 'dialog';
    for (let waited = 0; due() && waited < SENDING; waited += 2) await gagpo.wait(2);
    sent = null;
  };

  let departure = null; // the event of a navigation to another document that has begun
  gagpo.leaving = () => departure !== null && !departure.defaultPrevented;
  gagpo.stay = () => { departure = null; };
  if (window.navigation && window.top === window) {
    window.navigation.addEventListener('navigate', (event) => {
      sent = null;
      if (event.destination.sameDocument || event.hashChange) return;
      const target = new URL(event.destination.url);
      if (event.downloadRequest !== null) {
        event.preventDefault();
        note('A download was blocked.');
      } else if (target.origin !== location.origin && event.cancelable) {
        event.preventDefault();
        note(`${target.origin === 'null' ? target.protocol : target.origin} cannot be reached from here.`);
      } else {
        departure = event;
      }
    });
    window.navigation.addEventListener('navigatesuccess', gagpo.stay);
  }

  // Requests of the page that are not answered yet.
  let open = 0;
  let waiting = [];
  const ended = () => {
    if (--open === 0) waiting.splice(0).forEach((resume) => resume());
  };
  const {fetch: realFetch} = window;
  window.fetch = (...values) => {
    open++;
    return realFetch.apply(window, values).finally(ended);
  };
  const {send} = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.send = function (...values) {
    open++;
    this.addEventListener('loadend', ended, {once: true});
    try {
      return send.apply(this, values);
    } catch (error) {
      ended();
      throw error;
    }
  };
  gagpo.answered = () => (open ? new Promise((resolve) => waiting.push(resolve)) : null);
}
