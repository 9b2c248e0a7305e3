/** Something to be copied: shown once and hard to lose by accident, or as often as it is asked for. */

import { element } from "../core/element.js";
import { t } from "../core/language.js";
import { toast } from "./toasts.js";

/** A line that is too long to be read, and a button that copies it. */
export function copyable(label, value, copyLabel = null) {
  const shown = element("input", { class: "input mono", readonly: true, "aria-label": label, value });
  const copy = async () => {
    shown.select();
    try {
      await navigator.clipboard.writeText(value);
      toast(t("copied"));
    } catch {
      // it is selected: the keyboard can copy it
    }
  };
  return element("div", { class: "copy" }, shown, element("button", { type: "button", class: "button", "aria-label": copyLabel, on: { click: copy } }, t("copy")));
}

export function secret(text, value, close) {
  return [
    element("p", { class: "dialog-text" }, text),
    copyable(text, value),
    element("footer", { class: "dialog-foot" }, element("button", { type: "button", class: "button primary", on: { click: close } }, t("done"))),
  ];
}
