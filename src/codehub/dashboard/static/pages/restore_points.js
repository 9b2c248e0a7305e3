/** Restore points: looked into, downloaded from and gone back to, without starting anything. */

import { get, post, query } from "../core/api.js";
import { element, replace } from "../core/element.js";
import { ago, bytes, moment, number, t } from "../core/language.js";
import { confirmed } from "../parts/dialog.js";
import { fileBrowser } from "../parts/file_browser.js";
import { icon } from "../parts/icons.js";
import { complain, toast } from "../parts/toasts.js";

export function pointsTab(app, first) {
  let ws = first;
  let points = [];
  const list = element("ul", { class: "plain rows" });
  const note = element("p", { class: "muted" }, t("points.text"));
  const place = element("div", {});
  const node = element("div", {}, element("section", { class: "panel" }, element("h2", {}, t("points.title")), note, list), place);
  let seen = "";

  async function load() {
    points = (await get(`workspaces/${ws.id}/archives`)).items;
    replace(list, points.length ? points.map((point) => row(point)) : element("li", { class: "row muted" }, t("points.none")));
    const search = new URLSearchParams(location.search);
    const open = points.find((point) => point.op_id === search.get("point"));
    if (open && !place.hasChildNodes()) browse(open, search.get("path") ?? "", false);
  }

  function row(point) {
    const label = moment(point.created_at);
    // What it sleeps on is where it is: there is nothing to go back to. A home on disk may have changed since.
    const isHere = point.is_present && !ws.conditions["storage.volume_ready"]?.status;
    const badge = point.is_present && element("span", { class: "badge" }, t(isHere ? "points.present" : "points.origin"));
    return element(
      "li",
      { class: "row" },
      element(
        "div",
        { class: "row-main" },
        element("p", {}, element("strong", {}, label), " ", badge),
        element("p", { class: "muted small" }, [bytes(point.bytes), t("points.files", { count: number(point.files) }), t("points.proven", { ago: ago(point.verified_at) })].join(" · ")),
      ),
      element(
        "div",
        { class: "buttons" },
        element("button", { type: "button", class: "button small", "aria-label": t("points.browse_of", { label }), on: { click: () => browse(point, "", true) } }, icon("folder"), t("points.browse")),
        !isHere &&
          ws.phase !== "DELETED" &&
          ws.phase !== "ERROR" &&
          element("button", { type: "button", class: "button small", "aria-label": t("points.restore_of", { label }), on: { click: () => restore(point).catch(complain) } }, icon("recover"), t("points.restore")),
      ),
    );
  }

  function browse(point, path, byHand) {
    const browser = fileBrowser(ws, point, path, byHand, (at) => app.router.note({ point: at === null ? "" : point.op_id, path: at ?? "" }));
    replace(place, browser.node);
    browser.closed.then(() => replace(place));
    if (byHand) browser.node.scrollIntoView({ block: "nearest" });
  }

  async function restore(point) {
    const sure = await confirmed(t("points.restore"), t("points.sure", { label: moment(point.created_at) }), t("points.restore"));
    if (!sure) return;
    app.actions.note(ws.id);
    app.store.put(await post(`workspaces/${ws.id}/restore`, { archive: point.op_id }));
    toast(t("done.restore", { name: ws.name }));
  }

  return {
    node,
    update(fresh) {
      ws = fresh;
      const key = [fresh.archive_key, fresh.phase].join();
      if (key === seen) return;
      seen = key;
      load().catch(complain);
    },
  };
}
