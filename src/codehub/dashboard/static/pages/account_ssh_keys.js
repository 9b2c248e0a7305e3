/** The SSH keys with which one reaches one's workspaces, on the account page. */

import { post, remove } from "../core/api.js";
import { element } from "../core/element.js";
import { ago, moment, t } from "../core/language.js";
import { confirmed, dialog, field, form, input } from "../parts/dialog.js";
import { icon } from "../parts/icons.js";
import { rowButton, secretList } from "../parts/secret_list.js";
import { complain, toast } from "../parts/toasts.js";

const PATH = "account/ssh-keys";

export function sshKeysPanel() {
  const add = element("button", { type: "button", class: "button", on: { click: () => loadAfter(askForPublicKey()).catch(complain) } }, icon("plus"), t("login_keys.add"));
  const { node, load, loadAfter } = secretList({ path: PATH, empty: t("login_keys.none"), row, otherwise: add });
  load().catch(complain);
  return element(
    "section",
    { class: "panel" },
    element("div", { class: "panel-head" }, element("h3", {}, t("login_keys.title")), add),
    element("p", { class: "muted" }, t("login_keys.text")),
    node,
  );
}

function row(key, loadAfter) {
  const { name, last_used_at: used } = key;
  const seen = used ? element("time", { datetime: used, title: moment(used) }, t("login_keys.used", { ago: ago(used) })) : t("login_keys.unused");
  return element(
    "li",
    { class: "row" },
    element(
      "div",
      { class: "row-main" },
      element("p", {}, element("strong", {}, name), " ", element("span", { class: "badge" }, key.algorithm)),
      element("p", { class: "muted small" }, element("code", { class: "break" }, key.fingerprint), " · ", seen),
    ),
    rowButton(t("login_keys.remove"), t("login_keys.remove_one", { name }), () => loadAfter(forget(key)), "danger"),
  );
}

/** @returns {Promise<boolean>} whether it was sent: one that is refused may have been added elsewhere meanwhile */
async function askForPublicKey() {
  let isSent = false;
  const typed = { class: "input mono", spellcheck: "false", autocapitalize: "off", autocomplete: "off" };
  const line = element("textarea", { ...typed, name: "public_key", rows: 4, required: true, maxlength: 8192, placeholder: "ssh-ed25519 AAAA… ann@laptop", "data-first": "" });
  await dialog(t("login_keys.add"), (close) =>
    form({
      label: t("login_keys.add"),
      fields: [field(t("login_keys.public"), line, t("login_keys.public.hint")), field(t("field.name"), input("name", { maxlength: 100, placeholder: "laptop" }), t("login_keys.name.hint"))],
      send: async (values) => {
        isSent = true;
        const { name } = await post(PATH, { public_key: values.public_key, name: values.name ?? "" });
        toast(t("login_keys.added", { name }));
        close();
      },
    }),
  );
  return isSent;
}

/** @returns {Promise<boolean>} whether it was removed */
async function forget({ id, name }) {
  if (!(await confirmed(t("login_keys.remove_one", { name }), t("login_keys.remove.sure", { name }), t("login_keys.remove")))) return false;
  await remove(`${PATH}/${id}`);
  toast(t("login_keys.removed", { name }));
  return true;
}
