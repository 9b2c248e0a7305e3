/** A workspace's state in words, a bar while something goes on, and why. One of these per place that shows one. */

import { element, attribute, show, text } from "../core/element.js";
import { describe } from "../core/status_text.js";
import { tone } from "../core/workspace_state.js";
import { now } from "../core/clock.js";
import { locale, t } from "../core/language.js";

export function pill() {
  const words = element("span", {});
  const node = element("span", { class: "pill" }, element("span", { class: "pill-dot", "aria-hidden": "true" }), words);
  return {
    node,
    update(ws, said) {
      attribute(node, "data-tone", tone(ws));
      text(words, said.label);
    },
  };
}

export function bar() {
  const fill = element("div", { class: "bar-fill" });
  const node = element("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", hidden: true }, fill);
  return {
    node,
    update(said) {
      show(node, said.fraction !== undefined);
      if (said.fraction === undefined) return;
      const known = said.fraction !== null;
      attribute(node, "aria-label", said.label);
      attribute(node, "aria-valuenow", known ? Math.round(said.fraction * 100) : null);
      attribute(node, "aria-valuetext", said.detail || null);
      node.classList.toggle("unknown", !known);
      fill.style.setProperty("--done", known ? String(said.fraction) : "1");
    },
  };
}

/** @returns what to say of it now */
export function said(app, ws) {
  const at = now();
  return describe(ws, { t, language: locale, now: at, left: app.pace.left(ws, at), lifecycle: app.lifecycles.of(ws) });
}
