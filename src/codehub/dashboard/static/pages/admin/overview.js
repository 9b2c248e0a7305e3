/** The admins' overview: what runs, what failed, who leads, and whether every backend answers. */

import { call, get } from "../../core/api.js";
import { everySecond } from "../../core/clock.js";
import { element, replace, text } from "../../core/element.js";
import { PHASES } from "../../core/states.js";
import { ago, bytes, duration, number, t } from "../../core/language.js";
import { chart } from "../../parts/chart.js";
import { icon } from "../../parts/icons.js";
import { complain } from "../../parts/toasts.js";

const EVERY_SECONDS = 5;
const HISTORY_SECONDS = 60;
const ORDER = ["RUNNING", "STANDBY", "ARCHIVED", "PENDING", "ERROR"];

export function overviewSection(app) {
  const tiles = new Map(ORDER.map((phase) => [phase, tile(phase)]));
  const slots = element("p", { class: "muted" });
  const checks = element("ul", { class: "plain checks" });
  const leader = element("dl", { class: "facts" });
  const charts = element("div", { class: "charts" });
  const node = element(
    "div",
    { class: "page" },
    element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("admin.overview")), slots)),
    element("ul", { class: "plain tiles" }, [...tiles.values()].map((one) => one.node)),
    element("section", { class: "panel charts-panel" }, element("h2", {}, t("chart.title")), charts),
    element(
      "div",
      { class: "columns even" },
      element("section", { class: "panel" }, element("h2", {}, t("health.title")), checks),
      element("section", { class: "panel" }, element("h2", {}, t("leader.title")), element("p", { class: "muted" }, t("leader.text")), leader),
    ),
  );

  function count() {
    const totals = Object.fromEntries(ORDER.map((phase) => [phase, 0]));
    for (const ws of app.store.values()) totals[ws.phase] += 1;
    for (const [phase, one] of tiles) text(one.count, app.store.ready ? number(totals[phase]) : "…");
  }

  async function ask() {
    const [health, leads, limits] = await Promise.all([readiness(), get("admin/leader"), get("limits")]);
    replace(checks, health.checks.map(check));
    replace(leader, facts(leads).map(([name, value]) => [element("dt", {}, t(`leader.${name}`)), element("dd", {}, value)]));
    text(slots, t("slots.global", { running: number(limits.running_global), most: number(limits.max_running_global) }));
  }

  async function draw() {
    const { items } = await get("admin/history");
    const of = (name) => items.map((step) => ({ at: step.at, value: step[name] }));
    replace(
      charts,
      chart({ title: t("chart.running"), points: of("running"), shape: "line", say: number }),
      chart({ title: t("chart.starts"), points: of("starts"), shape: "bars", say: number }),
      chart({ title: t("chart.seconds"), points: of("start_seconds_median"), shape: "bars", say: duration }),
      chart({ title: t("chart.archived"), points: of("archived_bytes"), shape: "bars", say: bytes }),
      chart({ title: t("chart.requests"), points: of("requests"), shape: "bars", say: number }),
      chart({ title: t("chart.sockets"), points: of("sockets"), shape: "line", say: (count) => number(Math.round(count * 10) / 10) }),
    );
  }

  let seconds = 0;
  const stops = [
    app.store.listen(count),
    everySecond(() => {
      seconds += 1;
      if (seconds % EVERY_SECONDS === 0) ask().catch(() => null);
      if (seconds % HISTORY_SECONDS === 0) draw().catch(() => null);
    }),
  ];
  count();
  ask().catch(complain);
  draw().catch(complain);
  return { node, dispose: () => stops.forEach((stop) => stop()) };
}

/** The health of the installation; 503 is an answer here, not a failure. */
async function readiness() {
  try {
    return await call("GET", "/readyz");
  } catch (problem) {
    if (problem.status !== 503) throw problem;
    return fetch("/readyz").then((answer) => answer.json());
  }
}

function tile(phase) {
  const count = element("span", { class: "tile-count" });
  const filter = { RUNNING: "running", STANDBY: "asleep", PENDING: "empty", ARCHIVED: "archived", ERROR: "error" }[phase];
  const href = phase === "ERROR" ? "/admin/errors" : `/admin/workspaces?filter=${filter}`;
  const node = element("li", {}, element("a", { class: "tile", href, "data-tone": PHASES[phase].tone }, count, element("span", { class: "tile-name" }, t(`phase.${phase}`))));
  return { node, count };
}

function check({ name, ok, detail, seconds }) {
  return element(
    "li",
    { class: "check", data: { state: ok ? "yes" : "bad" } },
    element("span", { class: "check-mark", "aria-hidden": "true" }, ok ? icon("check") : icon("close")),
    element(
      "div",
      {},
      element("p", { class: "check-name" }, t(`health.${name}`), element("span", { class: "unseen" }, `: ${t(ok ? "health.ok" : "health.bad")}`)),
      element("p", { class: "muted small" }, ok ? t("health.took", { ms: number(Math.round(seconds * 1_000)) }) : `${t("health.bad")} (${detail})`),
    ),
  );
}

function facts(leads) {
  if (!leads.holder) return [["who", t("leader.nobody")]];
  return [
    ["who", leads.holder],
    ["term", number(leads.epoch)],
    ["renewed", ago(leads.renewed_at)],
  ];
}
