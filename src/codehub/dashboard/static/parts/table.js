/**
 * A table with a head that says what is what, and more rows on demand. On a phone each row is a list with the heads as
 * labels; the roles say that it is still a table.
 */

import { element, replace, show } from "../core/element.js";
import { t } from "../core/language.js";
import { complain } from "./toasts.js";

/**
 * @param {{caption: string, columns: string[], row: (item: any) => any[], page: (cursor: string | null) => Promise<Object>, empty: string}} how
 *   `page` answers {items, next_cursor}
 */
export function pagedTable({ caption, columns, row, page, empty }) {
  const body = element("tbody", { role: "rowgroup" });
  const more = element("button", { type: "button", class: "button", hidden: true, on: { click: () => load(false).catch(complain) } }, t("more"));
  let cursor = null;

  async function load(anew = true) {
    const told = await page(anew ? null : cursor);
    cursor = told.next_cursor ?? null;
    const rows = told.items.map((item) => element("tr", { role: "row" }, row(item).map((cell, place) => element("td", { role: "cell", "data-label": columns[place] || null }, cell))));
    if (anew) replace(body, rows.length ? rows : element("tr", { role: "row" }, element("td", { role: "cell", colspan: columns.length, class: "muted" }, empty)));
    else body.append(...rows);
    show(more, cursor !== null);
  }

  /**
   * Loads the rows anew if `work` changed something: to draw them for nothing would close a menu that is open by then.
   * @param {Promise<boolean>} work
   */
  async function loadAfter(work) {
    if (await work) await load();
  }

  const head = columns.map((name) => element("th", { scope: "col", role: "columnheader" }, name || element("span", { class: "unseen" }, t("table.actions"))));
  const node = element(
    "div",
    {},
    element(
      "div",
      { class: "table-place", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "table stacks", role: "table" }, element("caption", { class: "unseen" }, caption), element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)), body),
    ),
    more,
  );
  return { node, load, loadAfter };
}
