/** What the garbage collector would take, why, and when. Looking changes nothing; a refused sweep can be asked for. */

import { get, post } from "../../core/api.js";
import { element, replace } from "../../core/element.js";
import { WAIVABLE } from "../../core/states.js";
import { bytes, clock, knows, number, t } from "../../core/language.js";
import { confirmed } from "../../parts/dialog.js";
import { icon } from "../../parts/icons.js";
import { pagedTable } from "../../parts/table.js";
import { complain, toast } from "../../parts/toasts.js";
import { original } from "../../parts/error_panel.js";

const LOOK_MS = 1_000;
const MOST_LOOKS = 600;

export function garbageSection() {
  const summary = element("div", {});
  const table = pagedTable({
    caption: t("admin.garbage"),
    columns: [t("garbage.what"), t("garbage.why"), t("garbage.size"), t("garbage.when")],
    empty: t("garbage.none"),
    page: async () => {
      const report = await get("admin/gc");
      replace(summary, told(report, () => table.load().catch(complain)));
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

function told(report, again) {
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
        waiver(report.refusals, again),
      ),
    report.strangers > 0 && element("p", { class: "muted" }, t("garbage.strangers", { count: number(report.strangers) })),
  ];
}

/** A refusal in words. The server's sentence has the figures, in English: for others their own comes first. */
function refusal({ check, sentence }) {
  const key = `refusal.${check}`;
  return knows(key) ? [element("p", {}, t(key)), original(t("trouble.original"), sentence)] : element("p", {}, sentence);
}

/** The button that waives refusals. Two checks are never waived: where one of those refuses, there is none. */
function waiver(refusals, again) {
  const checks = [...new Set(refusals.map(({ check }) => check))];
  if (!checks.every((check) => WAIVABLE.includes(check))) return element("p", {}, t("waive.never"));
  const act = async () => {
    if (!(await confirmed(t("waive.do"), t("waive.sure", { checks: checks.map((check) => t(`waive.${check}`)).join(", ") }), t("waive.do")))) return;
    const { id } = await post("admin/gc", { waive: checks });
    toast(t("waive.asked"));
    const report = await finished(id);
    toast(report ? t("waive.swept", { count: number(report.swept) }) : t("waive.silent"), report ? {} : { tone: "bad" });
    again();
  };
  return element("div", { class: "buttons" }, element("button", { type: "button", class: "button danger", on: { click: () => act().catch(complain) } }, t("waive.do")));
}

/** Asks for a collection and waits for its report: the leading coordinator sweeps, which takes a moment. */
async function finished(id) {
  for (let looks = 0; looks < MOST_LOOKS; looks += 1) {
    const run = await get(`admin/gc/${id}`);
    if (run.is_done) return run;
    await new Promise((go) => setTimeout(go, LOOK_MS));
  }
  return null;
}

function tile(count, label) {
  return element("li", {}, element("div", { class: "tile" }, element("span", { class: "tile-count" }, count), element("span", { class: "tile-name" }, label)));
}
