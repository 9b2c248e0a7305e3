/**
 * The event stream: begins with a snapshot, begins anew whenever it breaks, and says so when that takes long. A stream
 * that is silent for longer than its heartbeat allows is taken for broken: half-open connections make no sound.
 */

import { get } from "./api.js";

const SILENCE_MS = 70_000;
const SAY_AFTER_MS = 3_000;
const LONGEST_WAIT_MS = 15_000;
const HIDDEN_MS = 60_000;

export class Stream {
  #store;
  #source = null;
  #everybody = false;
  #heardAt = 0;
  #failures = 0;
  #timers = { again: 0, say: 0, silence: 0, hidden: 0 };
  #watchers = new Set();
  /** When what is shown was last known to be true; null while it is. */
  staleSince = null;
  onWarning = () => {};
  onNotice = () => {};

  constructor(store) {
    this.#store = store;
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("online", () => this.#source || this.#open());
  }

  start() {
    this.#open();
  }

  /** Streams everybody's workspaces, for admins. */
  watchEverybody(everybody) {
    if (everybody === this.#everybody) return;
    this.#everybody = everybody;
    if (this.#source || this.#timers.again) this.#open();
  }

  /** @param {(staleSince: number | null) => void} hear */
  watch(hear) {
    this.#watchers.add(hear);
    return () => this.#watchers.delete(hear);
  }

  #open() {
    this.#close();
    const source = new EventSource(`/api/v1/events${this.#everybody ? "?all=true" : ""}`);
    this.#source = source;
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        if (source !== this.#source) return;
        this.#heard();
        take(JSON.parse(event.data));
      });
    on("snapshot", ({ workspaces }) => this.#store.snapshot(workspaces));
    on("workspace_updated", (ws) => this.#store.put(ws));
    on("workspace_deleted", ({ id }) => this.#store.remove(id));
    on("progress", (told) => this.#store.progress(told));
    on("idle_warning", (told) => this.onWarning(told));
    on("notice", (told) => this.onNotice(told));
    on("heartbeat", () => {});
    source.onerror = () => source === this.#source && this.#broken();
    this.#timers.silence = setInterval(() => {
      if (Date.now() - this.#heardAt > SILENCE_MS) this.#broken();
    }, 5_000);
    this.#heardAt = Date.now();
  }

  #close() {
    clearTimeout(this.#timers.again);
    clearInterval(this.#timers.silence);
    this.#timers.again = 0;
    this.#source?.close();
    this.#source = null;
  }

  #heard() {
    this.#heardAt = Date.now();
    this.#failures = 0;
    clearTimeout(this.#timers.say);
    this.#timers.say = 0;
    if (this.staleSince !== null) this.#tell(null);
  }

  async #broken() {
    this.#close();
    const since = this.#heardAt;
    if (!this.#timers.say) this.#timers.say = setTimeout(() => this.#tell(since), SAY_AFTER_MS);
    this.#failures += 1;
    const wait = Math.min(LONGEST_WAIT_MS, 300 * 2 ** Math.min(this.#failures - 1, 6));
    this.#timers.again = setTimeout(() => this.#open(), wait * (0.75 + Math.random() / 2));
    // An EventSource does not say why it failed. If nobody is signed in any more, this leads to the sign-in page.
    if (this.#failures > 1) await get("session").catch(() => null);
  }

  #tell(staleSince) {
    this.staleSince = staleSince;
    for (const hear of this.#watchers) hear(staleSince);
  }

  /** Browsers keep few connections per host: tabs that nobody looks at give theirs back. */
  #seen() {
    clearTimeout(this.#timers.hidden);
    if (document.hidden) {
      this.#timers.hidden = setTimeout(() => this.#close(), HIDDEN_MS);
    } else if (!this.#source) {
      this.#open();
    }
  }
}
