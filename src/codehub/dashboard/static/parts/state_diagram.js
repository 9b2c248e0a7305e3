/** The state machine, drawn from the generated table, with the present place in it and the way ahead. */

import { drawing, element, replace } from "../core/element.js";
import { PHASES, TRANSITIONS } from "../core/states.js";
import { isBusy, tone, stepsBetween } from "../core/workspace_state.js";
import { t } from "../core/language.js";

const NARROW = matchMedia("(max-width: 700px)");
const BOX = { width: 148, height: 52 };

/** Those with a level stand in a line, from nothing to running; the rest below. */
const LINE = Object.keys(PHASES)
  .filter((name) => PHASES[name].level !== null && PHASES[name].level >= 0)
  .sort((a, b) => PHASES[a].level - PHASES[b].level);
const ASIDE = Object.keys(PHASES).filter((name) => !LINE.includes(name));

export function machine() {
  const node = element("figure", { class: "machine" });
  let drawn = "";
  let last = null;

  function update(ws) {
    last = ws;
    const key = [ws.phase, ws.operation, ws.desired_state, NARROW.matches].join();
    if (key === drawn) return;
    drawn = key;
    replace(node, picture(ws, NARROW.matches), element("figcaption", { class: "unseen" }, caption(ws)));
  }

  const turned = () => last && update(last);
  NARROW.addEventListener("change", turned);
  return { node, update, dispose: () => NARROW.removeEventListener("change", turned) };
}

function caption(ws) {
  const steps = stepsBetween(ws.phase, ws.desired_state).map((step) => t(`operation.${step.operation}`));
  const here = t("machine.here", { phase: t(`phase.${ws.phase}`) });
  return steps.length ? `${here} ${t("machine.ahead", { steps: steps.join(", ") })}` : here;
}

function places(narrow) {
  const found = {};
  if (narrow) {
    [...LINE].reverse().forEach((name, place) => (found[name] = { x: 104, y: 34 + place * 104 }));
    ASIDE.forEach((name, place) => (found[name] = { x: 276, y: 34 + (LINE.length - 1 - place * 2) * 104 }));
  } else {
    LINE.forEach((name, place) => (found[name] = { x: 80 + place * 232, y: 70 }));
    ASIDE.forEach((name, place) => (found[name] = { x: 80 + 116 + place * 464, y: 218 }));
  }
  return found;
}

function picture(ws, narrow) {
  const at = places(narrow);
  const steps = stepsBetween(ws.phase, ws.desired_state);
  const size = narrow ? [352, 68 + (LINE.length - 1) * 104] : [160 + (LINE.length - 1) * 232, 262];
  return drawing(
    "svg",
    { viewBox: `0 0 ${size[0]} ${size[1]}`, "aria-hidden": "true", focusable: "false" },
    drawing("defs", {}, arrow("arrow"), arrow("arrow-live")),
    TRANSITIONS.map((step) => edge(step, at, narrow, look(step, ws, steps))),
    Object.keys(at).map((name) => box(name, at[name], ws)),
  );
}

function arrow(id) {
  return drawing(
    "marker",
    { id, viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto-start-reverse" },
    drawing("path", { d: "M0 0 8 4 0 8z", class: id }),
  );
}

function look(step, ws, steps) {
  const ahead = steps.findIndex((one) => one.phase === step.phase && one.operation === step.operation && one.leadsTo === step.leadsTo);
  if (isBusy(ws) && step.phase === ws.phase && step.operation === ws.operation) return "edge live";
  return ahead >= 0 ? "edge ahead" : "edge";
}

function box(name, { x, y }, ws) {
  const here = name === ws.phase;
  const desired = !here && name === ws.desired_state;
  return drawing(
    "g",
    { class: `place${here ? " here" : ""}${desired ? " desired" : ""}`, "data-tone": here ? tone(ws) : PHASES[name].tone },
    drawing("rect", { x: x - BOX.width / 2, y: y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 12 }),
    drawing("text", { x, y: y + 5, "text-anchor": "middle" }, t(`phase.${name}`)),
  );
}

/** Up the line on one side, down it on the other, so that both directions can be read. */
function edge(step, at, narrow, className) {
  const from = at[step.phase];
  const to = at[step.leadsTo];
  const { path, label } = curve(from, to, narrow, LINE.includes(step.phase) && LINE.includes(step.leadsTo));
  const known = className !== "edge" ? "-live" : "";
  return drawing(
    "g",
    { class: className },
    drawing("path", { d: path, "marker-end": `url(#arrow${known})` }),
    label && drawing("text", { x: label.x, y: label.y, "text-anchor": label.anchor }, t(`operation.${step.operation}`)),
  );
}

function curve(from, to, narrow, inLine) {
  if (!inLine) return aside(from, to, narrow);
  const along = narrow ? "y" : "x";
  const across = narrow ? "x" : "y";
  const half = narrow ? BOX.height / 2 : BOX.width / 2;
  const direction = Math.sign(to[along] - from[along]);
  const far = Math.abs(to[along] - from[along]) > (narrow ? 120 : 260);
  const up = narrow ? direction < 0 : direction > 0;
  const side = up ? -1 : 1;
  const point = (value, offset) => (narrow ? [from[across] + offset, value] : [value, from[across] + offset]);
  if (far) {
    const edgeOffset = (narrow ? BOX.width / 2 : BOX.height / 2) * side;
    const begin = point(from[along] + direction * 12, edgeOffset);
    const end = point(to[along] - direction * 12, edgeOffset);
    const bend = (narrow ? 30 : 40) * side;
    return { path: `M${begin} C${point(from[along] + direction * 40, edgeOffset + bend)} ${point(to[along] - direction * 40, edgeOffset + bend)} ${end}`, label: null };
  }
  const begin = point(from[along] + direction * half, 9 * side);
  const end = point(to[along] - direction * (half + 2), 9 * side);
  const middle = (from[along] + to[along]) / 2;
  const label = narrow
    ? { x: from.x + side * 20, y: middle + 4, anchor: up ? "end" : "start" }
    : { x: middle, y: from.y + (up ? -18 : 27), anchor: "middle" };
  return { path: `M${begin} L${end}`, label };
}

function aside(from, to, narrow) {
  const sideways = Math.abs(from.y - to.y) < 5;
  if (sideways) {
    const direction = Math.sign(to.x - from.x);
    return { path: `M${from.x + (direction * BOX.width) / 2},${from.y} L${to.x - direction * (BOX.width / 2 + 2)},${to.y}`, label: null };
  }
  if (narrow && from.x === to.x) {
    const direction = Math.sign(to.y - from.y);
    return { path: `M${from.x},${from.y + (direction * BOX.height) / 2} L${to.x},${to.y - direction * (BOX.height / 2 + 2)}`, label: null };
  }
  if (narrow) {
    const direction = Math.sign(to.x - from.x);
    const bottom = to.y - BOX.height / 2 - 2;
    return { path: `M${from.x + (direction * BOX.width) / 2},${from.y} C${to.x - 40},${from.y} ${to.x - 40},${from.y + 20} ${to.x - 40},${bottom}`, label: null };
  }
  const direction = Math.sign(to.y - from.y);
  const drift = Math.max(-40, Math.min(40, (to.x - from.x) / 3));
  return {
    path: `M${from.x + drift},${from.y + (direction * BOX.height) / 2} L${to.x - drift / 2},${to.y - direction * (BOX.height / 2 + 2)}`,
    label: null,
  };
}
