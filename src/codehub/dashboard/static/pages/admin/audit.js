/** The audit page: who changed what, and who looked at what is not theirs. */

import { get, query } from "../../core/api.js";
import { element } from "../../core/element.js";
import { actorText, knows, moment, t } from "../../core/language.js";
import { pagedTable } from "../../parts/table.js";
import { complain } from "../../parts/toasts.js";

export function auditSection(app) {
  const search = new URLSearchParams(location.search);
  const filter = (name, label) => {
    const node = element("input", { type: "search", class: "input", placeholder: label, "aria-label": label, value: search.get(name) ?? "" });
    node.addEventListener("change", () => {
      app.router.note({ [name]: node.value });
      table.load().catch(complain);
    });
    return node;
  };
  const actor = filter("actor", t("audit.actor"));
  const subject = filter("subject", t("audit.subject"));
  const table = pagedTable({
    caption: t("admin.audit"),
    columns: [t("audit.at"), t("audit.actor"), t("audit.action"), t("audit.subject"), t("audit.address")],
    empty: t("audit.none"),
    page: (cursor) => get(`admin/audit${query({ limit: 100, cursor, actor: actor.value, subject: subject.value })}`),
    row: (entry) => [
      element("time", { datetime: entry.at }, moment(entry.at)),
      actorText(entry.actor),
      element("div", {}, element("span", { title: entry.action }, knows(`did.${entry.action}`) ? t(`did.${entry.action}`) : entry.action), details(entry.details)),
      subjectOf(entry),
      element("span", { class: "muted" }, entry.address),
    ],
  });
  table.load().catch(complain);
  return {
    node: element(
      "div",
      { class: "page" },
      element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("admin.audit")), element("p", { class: "muted" }, t("audit.text")))),
      element("div", { class: "tools" }, actor, subject),
      table.node,
    ),
  };
}

function details(values) {
  const { workspace, ...others } = values; // it names the subject
  const told = Object.entries(others).map(([name, value]) => [wordOf(name), valueOf(name, value)]);
  if (!told.length) return null;
  const whole = told.map((pair) => pair.join(": ")).join("\n");
  return element("p", { class: "muted small", title: whole }, told.map(([name, value]) => `${name}: ${brief(value)}`).join(" · "));
}

const wordOf = (name) => (knows(`detail.${name}`) ? t(`detail.${name}`) : name);

function valueOf(name, value) {
  if (name === "path" && value === "") return t("files.home");
  if (name === "max_running" && value === null) return t("users.ordinary");
  if (typeof value === "boolean") return t(value ? "status.yes" : "status.no");
  if (Array.isArray(value)) return value.map((one) => valueOf(name, one)).join(", ");
  const key = { role: `role.${value}`, scopes: `scope.${value}`, waived: `waive.${value}`, kind: `secret_kind.${value}` }[name];
  if (key && knows(key)) return t(key);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The beginning of a name that nobody reads, such as a session's: enough to tell it from others. */
const brief = (value) => (/^[0-9a-f-]{32,}$/.test(value) ? `${value.slice(0, 8)}…` : value);

function subjectOf({ subject, details: { workspace } }) {
  const [kind, ...name] = subject.split(":");
  const id = name.join(":");
  if (kind === "workspace") return element("a", { href: `/workspaces/${id}`, title: subject }, workspace ?? brief(id));
  const word = knows(`subject.${kind}`) ? t(`subject.${kind}`) : kind;
  return element("span", { class: "whole", title: subject }, id ? `${word} ${brief(id)}` : word);
}
