/** Short news at the edge of the page: what was done, with a way back; what happened elsewhere; what went wrong. */

import { element } from "../core/element.js";
import { problemText, t } from "../core/language.js";
import { icon } from "./icons.js";

const SHOWN_MS = 6_000;
const UNDO_MS = 15_000;
const MOST = 4;

/** Both are in the page from the beginning: only then do screen readers speak what comes into them. */
const polite = element("div", { class: "toasts-list", role: "status", "aria-live": "polite" });
const urgent = element("div", { class: "toasts-list", role: "alert" });
const spoken = element("div", { class: "unseen", role: "status", "aria-live": "polite" });

export function toastRegion() {
  return element("section", { class: "toasts", "aria-label": t("toasts.title") }, urgent, polite, spoken);
}

/** Says something that is heard, not seen. */
export function say(text) {
  spoken.append(element("p", {}, text));
  while (spoken.childElementCount > 5) spoken.firstChild.remove();
}

/**
 * @param {string} text
 * @param {{tone?: string, actions?: [string, () => void][], lasts?: number | null, key?: string}} [how]
 *   `lasts` null: until it is closed. A toast with a key replaces the one with the same key.
 */
export function toast(text, { tone = "news", actions = [], lasts, key } = {}) {
  const list = tone === "bad" ? urgent : polite;
  if (key) for (const old of document.querySelectorAll(".toast")) if (old.dataset.key === key) old.remove();
  const close = () => node.remove();
  const words = element("p", { class: "toast-text" }, text);
  const node = element(
    "div",
    { class: `toast tone-${tone}`, data: key ? { key } : {} },
    words,
    actions.map(([label, act]) =>
      element("button", { type: "button", class: "button small quiet", on: { click: () => (close(), act()) } }, label),
    ),
    element("button", { type: "button", class: "icon-button", "aria-label": t("toasts.close"), on: { click: close } }, icon("close")),
  );
  list.append(node);
  while (list.childElementCount > MOST) list.firstChild.remove();
  const time = lasts === undefined ? (actions.length ? UNDO_MS : SHOWN_MS) : lasts;
  if (time !== null) expire(node, time);
  return { close, say: (said) => (words.textContent = said) };
}

/** Lets a toast go, but not while somebody reads it or is about to press it. */
function expire(node, time) {
  let timer = setTimeout(() => node.remove(), time);
  const stay = () => clearTimeout(timer);
  const go = () => (timer = setTimeout(() => node.remove(), 2_000));
  node.addEventListener("pointerenter", stay);
  node.addEventListener("pointerleave", go);
  node.addEventListener("focusin", stay);
  node.addEventListener("focusout", go);
}

export function complain(problem) {
  if (problem.status === 401) return;
  if (problem.status === undefined) console.error(problem);
  toast(problemText(problem), { tone: "bad", lasts: 10_000 });
}
