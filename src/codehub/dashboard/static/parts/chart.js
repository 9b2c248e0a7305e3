/** A small chart over time: one line or one row of bars, drawn without a library, with its gist in words. */

import { drawing, element } from "../core/element.js";
import { clock, t } from "../core/language.js";

const WIDTH = 480;
const HEIGHT = 120;
const FOOT = 22;
const LEFT = 62;
const PLOT = WIDTH - LEFT;

/**
 * @param {{title: string, points: {at: string, value: number | null}[], shape: "line" | "bars", say: (value: number) => string, none?: string}} how
 *   `say`: a value in words. `none`: what is said if no value is known; then 0 is a value like any other, and the gist
 *   is of the last that is known
 */
export function chart({ title, points, shape, say, none }) {
  const known = points.map(({ value }) => value).filter((value) => value !== null);
  const most = Math.max(...known, 0);
  const top = roundedUp(most);
  const last = (none ? known.at(-1) : points.at(-1)?.value) ?? null;
  const isTold = none ? known.length > 0 : most > 0;
  const gist = isTold ? t("chart.gist", { now: last === null ? "–" : say(last), most: say(most) }) : (none ?? t("chart.nothing"));
  const step = PLOT / points.length;
  const y = (value) => HEIGHT - (value / top) * (HEIGHT - 10);
  const shapes = shape === "line" ? line(points, step, y) : bars(points, step, y);
  return element(
    "figure",
    { class: "chart" },
    element("figcaption", {}, element("span", { class: "chart-title" }, title), element("span", { class: "muted small" }, gist)),
    drawing(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`, "aria-hidden": "true", focusable: "false" },
      [0, top / 2, top].map((value) => tick(say(value), y(value))),
      shapes,
      marks(points, step),
    ),
  );
}

/** The next 2, 4 or 10 of its size: half of it is a number that people say, too. */
function roundedUp(most) {
  if (most <= 0) return 2;
  const size = 10 ** Math.floor(Math.log10(most));
  return Math.max(2, ...[2, 4, 10].map((times) => times * size).filter((top) => top >= most).slice(0, 1));
}

/** One line of the vertical axis, with its value. */
function tick(label, height) {
  return [
    drawing("path", { class: "chart-ground", d: `M${LEFT} ${height}H${WIDTH}` }),
    drawing("text", { x: LEFT - 7, y: height + 4, "text-anchor": "end" }, label),
  ];
}

/** A line for each stretch of known values: what is not known is a gap. One value alone is as wide as its step. */
function line(points, step, y) {
  return stretches(points).map(({ first, values }) => {
    const x = (place) => (LEFT + (first + place) * step).toFixed(1);
    const ends = [`${x(0)} ${y(values[0]).toFixed(1)}`, `${x(values.length)} ${y(values.at(-1)).toFixed(1)}`];
    const path = [ends[0], ...values.map((value, place) => `${x(place + 0.5)} ${y(value).toFixed(1)}`), ends[1]].join("L");
    const area = `M${x(0)} ${HEIGHT}L${path}L${x(values.length)} ${HEIGHT}Z`;
    return [drawing("path", { class: "chart-area", d: area }), drawing("path", { class: "chart-line", d: `M${path}` })];
  });
}

function stretches(points) {
  const found = [];
  points.forEach(({ value }, place) => {
    const last = found.at(-1);
    if (value === null) return;
    if (last && last.first + last.values.length === place) last.values.push(value);
    else found.push({ first: place, values: [value] });
  });
  return found;
}

function bars(points, step, y) {
  return points.map(({ value }, place) =>
    value ? drawing("rect", { class: "chart-bar", x: LEFT + place * step + 0.7, y: y(value), width: Math.max(1, step - 1.4), height: HEIGHT - y(value), rx: 1.2 }) : null,
  );
}

/** Four times of day are enough to find one's way. */
function marks(points, step) {
  const every = Math.floor(points.length / 4);
  return points
    .map((point, place) => ({ ...point, place }))
    .filter(({ place }) => place % every === every - 1 && place < points.length - 1)
    .map(({ at, place }) => drawing("text", { x: LEFT + (place + 1) * step, y: HEIGHT + 17, "text-anchor": "middle" }, clock(at).split(" ").at(-1)));
}
