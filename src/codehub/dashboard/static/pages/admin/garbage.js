/** What the garbage collector would take, why, and when. Looking changes nothing. */

import { get } from "../../core/api.js";
import { element, replace } from "../../core/element.js";
import { bytes, clock, knows, number, t } from "../../core/language.js";
import { icon } from "../../parts/icons.js";
import { pagedTable } from "../../parts/table.js";
import { complain } from "../../parts/toasts.js";

export function garbageSection() {
  const summary = element("div", {});
  const table = pagedTable({
    caption: t("admin.garbage"),
    columns: [t("garbage.what"), t("garbage.why"), t("garbage.size"), t("garbage.when")],
    empty: t("garbage.none"),
    page: async () => {
      const report = await get("admin/gc");
      replace(summary, told(report));
      return { items: report.candidates, next_cursor: null };
    },
    row: (found) => [
      element("div", {}, element("span", { class: "badge" }, t(`thing.${found.kind}`)), " ", element("code", { class: "break" }, found.name)),
      t(`garbage.why.${found.reason}`),
      element("span", { class: "whole" }, bytes(found.bytes)),
      found.may_go_at ? element("time", { datetime: found.may_go_at }, clock(found.may_go_at)) : element("span", { class: "muted" }, t("garbage.unmarked")),
    ],
  });
  const again = element("button", { type: "button", class: "button", on: { click: () => table.load().catch(complain) } }, icon("recover"), t("garbage.again"));
  table.load().catch(complain);
  return {
    node: element(
      "div",
      { class: "page" },
      element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("admin.garbage")), element("p", { class: "muted" }, t("garbage.text"))), again),
      summary,
      table.node,
    ),
  };
}

function told(report) {
  const total = report.candidates.reduce((sum, found) => sum + found.bytes, 0);
  return [
    element(
      "ul",
      { class: "plain tiles" },
      Object.entries(report.existing).map(([kind, count]) => tile(number(count), t(`garbage.existing.${kind}`))),
      tile(number(report.candidates.length), t("garbage.candidates")),
      tile(bytes(total), t("garbage.freed")),
    ),
    report.refusals.length > 0 &&
      element(
        "section",
        { class: "trouble" },
        element("h2", {}, icon("warning"), t("garbage.refused")),
        report.refusals.map(refusal),
      ),
    report.strangers > 0 && element("p", { class: "muted" }, t("garbage.strangers", { count: number(report.strangers) })),
  ];
}

/** The server's sentence has the figures, in English: for others their own comes first. */
function refusal({ check, sentence }) {
  const key = `refusal.${check}`;
  return knows(key) ? [element("p", {}, t(key)), element("p", { class: "muted small", lang: "en" }, sentence)] : element("p", {}, sentence);
}

function tile(count, label) {
  return element("li", {}, element("div", { class: "tile" }, element("span", { class: "tile-count" }, count), element("span", { class: "tile-name" }, label)));
}
