/** A table with a head that says what is what, and more rows on demand. */

import { element, replace, show } from "../core/element.js";
import { t } from "../core/language.js";
import { complain } from "./toasts.js";

/**
 * @param {{caption: string, columns: string[], row: (item: any) => any[], page: (cursor: string | null) => Promise<Object>, empty: string}} how
 *   `page` answers {items, next_cursor}
 */
export function pagedTable({ caption, columns, row, page, empty }) {
  const body = element("tbody", {});
  const more = element("button", { type: "button", class: "button", hidden: true, on: { click: () => load(false).catch(complain) } }, t("more"));
  let cursor = null;

  async function load(anew = true) {
    const told = await page(anew ? null : cursor);
    cursor = told.next_cursor ?? null;
    const rows = told.items.map((item) => element("tr", {}, row(item).map((cell) => element("td", {}, cell))));
    if (anew) replace(body, rows.length ? rows : element("tr", {}, element("td", { colspan: columns.length, class: "muted" }, empty)));
    else body.append(...rows);
    show(more, cursor !== null);
  }

  const head = columns.map((name) => element("th", { scope: "col" }, name || element("span", { class: "unseen" }, t("table.actions"))));
  const node = element(
    "div",
    {},
    element(
      "div",
      { class: "table-place", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { class: "table" }, element("caption", { class: "unseen" }, caption), element("thead", {}, element("tr", {}, head)), body),
    ),
    more,
  );
  return { node, load };
}
