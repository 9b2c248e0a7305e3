/** The settings tab: what a workspace's owner may change, and the two ways to part with it. */

import { get, patch } from "../core/api.js";
import { element, replace, text } from "../core/element.js";
import { duration, t } from "../core/language.js";
import { allows } from "../core/workspace_state.js";
import { confirmed, field, form, input, select } from "../parts/dialog.js";
import { icon } from "../parts/icons.js";
import { complain, toast } from "../parts/toasts.js";
import { ttlSelect, ttlValue } from "../parts/ttl_select.js";

export function settingsTab(app, first) {
  let ws = first;
  const place = element("section", { class: "panel" }, element("h2", {}, t("tab.settings")));
  const danger = element("div", { class: "buttons" });
  const about = element("p", { class: "muted" });
  const node = element(
    "div",
    { class: "narrow" },
    place,
    element("section", { class: "panel danger-zone" }, element("h2", {}, t("danger.title")), about, danger),
  );
  get("limits")
    .then(({ undo_seconds: window }) => text(about, t("danger.text", { time: duration(window) })))
    .catch(complain);

  get("templates")
    .then(({ items }) => place.append(settingsForm(app, () => ws, items)))
    .catch(complain);

  let drawn = "";

  function update(fresh) {
    ws = fresh;
    const key = [ws.phase, ws.desired_state].join();
    if (key === drawn) return;
    drawn = key;
    replace(
      danger,
      allows("archive", ws) && button(t("action.archive"), "archive", "button", () => app.actions.perform("archive", ws)),
      ws.phase !== "PENDING" && ws.phase !== "DELETED" && ws.phase !== "ERROR" && button(t("danger.discard"), "recover", "button danger", () => discard(app, ws).catch(complain)),
      allows("delete", ws) && button(t("action.delete"), "delete", "button danger", () => app.actions.perform("delete", ws)),
    );
  }

  return { node, update };
}

function button(label, name, look, act) {
  return element("button", { type: "button", class: look, on: { click: act } }, icon(name), label);
}

async function discard(app, ws) {
  if (!(await confirmed(t("danger.discard"), t("danger.discard.sure", { name: ws.name }), t("danger.discard")))) return;
  app.actions.note(ws.id);
  app.store.put(await patch(`workspaces/${ws.id}`, { desired_state: "PENDING", discard_home: true }));
  toast(t("done.discard", { name: ws.name }));
}

function settingsForm(app, ws, templates) {
  const first = ws();
  const names = new Set([first.template, ...templates.map(({ name }) => name)]);
  const memo = element("textarea", { name: "memo", class: "input", rows: 3, maxlength: 10_000, value: first.memo });
  return form({
    label: t("save"),
    fields: [
      field(t("field.name"), input("name", { required: true, maxlength: 100, value: first.name }), t("field.name.hint")),
      field(t("field.description"), input("description", { maxlength: 1000, value: first.description })),
      field(t("field.memo"), memo),
      field(t("field.template"), select("template", [...names].map((name) => [name, name]), first.template), t("field.template.hint")),
      field(t("field.git"), input("git_url", { maxlength: 1000, value: first.git_url ?? "" }), t("field.git.hint")),
      field(t("field.ref"), input("git_ref", { maxlength: 255, value: first.git_ref ?? "" }), t("field.ref.hint")),
      element(
        "div",
        { class: "fields-pair" },
        field(t("field.standby"), ttlSelect("standby_ttl_seconds", first.standby_ttl_seconds)),
        field(t("field.archive"), ttlSelect("archive_ttl_seconds", first.archive_ttl_seconds)),
      ),
    ],
    send: async (values) => {
      const wanted = { ...values, git_url: values.git_url || null, git_ref: (values.git_url && values.git_ref) || null, standby_ttl_seconds: ttlValue(values.standby_ttl_seconds), archive_ttl_seconds: ttlValue(values.archive_ttl_seconds) };
      const known = ws();
      const changed = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => (known[name] ?? null) !== value));
      if (Object.keys(changed).length) app.store.put(await patch(`workspaces/${known.id}`, changed));
      toast(t("saved"));
    },
  });
}
