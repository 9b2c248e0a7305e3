/** Something that is shown once: easy to copy, hard to lose by accident. */

import { element } from "../core/element.js";
import { t } from "../core/language.js";
import { toast } from "./toasts.js";

export function secret(text, value, close) {
  const shown = element("input", { class: "input mono", readonly: true, "aria-label": text, value });
  const copy = async () => {
    shown.select();
    try {
      await navigator.clipboard.writeText(value);
      toast(t("copied"));
    } catch {
      // it is selected: the keyboard can copy it
    }
  };
  return [
    element("p", { class: "dialog-text" }, text),
    element("div", { class: "copy" }, shown, element("button", { type: "button", class: "button", on: { click: copy } }, t("copy"))),
    element("footer", { class: "dialog-foot" }, element("button", { type: "button", class: "button primary", on: { click: close } }, t("done"))),
  ];
}
