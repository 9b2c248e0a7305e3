/** The templates page: what workspaces are made from, the only images that may run. */

import { Problem, get, put, remove } from "../../core/api.js";
import { element, replace } from "../../core/element.js";
import { environmentText, parsedEnvironment } from "../../core/environment_variables.js";
import { bytes, number, t } from "../../core/language.js";
import { choice, confirmed, dialog, field, form, input } from "../../parts/dialog.js";
import { icon } from "../../parts/icons.js";
import { menu } from "../../parts/menu.js";
import { secretVariables } from "../../parts/secret_list.js";
import { pagedTable } from "../../parts/table.js";
import { complain, toast } from "../../parts/toasts.js";

const GIGA = 1_000_000_000;

export function templatesSection() {
  const secrets = element("div", { class: "below-table" });
  const table = pagedTable({
    caption: t("admin.templates"),
    columns: [t("field.name"), t("templates.image"), t("templates.limits"), ""],
    empty: t("templates.none"),
    page: () => get("admin/templates"),
    row: (template) => [
      element("div", {}, element("strong", {}, template.name), " ", template.disabled_at && element("span", { class: "badge bad" }, t("users.disabled")), element("p", { class: "muted small" }, template.description)),
      template.image_ref ? element("code", {}, template.image_ref) : element("span", { class: "muted" }, t("facts.own")),
      limits(template) || element("span", { class: "muted" }, t("facts.own")),
      menu(t("card.more", { name: template.name }), () => items(template, table, secrets)),
    ],
  });
  const create = element("button", { type: "button", class: "button primary", on: { click: () => table.loadAfter(edit(null)).catch(complain) } }, icon("plus"), t("templates.create"));
  table.load().catch(complain);
  return {
    node: element(
      "div",
      { class: "page" },
      element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("admin.templates")), element("p", { class: "muted" }, t("templates.text"))), create),
      table.node,
      secrets,
    ),
  };
}

/** Shows the secret variables of one template below the table, and goes there. */
function showSecrets({ name }, place) {
  const { create, node } = secretVariables(`admin/templates/${encodeURIComponent(name)}/secrets`, t("templates.secrets.none"));
  const heading = element("h2", { tabindex: "-1" }, t("templates.secrets.of", { name }));
  replace(place, element("section", { class: "panel" }, element("div", { class: "panel-head" }, heading, create), element("p", { class: "muted" }, t("templates.secrets.text")), node));
  heading.focus();
}

function limits({ cpu, memory_bytes: memory, disk_bytes: disk, pids, sudo }) {
  return [
    cpu && t("templates.cpu", { count: number(cpu) }),
    memory && t("templates.memory", { size: bytes(memory) }),
    disk && t("templates.disk", { size: bytes(disk) }),
    pids && t("templates.pids", { count: number(pids) }),
    sudo && t("templates.sudo"),
  ]
    .filter(Boolean)
    .join(" · ");
}

function items(template, table, secrets) {
  const disable = async () => {
    const sure = await confirmed(t("users.disable"), t("templates.disable.sure", { name: template.name }), t("users.disable"));
    if (sure) await remove(`admin/templates/${template.name}`).then(() => table.load(), complain);
  };
  const enable = () => put(`admin/templates/${template.name}`, bodyOf(template)).then(() => table.load(), complain);
  return [
    { label: t("users.edit"), icon: "settings", act: () => table.loadAfter(edit(template)).catch(complain) },
    { label: t("templates.secrets"), icon: "key", act: () => showSecrets(template, secrets) },
    template.disabled_at ? { label: t("users.enable"), icon: "check", act: enable } : { label: t("users.disable"), icon: "close", danger: true, act: disable },
  ];
}

function bodyOf({ description, image_ref: image, env, cpu, memory_bytes: memory, disk_bytes: disk, pids, sudo, kubernetes }) {
  return { description, image_ref: image, env, cpu, memory_bytes: memory, disk_bytes: disk, pids, sudo, kubernetes };
}

/** @returns {Promise<boolean>} whether it was saved */
async function edit(template) {
  let isSaved = false;
  await dialog(template ? template.name : t("templates.create"), (close) =>
    form({
      label: t("save"),
      fields: [
        !template && field(t("field.name"), input("name", { required: true, maxlength: 40, pattern: "[a-z0-9]([a-z0-9\\-]{0,38}[a-z0-9])?", "data-first": "" }), t("templates.name.hint")),
        field(t("field.description"), input("description", { maxlength: 500, value: template?.description ?? "" })),
        field(t("templates.image"), input("image_ref", { maxlength: 500, value: template?.image_ref ?? "" }), t("templates.image.hint")),
        field(t("templates.env"), element("textarea", { name: "env", class: "input mono", rows: 3, value: environmentText(template?.env ?? {}) }), t("templates.env.hint")),
        element(
          "div",
          { class: "fields-pair" },
          field(t("templates.cpu.label"), input("cpu", { type: "number", min: 0.01, step: "any", value: template?.cpu ?? "" })),
          field(t("templates.memory.label"), input("memory_bytes", { type: "number", min: 0.01, step: "any", value: template?.memory_bytes ? template.memory_bytes / GIGA : "" })),
          field(t("templates.disk.label"), input("disk_bytes", { type: "number", min: 0.01, step: "any", value: template?.disk_bytes ? template.disk_bytes / GIGA : "" })),
          field(t("templates.pids.label"), input("pids", { type: "number", min: 1, value: template?.pids ?? "" })),
        ),
        choice(t("templates.sudo.label"), element("input", { type: "checkbox", name: "sudo", checked: Boolean(template?.sudo) })),
      ],
      send: async (values) => {
        await put(`admin/templates/${encodeURIComponent(template?.name ?? values.name)}`, {
          description: values.description,
          image_ref: values.image_ref,
          env: checkedEnvironment(values.env),
          cpu: values.cpu ? Number(values.cpu) : null,
          memory_bytes: values.memory_bytes ? Math.round(Number(values.memory_bytes) * GIGA) : null,
          disk_bytes: values.disk_bytes ? Math.round(Number(values.disk_bytes) * GIGA) : null,
          pids: values.pids ? Number(values.pids) : null,
          sudo: Boolean(values.sudo),
          kubernetes: template?.kubernetes ?? {},
          disabled: Boolean(template?.disabled_at),
        });
        isSaved = true;
        toast(t("saved"));
        close();
      },
    }),
  );
  return isSaved;
}

/** Saves what is typed as it is, or refuses it: nothing is made up for a line without a value. */
function checkedEnvironment(text) {
  const { env, wrong } = parsedEnvironment(text);
  if (wrong === null) return env;
  throw new Problem(422, { code: "invalid", errors: [{ field: "env", message: t("templates.env.wrong", { line: wrong }) }] });
}
