/* Search without a web server: browsers start no worker from file://, so its script runs in a hidden frame there. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<script>" +
        "postMessage = data => parent.postMessage(data, '*');" +
        "importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise(loaded => {" +
        "const script = document.createElement('script'); script.src = url; script.onload = loaded;" +
        "document.body.appendChild(script) })), Promise.resolve())" +
        "</" + "script><script src='" + url + "'></" + "script>"
      this.hear = event => {
        if (event.source !== this.frame.contentWindow) return
        const message = new MessageEvent("message", {data: event.data})
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      window.addEventListener("message", this.hear)
      this.frame.onload = () => {
        this.ready = true
        this.waiting.splice(0).forEach(data => this.postMessage(data))
      }
      document.body.appendChild(this.frame)
    }
    postMessage(data) {
      if (!this.ready) return void this.waiting.push(data)
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}))
    }
    terminate() {
      window.removeEventListener("message", this.hear)
      this.frame.remove()
    }
  }
}
