/** One workspace: where it is, what it does and why, and all that can be done with it. */

import { get } from "../core/api.js";
import { element, replace, show, text } from "../core/element.js";
import { everySecond } from "../core/clock.js";
import { allows } from "../core/workspace_state.js";
import { t } from "../core/language.js";
import { others, primary } from "../parts/actions.js";
import { icon } from "../parts/icons.js";
import { menu } from "../parts/menu.js";
import { bar, pill, said } from "../parts/status.js";
import { trouble } from "../parts/error_panel.js";
import { historyTab } from "./history.js";
import { logsTab } from "./logs.js";
import { overviewTab } from "./overview.js";
import { pointsTab } from "./restore_points.js";
import { settingsTab } from "./settings.js";

const TABS = { overview: overviewTab, history: historyTab, points: pointsTab, logs: logsTab, settings: settingsTab };

export async function workspacePage(app, id, name = "overview") {
  const known = app.store.get(id);
  // Of somebody else's it is asked for even if it is known: that look is written down.
  const first = known?.owner === app.session.user.username ? known : await get(`workspaces/${id}`);
  app.stream.watchEverybody(first.owner !== app.session.user.username);
  let ws = first;
  const tabName = name in TABS ? name : "overview";
  const head = heading(app, () => ws);
  const problem = trouble(app, () => ws);
  const tab = TABS[tabName](app, ws);
  const node = element(
    "div",
    { class: "page" },
    element("p", {}, element("a", { class: "back", href: ws.owner === app.session.user.username ? "/" : "/admin/workspaces" }, icon("back"), t("workspace.back"))),
    head.node,
    problem.node,
    tabs(id, tabName),
    tab.node,
  );

  function update() {
    head.update();
    problem.update();
    tab.update?.(ws);
    if (ws.phase !== "DELETED") app.lifecycles.want(ws);
  }

  async function changed(ids) {
    if (ids && !ids.has(id)) return;
    // Gone from the events means deleted, which can still be looked at.
    ws = app.store.get(id) ?? (app.store.ready ? await get(`workspaces/${id}`).catch(() => ws) : ws);
    update();
  }

  const stops = [
    app.store.listen(changed),
    app.lifecycles.listen((told) => told === id && update()),
    everySecond(() => {
      head.update();
      tab.tick?.(ws);
      if (ws.phase !== "DELETED") app.lifecycles.want(ws);
    }),
  ];
  update();
  const dispose = () => {
    for (const stop of stops) stop();
    tab.dispose?.();
  };
  return { title: ws.name, node, dispose };
}

function heading(app, ws) {
  const name = element("h1", {});
  const about = element("p", { class: "muted lead" });
  const state = pill();
  const progress = bar();
  const why = element("p", { class: "now-why" });
  const buttons = element("div", { class: "buttons" });
  const more = menu(t("table.actions"), () =>
    others(ws()).map((action) => ({
      label: t(`action.${action}`),
      icon: action,
      danger: action === "delete",
      act: () => app.actions.perform(action, ws()),
    })),
  );
  const node = element(
    "header",
    { class: "workspace-head" },
    element("div", { class: "workspace-title" }, element("div", { class: "title-line" }, name, state.node), about),
    element("div", { class: "buttons" }, buttons, more),
    element("div", { class: "now" }, why, progress.node),
  );
  let drawn = "";

  function update() {
    const now = ws();
    const words = said(app, now);
    text(name, now.name);
    const owner = now.owner === app.session.user.username ? "" : t("workspace.of", { owner: now.owner });
    text(about, [owner, now.description].filter(Boolean).join(" · "));
    show(about, Boolean(about.textContent));
    state.update(now, words);
    progress.update(words);
    text(why, words.detail);
    show(why, now.phase !== "ERROR");
    const main = primary(now);
    const names = [main === "recover" ? null : main, allows("stop", now) && now.desired_state === "RUNNING" ? "stop" : null].filter(Boolean);
    show(more, others(now).length > 0);
    const key = names.join();
    if (key === drawn) return;
    drawn = key;
    const focused = buttons.contains(document.activeElement);
    replace(buttons, names.map((action, place) => button(app, ws, action, place === 0)));
    if (focused) buttons.querySelector("button")?.focus();
  }

  return { node, update };
}

function button(app, ws, action, first) {
  return element(
    "button",
    { type: "button", class: first ? "button primary big" : "button big", on: { click: () => app.actions.perform(action, ws()) } },
    icon(action),
    t(`action.${action}`),
  );
}

function tabs(id, chosen) {
  return element(
    "nav",
    { class: "tabs", "aria-label": t("workspace.tabs") },
    Object.keys(TABS).map((name) =>
      element(
        "a",
        { class: "tab", href: `/workspaces/${id}${name === "overview" ? "" : `/${name}`}`, "aria-current": name === chosen ? "page" : null },
        t(`tab.${name}`),
      ),
    ),
  );
}
