/** Functions of a workspace and of the generated state table, without side effects. */

import { ACTIONS, PHASES, TRANSITIONS } from "./states.js";

/** The steps from a phase to a desired state, one neighbour at a time. @returns {typeof TRANSITIONS} */
export function stepsBetween(phase, desired) {
  const steps = [];
  for (let place = phase; place !== desired && steps.length < TRANSITIONS.length; ) {
    const step = TRANSITIONS.find((row) => row.phase === place && row.desired.includes(desired));
    if (!step) break;
    steps.push(step);
    place = step.leadsTo;
  }
  return steps;
}

export const isBusy = (ws) => ws.operation !== "NONE";

export const isSettled = (ws) => ws.is_at_rest && ws.phase !== "ERROR";

/** Whether the table allows this action now, and it is not asked for already. */
export function allows(name, ws) {
  const { phases, desired } = ACTIONS[name];
  if (ws.phase === "DELETED") return name === "undelete";
  if (desired === null) return phases.includes(ws.phase);
  return desired !== ws.desired_state && reachable(phases, desired, ws);
}

/** Whether the phase allows it, or it takes back a change under way: stop what starts, start what stops. */
function reachable(phases, desired, ws) {
  if (phases.includes(ws.phase)) return true;
  return ws.phase !== "ERROR" && desired === ws.phase && ws.desired_state !== ws.phase && desired !== "PENDING";
}

/** The tone for colours: what a workspace does is more telling than where it is. */
export function tone(ws) {
  if (ws.phase === "ERROR" || ws.phase === "DELETED") return PHASES[ws.phase].tone;
  return isSettled(ws) ? PHASES[ws.phase].tone : "busy";
}
