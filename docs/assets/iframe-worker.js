// Browsers start no Worker from a file. If the site is opened as files, the search's worker runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      // In the frame, the worker's postMessage() would send to the frame itself.
      frame.srcdoc = `<script>postMessage = (data) => frameElement.deliver(data)</script><script src="${url}"></script>`;
      frame.deliver = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
      this.postMessage = (data) =>
        loaded.then(() => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
      document.documentElement.append(frame);
    }
  };
}
