/** One workspace in the list. Made once; afterwards only what differs is touched. */

import { element, attribute, show, text } from "../core/element.js";
import { allows, tone } from "../core/workspace_state.js";
import { ago, moment, t } from "../core/language.js";
import { others, primary } from "./actions.js";
import { icon } from "./icons.js";
import { menu } from "./menu.js";
import { bar, pill, said } from "./status.js";
import { usageLine } from "./usage.js";

/** @param {{owner?: boolean}} [how] `owner`: say whose it is */
export function card(app, id, find, how = {}) {
  const ws = () => find(id);
  const state = pill();
  const progress = bar();
  const usage = usageLine(app);
  const name = element("a", { class: "card-name", href: `/workspaces/${id}` });
  const what = element("span", {});
  const when = element("time", {});
  const about = element("p", { class: "card-about" }, what, when);
  const why = element("p", { class: "card-why" });
  const mainWords = element("span", {});
  const mainIcon = element("span", { class: "icon-slot" });
  const main = element("button", { type: "button", class: "button primary", on: { click: () => act(primary(ws())) } }, mainIcon, mainWords);
  const stop = element(
    "button",
    { type: "button", class: "button", on: { click: () => act("stop") } },
    icon("stop"),
    element("span", {}, t("action.stop")),
  );
  const more = menu(t("table.actions"), () => items(app, ws(), act));
  const node = element(
    "article",
    { class: "card", data: { id } },
    element("div", { class: "card-head" }, element("h2", {}, name), state.node),
    about,
    element("div", { class: "card-state" }, why, progress.node, usage.node),
    element("div", { class: "card-foot" }, main, stop, element("span", { class: "spacer" }), more),
  );
  let shownMain = "";

  function act(action) {
    if (action === "recover") app.router.go(`/workspaces/${id}`);
    else app.actions.perform(action, ws());
  }

  function update() {
    const now = ws();
    const words = said(app, now);
    text(name, now.name);
    const [lately, at] = used(now, app.lifecycles.of(now));
    text(what, [how.owner ? now.owner : "", now.description || now.template].filter(Boolean).join(" · "));
    text(when, lately);
    attribute(when, "datetime", at);
    attribute(when, "title", moment(at));
    state.update(now, words);
    progress.update(words);
    text(why, words.detail);
    usage.update(now);
    attribute(node, "data-tone", tone(now));
    const action = primary(now);
    show(main, action !== null);
    if (action !== null && action !== shownMain) {
      shownMain = action;
      mainIcon.replaceChildren(icon(action));
      text(mainWords, t(`action.${action}`));
    }
    attribute(main, "aria-label", action && t("card.act", { action: t(`action.${action}`), name: now.name }));
    show(stop, allows("stop", now) && now.desired_state === "RUNNING");
    attribute(stop, "aria-label", t("card.act", { action: t("action.stop"), name: now.name }));
    attribute(more.firstChild, "aria-label", t("card.more", { name: now.name }));
  }

  update();
  return { node, update };
}

/** The last activity in words. What is done inside reaches the lifecycle before it changes anything else. */
function used(ws, lifecycle) {
  if (ws.deleted_at) return [t("card.deleted", { ago: ago(ws.deleted_at) }), ws.deleted_at];
  const at = [ws.last_access_at, lifecycle?.last_activity_at].filter(Boolean).sort((a, b) => Date.parse(b) - Date.parse(a))[0];
  return at ? [t("card.used", { ago: ago(at) }), at] : [t("card.created", { ago: ago(ws.created_at) }), ws.created_at];
}

function items(app, ws, act) {
  const found = [{ label: t("card.details"), icon: "settings", act: () => app.router.go(`/workspaces/${ws.id}`) }];
  if (ws.phase === "RUNNING" || ws.phase === "STANDBY") {
    found.push({ label: t("keep.hours", { count: 2 }), icon: "keep", act: () => app.actions.keep(ws, 7_200) });
  }
  if (ws.archive_key) {
    found.push({ label: t("tab.points"), icon: "folder", act: () => app.router.go(`/workspaces/${ws.id}/points`) });
  }
  for (const name of others(ws)) {
    if (name !== "stop") found.push({ label: t(`action.${name}`), icon: name, danger: name === "delete", act: () => act(name) });
  }
  return found;
}
