/** Which workspaces a view shows, and in which order. Pure. */

import { isSettled } from "../core/workspace_state.js";

export const FILTERS = {
  all: () => true,
  running: (ws) => ws.phase === "RUNNING",
  busy: (ws) => ws.phase !== "ERROR" && !isSettled(ws),
  asleep: (ws) => ws.phase === "STANDBY",
  empty: (ws) => ws.phase === "PENDING",
  archived: (ws) => ws.phase === "ARCHIVED",
  error: (ws) => ws.phase === "ERROR",
  deleted: () => true,
};

const recently = (ws) => Date.parse(ws.deleted_at ?? ws.last_access_at ?? ws.created_at);
const byName = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true, sensitivity: "base" });
const RANK = { ERROR: 0, RUNNING: 1, STANDBY: 2, PENDING: 3, ARCHIVED: 4, DELETED: 5 };

/** The first is the one whose order no click can change: nothing jumps from under a pointer. */
export const SORTS = {
  created: (a, b) => Date.parse(b.created_at) - Date.parse(a.created_at),
  used: (a, b) => recently(b) - recently(a),
  name: byName,
  state: (a, b) => RANK[a.phase] - RANK[b.phase] || byName(a, b),
};

/** @param {{q: string, filter: string, sort: string}} view */
export function chosen(workspaces, { q, filter, sort }) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (ws) => {
    const text = `${ws.name}\n${ws.description}\n${ws.memo}\n${ws.owner}\n${ws.template}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  return workspaces
    .filter((ws) => FILTERS[filter](ws) && (!words.length || holds(ws)))
    .sort((a, b) => SORTS[sort](a, b) || (a.id < b.id ? -1 : 1));
}

export function counts(workspaces) {
  const totals = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, 0]));
  for (const ws of workspaces) {
    for (const name of Object.keys(FILTERS)) if (FILTERS[name](ws)) totals[name] += 1;
  }
  return totals;
}
