/** The users page: who may come in, as what, and how much they may run at once. */

import { get, patch, post, query } from "../../core/api.js";
import { element, replace } from "../../core/element.js";
import { date, t } from "../../core/language.js";
import { confirmed, dialog, field, form, input, select } from "../../parts/dialog.js";
import { icon } from "../../parts/icons.js";
import { menu } from "../../parts/menu.js";
import { secret } from "../../parts/secret_once.js";
import { pagedTable } from "../../parts/table.js";
import { complain, toast } from "../../parts/toasts.js";

const roles = () => ["user", "admin"].map((role) => [role, t(`role.${role}`)]);

export function usersSection(app) {
  const table = pagedTable({
    caption: t("admin.users"),
    columns: [t("field.username"), t("users.role"), t("users.limit"), t("users.since"), ""],
    empty: t("users.none"),
    page: (cursor) => get(`admin/users${query({ limit: 100, cursor })}`),
    row: (user) => [
      element("span", {}, element("strong", {}, user.username), " ", user.disabled_at && element("span", { class: "badge bad" }, t("users.disabled")), !user.has_password && user.issuer && element("span", { class: "badge" }, t("users.provider"))),
      t(`role.${user.role}`),
      user.max_running ?? element("span", { class: "muted" }, t("users.ordinary")),
      date(user.created_at),
      menu(t("card.more", { name: user.username }), () => items(app, user, table)),
    ],
  });
  const create = element("button", { type: "button", class: "button primary", on: { click: () => table.loadAfter(createUser()).catch(complain) } }, icon("plus"), t("users.create"));
  table.load().catch(complain);
  return {
    node: element(
      "div",
      { class: "page" },
      element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("admin.users")), element("p", { class: "muted" }, t("users.text"))), create),
      table.node,
    ),
  };
}

function items(app, user, table) {
  const isSelf = user.id === app.session.user.id;
  const found = [{ label: t("users.edit"), icon: "settings", act: () => table.loadAfter(edit(user)).catch(complain) }];
  if (user.has_password) found.push({ label: t("users.reset"), icon: "recover", act: () => reset(user).catch(complain) });
  if (!isSelf) {
    const label = t(user.disabled_at ? "users.enable" : "users.disable");
    found.push({ label, icon: user.disabled_at ? "check" : "close", danger: !user.disabled_at, act: () => table.loadAfter(user.disabled_at ? enable(user) : disable(user)).catch(complain) });
  }
  return found;
}

const limitOf = (text) => (text === "" ? null : Number(text));

/** @returns {Promise<boolean>} whether there is a new user */
async function createUser() {
  let isMade = false;
  await dialog(t("users.create"), (close) => {
    const place = element("div", {});
    place.append(
      form({
        label: t("users.create"),
        fields: [
          field(t("field.username"), input("username", { required: true, maxlength: 64, "data-first": "" })),
          field(t("users.role"), select("role", roles(), "user")),
          field(t("users.limit"), input("max_running", { type: "number", min: 0, max: 10_000 }), t("users.limit.hint")),
        ],
        send: async ({ username, role, max_running: limit }) => {
          const made = await post("admin/users", { username, role, max_running: limitOf(limit) });
          isMade = true;
          replace(place, secret(t("users.once", { name: made.username }), made.password, close));
        },
      }),
    );
    return place;
  });
  return isMade;
}

/** @returns {Promise<boolean>} whether the user was changed */
async function edit(user) {
  let isSaved = false;
  await dialog(user.username, (close) =>
    form({
      label: t("save"),
      fields: [
        field(t("users.role"), select("role", roles(), user.role)),
        field(t("users.limit"), input("max_running", { type: "number", min: 0, max: 10_000, value: user.max_running ?? "" }), t("users.limit.hint")),
      ],
      send: async ({ role, max_running: limit }) => {
        await patch(`admin/users/${user.id}`, { role, max_running: limitOf(limit) });
        isSaved = true;
        toast(t("saved"));
        close();
      },
    }),
  );
  return isSaved;
}

async function enable(user) {
  await patch(`admin/users/${user.id}`, { disabled: false });
  return true;
}

/** @returns {Promise<boolean>} whether the user was disabled */
async function disable(user) {
  const sure = await confirmed(t("users.disable"), t("users.disable.sure", { name: user.username }), t("users.disable"));
  if (sure) await patch(`admin/users/${user.id}`, { disabled: true });
  return sure;
}

async function reset(user) {
  if (!(await confirmed(t("users.reset"), t("users.reset.sure", { name: user.username }), t("users.reset")))) return;
  const { password } = await patch(`admin/users/${user.id}`, { reset_password: true });
  await dialog(user.username, (close) => secret(t("users.once", { name: user.username }), password, close));
}
