/** Functions of a workspace and of the generated state table, without side effects. */

import { ACTIONS, PHASES, TRANSITIONS } from "./states.js";

/** The steps from a phase to a wish, one neighbour at a time. @returns {typeof TRANSITIONS} */
export function stepsBetween(phase, wish) {
  const steps = [];
  for (let place = phase; place !== wish && steps.length < TRANSITIONS.length; ) {
    const step = TRANSITIONS.find((row) => row.phase === place && row.wishes.includes(wish));
    if (!step) break;
    steps.push(step);
    place = step.leadsTo;
  }
  return steps;
}

export const isBusy = (ws) => ws.operation !== "NONE";

export const isSettled = (ws) => ws.is_at_rest && ws.phase !== "ERROR";

/** Whether the table gives this action a meaning now, and it is not wished for already. */
export function allows(name, ws) {
  const { phases, wish } = ACTIONS[name];
  if (ws.phase === "DELETED") return name === "undelete";
  if (wish === null) return phases.includes(ws.phase);
  return wish !== ws.desired_state && reachable(phases, wish, ws);
}

/** A wish may be taken back while it is under way: stop what starts, start what stops. */
function reachable(phases, wish, ws) {
  if (phases.includes(ws.phase)) return true;
  return ws.phase !== "ERROR" && wish === ws.phase && ws.desired_state !== ws.phase && wish !== "PENDING";
}

/** For colours: what it does is more telling than where it is. */
export function tone(ws) {
  if (ws.phase === "ERROR" || ws.phase === "DELETED") return PHASES[ws.phase].tone;
  return isSettled(ws) ? PHASES[ws.phase].tone : "busy";
}
