/** The errors page: what failed and why, by reason, and mended in one go. */

import { get, post } from "../../core/api.js";
import { element, replace } from "../../core/element.js";
import { REASONS, RECOVERIES } from "../../core/states.js";
import { ago, language, number, problemText, t } from "../../core/language.js";
import { confirmed } from "../../parts/dialog.js";
import { advice, original } from "../../parts/error_panel.js";
import { complain, toast } from "../../parts/toasts.js";

export function errorsSection(app) {
  const place = element("div", {});
  const node = element("div", { class: "page" }, element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("admin.errors")), element("p", { class: "muted" }, t("errors.text")))), place);
  let timer = 0;
  let shown = "";

  async function load() {
    const told = await get("admin/errors?limit=200");
    if (JSON.stringify(told) === shown) return;
    shown = JSON.stringify(told);
    const { items, reasons } = told;
    replace(place, reasons.length ? reasons.map((group) => panel(group, items)) : empty());
  }

  function panel(group, items) {
    const held = items.filter((ws) => ws.error?.reason === group.reason);
    // One restore point cannot be chosen for many: those are recovered one by one.
    const ways = REASONS[group.reason].recoveries.filter((action) => action !== "use_archive");
    return element(
      "section",
      { class: "panel trouble-group" },
      element("div", { class: "panel-head" }, element("h2", {}, t(`reason.${group.reason}.meaning`)), element("span", { class: "badge bad" }, number(group.count))),
      element("p", { class: "muted" }, advice(group.reason)),
      element("div", { class: "buttons" }, ways.map((action) => bulk(group, action))),
      element("ul", { class: "plain rows" }, held.map(row)),
    );
  }

  function bulk(group, action) {
    return element(
      "button",
      { type: "button", class: RECOVERIES[action].givesUp ? "button danger" : "button primary", on: { click: () => recover(group, action).catch(complain) } },
      group.count === 1 ? t(`recovery.${action}`) : t("errors.all", { action: t(`recovery.${action}`), count: number(group.count) }),
    );
  }

  async function recover(group, action) {
    const label = t(`recovery.${action}`);
    if (RECOVERIES[action].givesUp && !(await confirmed(label, t(`recovery.${action}.meaning`), label))) return;
    const { items } = await post("admin/errors/recover", { action, reason: group.reason });
    const refused = items.filter((item) => !item.accepted);
    toast(t("errors.recovered", { count: items.length - refused.length }), {});
    if (refused.length) toast(t("errors.refused", { count: refused.length, detail: problemText({ code: refused[0].code, message: refused[0].detail }) }), { tone: "bad" });
  }

  function loadSoon() {
    clearTimeout(timer);
    timer = setTimeout(() => load().catch(() => null), 300);
  }

  const stops = [
    app.store.onChange((before, after) => {
      if (before?.phase === "ERROR" || after?.phase === "ERROR") loadSoon();
    }),
    // A snapshot tells of no single change: any may have come while there was no stream.
    app.store.listen((ids) => ids === null && loadSoon()),
  ];
  load().catch(complain);
  return {
    node,
    dispose() {
      for (const stop of stops) stop();
      clearTimeout(timer);
    },
  };
}

function row(ws) {
  return element(
    "li",
    { class: "row" },
    element(
      "div",
      { class: "row-main" },
      element("p", {}, element("a", { href: `/workspaces/${ws.id}` }, ws.name), element("span", { class: "muted" }, ` · ${ws.owner}`)),
      language === "en" ? element("p", { class: "small" }, ws.error.message) : original(t("trouble.original"), ws.error.message),
      element("p", { class: "muted small" }, ago(ws.error.occurred_at)),
    ),
  );
}

function empty() {
  return element("div", { class: "empty" }, element("h2", {}, t("errors.none")), element("p", {}, t("errors.none.text")));
}
