/** What running workspaces use: asked for those that somebody looks at, all in one question, every few seconds. */

import { get } from "./api.js";

const EVERY_MS = 5_000;
const KEPT_MS = 20_000;
const MOST = 100;

export class Usages {
  #known = new Map();
  #listeners = new Set();
  #askedAt = -Infinity;
  #asking = false;
  #asked = "";

  /** @returns {Object | null} what was told of it lately; null: not known, or it does not run */
  of(ws) {
    const known = this.#known.get(ws.id);
    return known && ws.phase === "RUNNING" && performance.now() - known.at < KEPT_MS ? known.told : null;
  }

  listen(hear) {
    this.#listeners.add(hear);
    return () => this.#listeners.delete(hear);
  }

  /** Asks for these workspaces, unless that was just done. Call it as often as you like while somebody looks. */
  want(workspaces) {
    const ids = workspaces.filter((ws) => ws.phase === "RUNNING").map((ws) => ws.id).slice(0, MOST);
    const key = ids.toSorted().join();
    const isDue = key !== this.#asked || performance.now() - this.#askedAt >= EVERY_MS;
    if (ids.length && isDue && !this.#asking) this.#ask(ids, key);
  }

  async #ask(ids, key) {
    this.#asking = true;
    this.#asked = key;
    this.#askedAt = performance.now();
    try {
      const { items } = await get(`usage?${ids.map((id) => `id=${id}`).join("&")}`);
      const told = new Map(items.map((item) => [item.id, item]));
      for (const id of ids) this.#known.set(id, { told: told.get(id) ?? null, at: performance.now() });
      for (const hear of [...this.#listeners]) hear(ids);
    } catch {
      // What was told before grows old, and is shown no more.
    } finally {
      this.#asking = false;
    }
  }
}
