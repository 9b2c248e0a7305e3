/** The overview tab: where a workspace is in its lifecycle, why it is there, and what is known of it. */

import { element, replace, show, text } from "../core/element.js";
import { CONDITIONS, REASONS } from "../core/states.js";
import { actorText, ago, clock, duration, knows, language, moment, t, whyText } from "../core/language.js";
import { badge } from "../core/repository.js";
import { now } from "../core/clock.js";
import { icon } from "../parts/icons.js";
import { machine } from "../parts/state_diagram.js";
import { toast } from "../parts/toasts.js";
import { usagePanel } from "../parts/usage.js";

const SHOWN = { address, badge: readme };
const HOLDS = [3_600, 4 * 3_600, 12 * 3_600];

export function overviewTab(app, ws) {
  const drawn = machine();
  const life = lifeCard(app, ws);
  const usage = usagePanel(app, ws);
  const stop = app.usages.listen((ids) => ids.includes(ws.id) && usage.update(app.store.get(ws.id) ?? ws));
  const checks = element("ul", { class: "plain checks" });
  const facts = element("dl", { class: "facts" });
  const node = element(
    "div",
    { class: "columns" },
    section(t("machine.title"), [element("p", { class: "muted" }, t("machine.text")), drawn.node], "wide"),
    life.node,
    section(t("conditions.title"), checks),
    usage.node,
    section(t("facts.title"), facts, "wide"),
  );
  let conditions = "";
  let known = "";

  function update(fresh) {
    drawn.update(fresh);
    life.update(fresh);
    usage.update(fresh);
    const key = JSON.stringify(fresh.conditions);
    if (key !== conditions) {
      conditions = key;
      replace(checks, Object.keys(CONDITIONS).map((name) => check(name, fresh.conditions[name])));
    }
    // Only when they differ: somebody may be copying one of them.
    const rows = factsOf(fresh);
    if (JSON.stringify(rows) === known) return;
    known = JSON.stringify(rows);
    replace(facts, rows.map(([name, value]) => [element("dt", {}, t(`facts.${name}`)), element("dd", {}, SHOWN[name]?.(value) ?? value)]));
  }

  function tick(fresh) {
    life.update(fresh);
    usage.tick(fresh);
  }

  function dispose() {
    stop();
    drawn.dispose();
  }

  usage.tick(ws);
  return { node, update, tick, dispose };
}

function section(title, content, look = "") {
  return element("section", { class: `panel ${look}` }, element("h2", {}, title), content);
}

function check(name, condition) {
  const state = condition?.status === true ? "yes" : condition?.status === false ? "no" : "unknown";
  const reason = condition?.reason ?? "";
  // A container's reason begins with the backend that holds it: "docker.Running".
  const key = `because.${reason.slice(reason.indexOf(".") + 1)}`;
  // What a failure says in full stands above, in its own place.
  const message = language === "en" && condition?.message; // a backend's own words are English
  const said = reason in REASONS ? [whyText(reason)] : [knows(key) ? t(key) : reason, message];
  return element(
    "li",
    { class: "check", data: { state: name === "policy.healthy" && state === "no" ? "bad" : state } },
    element("span", { class: "check-mark", "aria-hidden": "true" }, state === "yes" ? icon("check") : state === "no" ? "–" : "?"),
    element(
      "div",
      {},
      element("p", { class: "check-name" }, t(`condition.${name}`), element("span", { class: "unseen" }, `: ${t(`status.${state}`)}`)),
      element("p", { class: "muted small" }, [...said, condition?.last_transition_time && ago(condition.last_transition_time)].filter(Boolean).join(" · ")),
    ),
  );
}

function address(url) {
  return element(
    "span",
    { class: "address" },
    element("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, url),
    element("button", { type: "button", class: "button small", on: { click: () => copied(url) } }, t("copy")),
  );
}

/** The badge that a README shows, and its text to copy. */
function readme(markdown) {
  const button = element("button", { type: "button", class: "button small", on: { click: () => copied(markdown) } }, t("facts.badge.copy"));
  return element("span", { class: "address" }, button);
}

async function copied(value) {
  try {
    await navigator.clipboard.writeText(value);
    toast(t("copied"));
  } catch {
    toast(t("copy.failed"), { tone: "bad" });
  }
}

function factsOf(ws) {
  return [
    ["created", moment(ws.created_at)],
    ["used", ws.last_access_at ? ago(ws.last_access_at) : t("facts.never")],
    ["template", ws.template],
    ["image", imageOf(ws)],
    ["runtime", ws.runtime],
    ["git", ws.git_url || t("facts.none")],
    ...(ws.git_url ? [["ref", ws.git_ref || t("facts.ref.default")], ["badge", badge(location.origin, ws.git_url, ws.git_ref)]] : []),
    ["address", ws.url],
    ["id", ws.id],
  ];
}

/** The image that a workspace runs, and the one that its template names by now, if that is another. */
function imageOf(ws) {
  const [image, next] = [ws.image_ref, ws.next_image_ref].map((name) => name || t("facts.own"));
  const up = ws.conditions["infra.container_ready"]?.status;
  return up && image !== next ? t("facts.image.next", { image, next }) : next;
}

/** The lifecycle panel: why a workspace is up, when it stops, what holds it, and why it stopped last. */
function lifeCard(app, first) {
  const lines = element("dl", { class: "facts" });
  const letGo = element("button", { type: "button", class: "button small quiet", on: { click: () => app.actions.keep(app.store.get(first.id) ?? first, 0) } }, t("keep.let_go"));
  const holds = element(
    "div",
    { class: "buttons" },
    HOLDS.map((seconds) =>
      element("button", { type: "button", class: "button small", on: { click: () => app.actions.keep(app.store.get(first.id) ?? first, seconds) } }, duration(seconds)),
    ),
    letGo,
  );
  const keep = element("div", { class: "keep" }, element("p", { class: "keep-title" }, icon("keep"), t("keep.title")), holds);
  const quiet = element("p", { class: "muted" });
  const node = section(t("life.title"), [quiet, lines, keep]);
  let drawn = "";

  function update(ws) {
    const told = app.lifecycles.of(ws);
    const rows = told ? rowsOf(told) : [];
    text(quiet, told ? "" : t(`phase.${ws.phase}.meaning`));
    const canKeep = ws.phase === "RUNNING" || ws.phase === "STANDBY";
    show(keep, canKeep);
    show(letGo, Boolean(told?.blocked_by.some((obstacle) => obstacle.kind === "lease")));
    const key = JSON.stringify(rows);
    if (key === drawn) return;
    drawn = key;
    replace(lines, rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }

  return { node, update };
}

function rowsOf(told) {
  const rows = [];
  if (told.why_up) rows.push([t("life.why"), cause(told.why_up)]);
  if (told.last_activity_at) rows.push([t("life.activity"), ago(told.last_activity_at)]);
  if (told.stops_at) {
    const left = duration((Date.parse(told.stops_at) - now()) / 1_000);
    rows.push([t(told.becomes === "ARCHIVED" ? "life.archives" : "life.stops"), t("life.at", { left, time: clock(told.stops_at) })]);
  }
  for (const obstacle of told.blocked_by) {
    const key = `obstacle.${obstacle.kind}`;
    rows.push([t("life.held"), knows(key) ? t(key, { until: obstacle.until ? clock(obstacle.until) : "" }) : obstacle.message]);
  }
  if (told.last_stop) rows.push([t("life.last"), cause(told.last_stop)]);
  return rows;
}

function cause({ reason, actor, at }) {
  return t("life.cause", { reason: whyText(reason) || reason, actor: actorText(actor), time: clock(at) });
}
