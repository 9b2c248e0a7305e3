/** The files of a restore point. Names are bytes and not all of them are text: paths go back as the server gave them. */

import { get } from "../core/api.js";
import { element, replace, show } from "../core/element.js";
import { bytes, moment, t } from "../core/language.js";
import { icon } from "./icons.js";
import { complain } from "./toasts.js";

const ICONS = { folder: "folder", link: "link" };

/**
 * @param {boolean} byHand somebody pressed a button for it, and the focus goes there
 * @param {(path: string | null) => void} moved told where one is, null when it is closed
 */
export function fileBrowser(ws, point, start, byHand, moved) {
  const address = `workspaces/${ws.id}/archives/${point.op_id}`;
  const crumbs = element("nav", { class: "crumbs", "aria-label": t("files.where") });
  const body = element("tbody", {});
  const more = element("button", { type: "button", class: "button small", hidden: true }, t("more"));
  const whole = element("a", { class: "button small", download: true }, icon("download"), t("files.whole"));
  let finish;
  const closed = new Promise((done) => (finish = done));
  const close = element("button", { type: "button", class: "icon-button", "aria-label": t("files.close"), on: { click: () => (moved(null), finish()) } }, icon("close"));
  const heading = element("h2", { tabindex: "-1" }, t("files.title", { when: moment(point.created_at) }));
  const node = element(
    "section",
    { class: "panel files" },
    element("div", { class: "panel-head" }, heading, element("div", { class: "buttons" }, whole, close)),
    crumbs,
    element(
      "div",
      { class: "table-place" },
      element(
        "table",
        { class: "table" },
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, t("files.name")), element("th", { scope: "col", class: "number" }, t("files.size")), element("th", { scope: "col" }, t("files.changed")), element("th", { scope: "col" }, element("span", { class: "unseen" }, t("files.get"))))),
        body,
      ),
    ),
    more,
  );

  async function open(path, focus = true) {
    const listing = await get(`${address}/tree?path=${path}`);
    moved(path);
    replace(crumbs, crumbsOf(path, open));
    replace(body, listing.entries.length ? listing.entries.map(row) : element("tr", {}, element("td", { colspan: 4, class: "muted" }, t("files.empty"))));
    whole.setAttribute("href", `/api/v1/${address}/content?path=${path}`);
    page(path, listing.next_cursor);
    if (focus) heading.focus({ preventScroll: true });
  }

  function page(path, cursor) {
    show(more, cursor !== null);
    more.onclick = async () => {
      const listing = await get(`${address}/tree?path=${path}&cursor=${encodeURIComponent(cursor)}`).catch(complain);
      if (!listing) return;
      body.append(...listing.entries.map(row));
      page(path, listing.next_cursor);
    };
  }

  function row(entry) {
    const isFolder = entry.kind === "folder";
    const name = isFolder
      ? element("button", { type: "button", class: "file-name link", on: { click: () => open(entry.path).catch(complain) } }, icon("folder"), entry.name)
      : element("span", { class: "file-name" }, icon(ICONS[entry.kind] ?? "file"), entry.name, entry.target !== null && element("span", { class: "muted" }, ` → ${entry.target}`));
    const link = element("a", { class: "icon-button", href: `/api/v1/${address}/content?path=${entry.path}`, download: true, "aria-label": t("files.get_one", { name: entry.name }) }, icon("download"));
    const loadable = isFolder || entry.kind === "file";
    return element(
      "tr",
      {},
      element("td", {}, name),
      element("td", { class: "number muted" }, isFolder ? "" : bytes(entry.size)),
      element("td", { class: "muted" }, moment(entry.mtime)),
      element("td", { class: "number" }, loadable && link),
    );
  }

  open(start, byHand).catch(complain);
  return { node, closed };
}

/** Each part as it was encoded, shown as well as it can be. */
function crumbsOf(path, open) {
  const parts = path ? path.split("/") : [];
  const steps = [["", t("files.home")], ...parts.map((part, place) => [parts.slice(0, place + 1).join("/"), readable(part)])];
  return steps.map(([to, label], place) =>
    place === steps.length - 1
      ? element("span", { "aria-current": "location" }, label)
      : [element("button", { type: "button", class: "link", on: { click: () => open(to).catch(complain) } }, label), element("span", { class: "muted", "aria-hidden": "true" }, "/")],
  );
}

function readable(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
