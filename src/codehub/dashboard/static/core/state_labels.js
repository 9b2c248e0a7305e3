/** The generated states as words: their English, by the keys that every language answers to. */

import { ACTIONS, AUDIT, CONDITIONS, GARBAGE, OPERATIONS, PHASES, REASONS, RECOVERIES } from "./states.js";

/** @returns {Object<string, string>} */
export function englishStates() {
  const words = {};
  for (const [name, { label, meaning }] of Object.entries(PHASES)) {
    words[`phase.${name}`] = label;
    words[`phase.${name}.meaning`] = meaning;
  }
  for (const [name, { label }] of Object.entries(OPERATIONS)) words[`operation.${name}`] = label;
  for (const [name, { label }] of Object.entries(ACTIONS)) words[`action.${name}`] = label;
  for (const [name, { label }] of Object.entries(CONDITIONS)) words[`condition.${name}`] = label;
  for (const [name, { meaning, whatToDo }] of Object.entries(REASONS)) {
    words[`reason.${name}.meaning`] = meaning;
    words[`reason.${name}.do`] = whatToDo;
  }
  for (const [name, { label, meaning }] of Object.entries(RECOVERIES)) {
    words[`recovery.${name}`] = label;
    words[`recovery.${name}.meaning`] = meaning;
  }
  for (const [name, why] of Object.entries(GARBAGE)) words[`garbage.why.${name}`] = why;
  for (const [name, did] of Object.entries(AUDIT)) words[`did.${name}`] = did;
  return words;
}
