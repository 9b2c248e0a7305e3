/** How long it will still take, from how fast it went. Pure but for what it remembers. */

const SHORTEST_MS = 1_500;

export class RemainingTime {
  #first = new Map();

  /** @returns {number | null} seconds, or null while nobody can tell */
  left(ws, now) {
    const { progress, op_id: operation } = ws;
    if (!progress || !progress.total_bytes || !progress.bytes) {
      if (!progress) this.#first.delete(ws.id);
      return null;
    }
    const first = this.#first.get(ws.id);
    if (!first || first.operation !== operation || first.bytes > progress.bytes) {
      this.#first.set(ws.id, { operation, bytes: progress.bytes, at: now });
      return null;
    }
    const done = progress.bytes - first.bytes;
    const took = now - first.at;
    if (done <= 0 || took < SHORTEST_MS) return null;
    return ((Math.max(0, progress.total_bytes - progress.bytes) / done) * took) / 1_000;
  }

  forget(id) {
    this.#first.delete(id);
  }
}
