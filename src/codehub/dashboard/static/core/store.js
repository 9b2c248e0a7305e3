/** The workspaces as last told. Listeners hear of changes once per frame, however many there were. */

export class Store {
  #known = new Map();
  #listeners = new Set();
  #changeListeners = new Set();
  #dirty = new Set();
  #all = false;
  #planned = false;
  /** Whether the first snapshot has come: that nothing is known yet is not the same as nothing. */
  ready = false;

  get(id) {
    return this.#known.get(id);
  }

  /** @returns {Object[]} */
  values() {
    return [...this.#known.values()];
  }

  get size() {
    return this.#known.size;
  }

  snapshot(workspaces) {
    this.#known = new Map(workspaces.map((ws) => [ws.id, ws]));
    this.ready = true;
    this.#all = true;
    this.#plan();
  }

  /** An answer may arrive after a newer event; the older one loses. */
  put(ws) {
    const before = this.#known.get(ws.id);
    if (before && Date.parse(before.updated_at) > Date.parse(ws.updated_at)) return;
    if (ws.deleted_at) return void this.remove(ws.id);
    this.#known.set(ws.id, ws);
    this.#note(ws.id, before, ws);
  }

  progress(told) {
    const before = this.#known.get(told.id);
    if (!before) return;
    this.#known.set(told.id, { ...before, ...told });
    this.#mark(told.id);
  }

  remove(id) {
    const before = this.#known.get(id);
    if (!before) return;
    this.#known.delete(id);
    this.#note(id, before, null);
  }

  /** @param {(ids: Set<string> | null) => void} hear null: everything may have changed. Returns how to stop. */
  listen(hear) {
    this.#listeners.add(hear);
    return () => this.#listeners.delete(hear);
  }

  /** Hears each single change, at once: (before, after), either of them null. */
  onChange(hear) {
    this.#changeListeners.add(hear);
    return () => this.#changeListeners.delete(hear);
  }

  #note(id, before, after) {
    this.#mark(id);
    if (this.ready) for (const hear of this.#changeListeners) hear(before ?? null, after);
  }

  #mark(id) {
    this.#dirty.add(id);
    this.#plan();
  }

  #plan() {
    if (this.#planned) return;
    this.#planned = true;
    // A hidden page gets no frames, and must not pile up what it heard.
    if (document.hidden) setTimeout(() => this.#flush(), 100);
    else requestAnimationFrame(() => this.#flush());
  }

  #flush() {
    const ids = this.#all ? null : this.#dirty;
    this.#planned = this.#all = false;
    this.#dirty = new Set();
    for (const hear of [...this.#listeners]) hear(ids);
  }
}
