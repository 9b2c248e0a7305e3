/** When each workspace stops and why: asked for those that somebody looks at, a few at a time, and never kept long. */

import { get } from "./api.js";
import { isSettled } from "./workspace_state.js";

const AT_ONCE = 4;
const FRESH_MS = 15_000;
const TELLING = new Set(["RUNNING", "STANDBY"]);

export class Lifecycles {
  #known = new Map();
  #waiting = new Map();
  #busy = 0;
  #listeners = new Set();

  /** @returns {Object | null} what was told of this very state of the workspace */
  of(ws) {
    const known = this.#known.get(ws.id);
    return known && known.phase === ws.phase && isSettled(ws) ? known.told : null;
  }

  listen(hear) {
    this.#listeners.add(hear);
    return () => this.#listeners.delete(hear);
  }

  /** Asks for a workspace's lifecycle unless it was told lately. */
  want(ws, { force = false } = {}) {
    if (!TELLING.has(ws.phase) || !isSettled(ws)) return;
    const known = this.#known.get(ws.id);
    if (!force && known && known.phase === ws.phase && performance.now() - known.at < FRESH_MS) return;
    this.#waiting.set(ws.id, ws.phase);
    this.#next();
  }

  #next() {
    while (this.#busy < AT_ONCE && this.#waiting.size) {
      const [id, phase] = this.#waiting.entries().next().value;
      this.#waiting.delete(id);
      this.#ask(id, phase);
    }
  }

  async #ask(id, phase) {
    this.#busy += 1;
    try {
      const told = await get(`workspaces/${id}/lifecycle`);
      this.#known.set(id, { phase, told, at: performance.now() });
      for (const hear of [...this.#listeners]) hear(id, told);
    } catch {
      this.#known.set(id, { phase, told: null, at: performance.now() });
    } finally {
      this.#busy -= 1;
      this.#next();
    }
  }
}
