// Browsers start no workers for pages that are opened as files. There, the script of a worker runs in a hidden frame, so that
// the search of the site works from a folder too. Material's search looks for the name IFrameWorker.
"use strict";

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.waiting = [];
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow, page = inside.document;
    page.open();
    page.write("<!doctype html><body></body>");
    page.close();
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = page.createElement("script");
    script.src = url;
    script.onload = () => {
      const waiting = this.waiting;
      this.waiting = null;
      waiting.forEach((data) => this.postMessage(data));
    };
    script.onerror = () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} cannot be read` }));
    page.body.append(script);
  }

  postMessage(data) {
    if (this.waiting) this.waiting.push(data);
    else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = IFrameWorker;
}
