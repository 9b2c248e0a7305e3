/** The ledger: everything that happened, who asked for it, and why. */

import { get, query } from "../core/api.js";
import { element, show } from "../core/element.js";
import { KINDS, OPERATIONS, PHASES, RECOVERIES } from "../core/states.js";
import { actorText, clock, day, knows, moment, t, time, whyText } from "../core/language.js";
import { complain } from "../parts/toasts.js";

const STEP = 50;

export function historyTab(app, ws) {
  const list = element("ol", { class: "timeline plain" });
  const more = element("button", { type: "button", class: "button", hidden: true, on: { click: () => load().catch(complain) } }, t("more"));
  const node = element("section", { class: "panel" }, element("h2", {}, t("history.title")), element("p", { class: "muted" }, t("history.text")), list, more);
  const known = new Set();
  let cursor = null;
  let timer = 0;
  let seen = "";

  async function load() {
    const page = await get(`workspaces/${ws.id}/events${query({ limit: STEP, cursor })}`);
    for (const entry of page.items) if (fresh(entry)) list.append(line(entry));
    cursor = page.next_cursor;
    show(more, cursor !== null);
    heads();
  }

  /** What is new comes in above; what is there stays as it is. */
  async function refresh() {
    const page = await get(`workspaces/${ws.id}/events${query({ limit: STEP })}`);
    list.prepend(...page.items.filter(fresh).map(line));
    heads();
  }

  function fresh(entry) {
    const key = JSON.stringify(entry);
    return !known.has(key) && Boolean(known.add(key));
  }

  function heads() {
    let last = "";
    for (const item of list.children) {
      const name = day(item.dataset.at);
      item.firstChild.hidden = name === last;
      last = name;
    }
  }

  load().catch(complain);
  return {
    node,
    update(fresh) {
      const key = JSON.stringify([fresh.phase, fresh.operation, fresh.op_id, fresh.desired_state, fresh.error, fresh.archive_key, fresh.deleted_at]);
      if (key === seen) return;
      seen = key;
      clearTimeout(timer);
      timer = setTimeout(() => refresh().catch(() => null), 400);
    },
    dispose: () => clearTimeout(timer),
  };
}

function line(entry) {
  const why = [reason(entry), entry.message && entry.kind !== "created" ? entry.message : ""].filter(Boolean);
  return element(
    "li",
    { class: "event", data: { at: entry.at, kind: KINDS.includes(entry.kind) ? entry.kind : "other" } },
    element("h3", { class: "event-day" }, day(entry.at)),
    element(
      "div",
      { class: "event-line" },
      element("time", { datetime: entry.at, title: moment(entry.at) }, time(entry.at)),
      element("span", { class: "event-dot", "aria-hidden": "true" }),
      element(
        "div",
        {},
        element("p", { class: "event-what" }, what(entry)),
        why.length > 0 && element("p", { class: "muted small" }, why.join(" · ")),
      ),
    ),
  );
}

function what(entry) {
  const values = { actor: actorText(entry.actor), before: word(entry.before), after: word(entry.after), time: clock(entry.at) };
  const key = `ledger.${entry.kind}`;
  return knows(key) ? t(key, values) : [entry.kind, entry.after].filter(Boolean).join(": ");
}

function word(value) {
  if (value === null) return "";
  if (value in PHASES) return t(`phase.${value}`);
  if (value in OPERATIONS) return t(`operation.${value}`);
  if (value in RECOVERIES) return t(`recovery.${value}`);
  return value;
}

/** The reason in words, unless it only says that it was asked for, as the line itself does. */
function reason(entry) {
  return entry.reason === "asked" ? "" : whyText(entry.reason);
}
