/** The logs tab: what the editor printed last, followed while somebody looks. */

import { get } from "../core/api.js";
import { element, text } from "../core/element.js";
import { t } from "../core/language.js";
import { choice } from "../parts/dialog.js";
import { complain } from "../parts/toasts.js";

const EVERY_MS = 3_000;

export function logsTab(app, ws) {
  const output = element("pre", { class: "logs", tabindex: "0", "aria-label": t("logs.title") });
  const empty = element("p", { class: "muted" });
  const follow = element("input", { type: "checkbox", checked: true });
  const node = element(
    "section",
    { class: "panel" },
    element("div", { class: "panel-head" }, element("h2", {}, t("logs.title")), choice(t("logs.follow"), follow)),
    empty,
    output,
  );
  let gone = ws.phase === "DELETED";

  async function load() {
    if (gone) return;
    const { text: lines } = await get(`workspaces/${ws.id}/logs?tail=500`);
    text(output, lines);
    output.hidden = lines === "";
    text(empty, lines === "" ? t("logs.empty") : "");
    if (follow.checked) output.scrollTop = output.scrollHeight;
  }

  load().catch(complain);
  const timer = setInterval(() => !document.hidden && follow.checked && load().catch(() => null), EVERY_MS);
  return {
    node,
    update: (fresh) => (gone = fresh.phase === "DELETED"),
    dispose: () => clearInterval(timer),
  };
}
