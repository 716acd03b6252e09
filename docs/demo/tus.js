// A small client of the tus resumable upload protocol 1.0.0 (https://tus.io):
// creation, offset, append in pieces, termination. One Upload is one file; its
// URL is remembered in localStorage under the file's name, size and date, so
// that choosing the same file after a reload continues it.
//
// What may pass on its own is tried again with growing pauses: lost
// connections, 409 (the offset moved), 423 (in use, or the application is still
// working), 429 and 5xx. Any other refusal ends the attempt.

const PIECE = 4 * 1024 * 1024;
const PREFIX = "gatehouse-upload ";
const FIRST_PAUSE = 500; // milliseconds
const LONGEST_PAUSE = 15000;
const FUTILE_TRIES = 12; // in a row, without a byte of progress

/** A refusal by the server that trying again does not mend. */
export class Refused extends Error {
  constructor(answer) {
    super(answer.problem?.detail || answer.problem?.title || `The server answered ${answer.status}`);
    this.answer = answer;
  }
}

class Stopped extends Error {}

export class Upload {
  #file;
  #endpoint;
  #on;
  #key;
  #stop = null; // AbortController of the run under way

  /**
   * on.progress(bytesSent), on.waiting(milliseconds, reason), on.resumed(offset)
   * are called while run() works; each may be left out.
   */
  constructor(file, endpoint, on = {}) {
    this.#file = file;
    this.#endpoint = new URL(endpoint, location.href).href;
    this.#on = on;
    this.#key = PREFIX + JSON.stringify([this.#endpoint, file.name, file.size, file.lastModified]);
  }

  get running() { return this.#stop !== null; }

  /** Uploads, or continues. Resolves to the last answer, or to null when paused. */
  async run() {
    if (this.running) throw new Error("the upload is running already");
    const stop = this.#stop = new AbortController();
    try {
      return await this.#persist(stop.signal);
    } catch (error) {
      if (error instanceof Stopped) return null;
      throw error;
    } finally {
      this.#stop = null;
    }
  }

  /** Ends the run under way; run() continues later. */
  pause() { this.#stop?.abort(); }

  /** Stops and has the server forget the upload. */
  async cancel() {
    this.pause();
    const url = this.#recall();
    this.#forget();
    if (!url) return;
    const answer = await send("DELETE", url, {}, null, {});
    if (answer.status >= 400 && answer.status !== 404 && answer.status !== 410) throw new Refused(answer);
  }

  // #persist repeats attempts until one succeeds, or fails for good.
  async #persist(signal) {
    let best = -1;
    let futile = 0;
    const advance = (offset) => {
      if (offset > best) { best = offset; futile = 0; }
      this.#on.progress?.(offset);
    };
    for (;;) {
      const answer = await this.#attempt(signal, advance);
      if (answer.status >= 200 && answer.status < 300) {
        this.#forget();
        return answer;
      }
      if (isFinal(answer)) this.#forget();
      if (!mayPass(answer) || ++futile > FUTILE_TRIES) throw new Refused(answer);
      await this.#wait(signal, futile, answer);
    }
  }

  // #attempt goes on from where the server is until everything is sent or an
  // answer is no success, and returns the last answer.
  async #attempt(signal, advance) {
    const at = await this.#locate(signal);
    if (at.answer) return at.answer;
    let { url, offset } = at;
    for (;;) {
      advance(offset);
      const piece = this.#file.slice(offset, offset + PIECE);
      const answer = await send("PATCH", url, {
        "Content-Type": "application/offset+octet-stream",
        "Upload-Offset": String(offset),
      }, piece, { signal, progress: (sent) => this.#on.progress?.(offset + sent) });
      if (answer.status < 200 || answer.status >= 300) return answer;
      const next = Number(answer.header("Upload-Offset") ?? NaN);
      if (!(next >= offset && next <= this.#file.size)) throw new Error("The server's offset makes no sense");
      if (next === this.#file.size) {
        advance(next);
        return answer;
      }
      if (next === offset) return { ...answer, status: 409 };
      offset = next;
    }
  }

  // #locate finds the upload of an earlier run, or creates one.
  async #locate(signal) {
    const url = this.#recall();
    if (!url) return this.#create(signal);
    const answer = await send("HEAD", url, {}, null, { signal });
    if (gone(answer.status)) {
      this.#forget();
      return this.#create(signal);
    }
    const offset = answer.header("Upload-Offset");
    if (answer.status < 200 || answer.status >= 300 || offset === null) return { answer };
    this.#on.resumed?.(Number(offset));
    return { url, offset: Number(offset) };
  }

  async #create(signal) {
    const metadata = ["filename " + base64(this.#file.name)];
    if (this.#file.type) metadata.push("filetype " + base64(this.#file.type));
    const answer = await send("POST", this.#endpoint, {
      "Upload-Length": String(this.#file.size),
      "Upload-Metadata": metadata.join(","),
    }, null, { signal });
    const where = answer.header("Location");
    if (answer.status !== 201 || this.#file.size === 0) return { answer };
    if (where === null) throw new Error("The server gave the upload no address");
    const url = new URL(where, this.#endpoint).href;
    localStorage.setItem(this.#key, url);
    return { url, offset: 0 };
  }

  // #wait pauses longer from try to try, as long as the server asks at least;
  // a network that comes back ends it early.
  async #wait(signal, tries, answer) {
    const asked = Number(answer.header("Retry-After")) * 1000 || 0;
    const pause = Math.max(asked, Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1)) * (0.75 + Math.random() / 2));
    this.#on.waiting?.(pause, answer.status === 0 ? "the connection was lost" : `the server answered ${answer.status}`);
    await new Promise((resolve, reject) => {
      const finish = (then) => () => {
        clearTimeout(timer);
        removeEventListener("online", online);
        signal.removeEventListener("abort", aborted);
        then();
      };
      const online = finish(resolve);
      const aborted = finish(() => reject(new Stopped()));
      const timer = setTimeout(online, pause);
      addEventListener("online", online);
      signal.addEventListener("abort", aborted);
      if (signal.aborted) aborted();
    });
  }

  #recall() { return localStorage.getItem(this.#key); }
  #forget() { localStorage.removeItem(this.#key); }
}

/** The names of files whose upload to endpoint was begun and not finished. */
export function unfinished(endpoint) {
  const wanted = new URL(endpoint, location.href).href;
  const names = [];
  for (let i = 0; i < localStorage.length; i++) {
    const key = localStorage.key(i);
    if (!key.startsWith(PREFIX)) continue;
    const [at, name] = JSON.parse(key.slice(PREFIX.length));
    if (at === wanted) names.push(name);
  }
  return names;
}

function gone(status) { return status === 404 || status === 410; }

// 0 stands for a lost connection. An interrupted delivery may have reached the
// application, so a person decides whether to send the file again.
function mayPass({ status, problem }) {
  if (problem?.code === "upload-interrupted") return false;
  return status === 0 || status === 409 || status === 423 || status === 429 || (status >= 500 && status !== 501 && status !== 507);
}

// What the application refused is over; who must sign in first may continue.
function isFinal(answer) {
  return answer.status >= 400 && answer.status < 500 && answer.status !== 401 && answer.status !== 403 && !mayPass(answer);
}

// send makes one request. A connection that fails gives the status 0.
function send(method, url, headers, body, { signal, progress }) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new Stopped());
    const xhr = new XMLHttpRequest();
    const abort = () => xhr.abort();
    const answer = () => ({
      status: xhr.status,
      header: (name) => xhr.getResponseHeader(name),
      headers: xhr.getAllResponseHeaders().trim().split(/\r?\n/).filter(Boolean).map((line) => {
        const colon = line.indexOf(":");
        return [line.slice(0, colon), line.slice(colon + 1).trim()];
      }),
      problem: problemOf(xhr),
    });
    xhr.open(method, url);
    xhr.setRequestHeader("Tus-Resumable", "1.0.0");
    for (const [name, value] of Object.entries(headers)) xhr.setRequestHeader(name, value);
    if (progress) xhr.upload.addEventListener("progress", (event) => progress(event.loaded));
    xhr.addEventListener("load", () => resolve(answer()));
    xhr.addEventListener("error", () => resolve(answer()));
    xhr.addEventListener("abort", () => reject(new Stopped()));
    xhr.addEventListener("loadend", () => signal?.removeEventListener("abort", abort));
    signal?.addEventListener("abort", abort);
    xhr.send(body);
  });
}

function problemOf(xhr) {
  if (!(xhr.getResponseHeader("Content-Type") || "").startsWith("application/problem+json")) return null;
  try {
    return JSON.parse(xhr.responseText);
  } catch {
    return null;
  }
}

function base64(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}
