// A page opened from disk may start no worker: the site's search then runs in a hidden frame, with a worker's interface.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      // What the frame's script posts goes to this page; scripts that it imports become elements.
      this.inside.postMessage = (data) => this.#tell("message", { data });
      this.inside.importScripts = (...sources) => sources.forEach((source) => this.#load(source));
      this.ready = this.#load(address);
    }

    #load(source) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(source, location.href);
        script.onload = resolve;
        script.onerror = () => { this.#tell("error", {}); reject(new Error(`${script.src} cannot be read`)); };
        this.inside.document.body.append(script);
      });
    }

    #tell(kind, facts) {
      const event = new MessageEvent(kind, facts);
      this.dispatchEvent(event);
      this[`on${kind}`]?.(event);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })), () => {});
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
