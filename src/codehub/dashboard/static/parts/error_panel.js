/** What went wrong, what it means, what to do, and the buttons that do it. */

import { get, post } from "../core/api.js";
import { element, replace, show } from "../core/element.js";
import { REASONS, RECOVERIES } from "../core/states.js";
import { bytes, knows, language, moment, t } from "../core/language.js";
import { confirmed, dialog } from "./dialog.js";
import { icon } from "./icons.js";
import { complain, toast } from "./toasts.js";

export function trouble(app, ws) {
  const node = element("section", { class: "trouble", hidden: true, "aria-labelledby": "trouble-title" });
  let drawn = "";

  function update() {
    const now = ws();
    const key = JSON.stringify([now.phase, now.error, now.id]);
    show(node, now.phase === "ERROR");
    if (key === drawn || now.phase !== "ERROR") return;
    drawn = key;
    replace(node, content(app, now));
  }

  return { node, update };
}

function content(app, ws) {
  const { error } = ws;
  const reason = error?.reason ?? ws.conditions["policy.healthy"]?.reason;
  const known = reason in REASONS;
  // The controller's sentence is English: who reads another language finds it among the details.
  const original = language !== "en" && error ? [[t("trouble.original"), error.message]] : [];
  const context = [...original, ...Object.entries(error?.context ?? {})];
  return [
    element("h2", { id: "trouble-title" }, icon("warning"), known ? t(`reason.${reason}.meaning`) : t("phase.ERROR")),
    element("p", {}, known ? advice(reason) : t("phase.ERROR.meaning")),
    error && language === "en" && element("blockquote", { class: "said" }, error.message),
    error &&
      element(
        "p",
        { class: "muted small" },
        [reason, knows(`operation.${error.operation}`) ? t(`operation.${error.operation}`) : "", t("trouble.tries", { count: error.count }), moment(error.occurred_at)].filter(Boolean).join(" · "),
      ),
    context.length > 0 &&
      element(
        "details",
        { class: "more" },
        element("summary", {}, t("trouble.context")),
        element("dl", { class: "facts" }, context.map(([name, value]) => [element("dt", {}, name), element("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])),
      ),
    element("div", { class: "buttons" }, (known ? REASONS[reason].recoveries : ["retry"]).map((action, place) => stepsBetween(app, ws, action, place === 0))),
  ];
}

/** A sentence of the server's, for people who read English. */
export function original(label, sentence) {
  return element("details", { class: "more" }, element("summary", {}, label), element("p", { class: "small", lang: "en" }, sentence));
}

/** The advice names actions as programs do; here they have buttons. */
export function advice(reason) {
  return t(`reason.${reason}.do`).replace(/'(\w+)'/g, (whole, action) => (action in RECOVERIES ? `“${t(`recovery.${action}`)}”` : whole));
}

function stepsBetween(app, ws, action, first) {
  return element(
    "button",
    {
      type: "button",
      class: RECOVERIES[action].givesUp ? "button danger" : first ? "button primary" : "button",
      title: t(`recovery.${action}.meaning`),
      on: { click: () => recover(app, ws, action).catch(complain) },
    },
    t(`recovery.${action}`),
  );
}

async function recover(app, ws, action) {
  const label = t(`recovery.${action}`);
  if (RECOVERIES[action].givesUp && !(await confirmed(label, t(`recovery.${action}.meaning`), label))) return;
  const body = { action };
  if (action === "use_archive") {
    body.archive = await chosenPoint(ws);
    if (!body.archive) return;
  }
  app.actions.note(ws.id);
  app.store.put(await post(`workspaces/${ws.id}/recover`, body));
  toast(t("done.recover", { name: ws.name }));
}

async function chosenPoint(ws) {
  const { items } = await get(`workspaces/${ws.id}/archives`);
  let chosen = null;
  await dialog(t("recovery.use_archive"), (close) => [
    element("p", { class: "dialog-text" }, t(items.length ? "points.choose" : "points.none")),
    element(
      "ul",
      { class: "plain rows" },
      items.map((point) =>
        element(
          "li",
          { class: "row" },
          element("span", { class: "row-main" }, moment(point.created_at), " ", element("span", { class: "muted" }, bytes(point.bytes))),
          element("button", { type: "button", class: "button small primary", on: { click: () => ((chosen = point.op_id), close()) } }, t("points.use")),
        ),
      ),
    ),
  ]);
  return chosen;
}
