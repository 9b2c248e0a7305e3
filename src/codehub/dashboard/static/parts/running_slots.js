/** How many may run, and how many do: asked anew whenever something of one's own changed. */

import { get } from "../core/api.js";
import { element, text } from "../core/element.js";
import { t } from "../core/language.js";

export function slots(app) {
  const node = element("p", { class: "slots muted" });
  let timer = 0;

  async function ask() {
    try {
      const { running, max_running: most } = await get("limits");
      text(node, t("slots.used", { running, most }));
    } catch {
      text(node, "");
    }
  }

  function soon() {
    clearTimeout(timer);
    timer = setTimeout(ask, 300);
  }

  ask();
  const stop = app.store.onChange((before, after) => {
    if (before?.phase !== after?.phase || before?.desired_state !== after?.desired_state || before?.operation !== after?.operation) soon();
  });
  return { node, dispose: () => (stop(), clearTimeout(timer)) };
}
