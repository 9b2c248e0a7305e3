/** One's own things in every workspace, on the account page: git identity, git credentials, secrets and dotfiles. */

import { get, post, put, remove } from "../core/api.js";
import { element, replace, show } from "../core/element.js";
import { t } from "../core/language.js";
import { confirmed, dialog, field, form, input } from "../parts/dialog.js";
import { icon } from "../parts/icons.js";
import { mustBeNew, rowButton, secretList, secretRow, secretVariables } from "../parts/secret_list.js";
import { copyable } from "../parts/secret_once.js";
import { complain, toast } from "../parts/toasts.js";

const CREDENTIALS = "account/git-credentials";
const TYPED = { spellcheck: "false", autocapitalize: "off" };

/** The panels, in the order in which somebody new needs them. */
export function ownThingsPanels() {
  return [identityPanel(), credentialsPanel(), secretsPanel(), dotfilesPanel()];
}

function panel(title, text, buttons, ...content) {
  const heading = element("h3", {}, title);
  const head = buttons.length ? element("div", { class: "panel-head" }, heading, element("div", { class: "buttons" }, buttons)) : heading;
  return element("section", { class: "panel" }, head, element("p", { class: "muted" }, text), content);
}

function identityPanel() {
  return panel(
    t("identity.title"),
    t("identity.text"),
    [],
    profileForm({
      path: "account/git-identity",
      fields: ({ name, email }) => [
        element(
          "div",
          { class: "fields-pair" },
          field(t("field.name"), input("name", { required: true, maxlength: 100, value: name, placeholder: "Ann Lee", autocomplete: "name", "data-words": "git_name" })),
          field(t("identity.email"), input("email", { ...TYPED, required: true, maxlength: 254, inputmode: "email", value: email, placeholder: "ann@example.com", autocomplete: "email" })),
        ),
      ],
      body: (values) => values,
      sure: t("identity.clear.sure"),
    }),
  );
}

function dotfilesPanel() {
  return panel(
    t("dotfiles.title"),
    t("dotfiles.text"),
    [],
    profileForm({
      path: "account/dotfiles",
      fields: ({ url, command }) => [
        field(t("field.git"), input("url", { ...TYPED, required: true, maxlength: 1000, inputmode: "url", value: url, placeholder: "https://git.example.com/ann/dotfiles.git", "data-words": "git_url" }), t("dotfiles.url.hint")),
        field(t("dotfiles.command"), input("command", { ...TYPED, class: "input mono", maxlength: 1000, value: command, placeholder: "./install.sh" }), t("dotfiles.command.hint")),
      ],
      body: ({ url, command }) => ({ url, command: command || null }),
      sure: t("dotfiles.clear.sure"),
    }),
  );
}

/**
 * A form for what there is one of, and which can be read back: it shows what is set, and empties it if asked.
 * @param {{path: string, fields: (values: Object) => Node[], body: (values: Object) => Object, sure: string}} how
 */
function profileForm({ path, fields, body, sure }) {
  const place = element("div", { class: "form-place" });
  const clear = element("button", { type: "button", class: "button danger", on: { click: () => empty().catch(complain) } }, t("profile.clear"));

  function draw(values) {
    show(clear, Object.values(values).some(Boolean));
    replace(
      place,
      form({
        label: t("save"),
        fields: fields(values),
        foot: [clear],
        send: async (typed) => {
          await put(path, body(typed));
          show(clear, true);
          toast(t("profile.saved"));
        },
      }),
    );
  }

  async function empty() {
    if (!(await confirmed(t("profile.clear"), sure, t("profile.clear")))) return;
    await remove(path);
    draw({});
    place.querySelector("input").focus();
    toast(t("profile.cleared"));
  }

  get(path).then(draw, complain);
  return place;
}

function secretsPanel() {
  const { create, node } = secretVariables("account/secrets", t("secrets.none"));
  return panel(t("secrets.title"), t("secrets.text"), [create], node);
}

function credentialsPanel() {
  const add = (label, ask) => element("button", { type: "button", class: "button", on: { click: () => loadAfter(ask(null)).catch(complain) } }, icon("plus"), label);
  const token = add(t("git_token.create"), askForToken);
  const { node, load, loadAfter } = secretList({ path: CREDENTIALS, empty: t("credentials.none"), row: credentialRow, otherwise: token });
  load().catch(complain);
  return panel(t("credentials.title"), t("credentials.text"), [token, add(t("ssh_key.create"), askForKey)], node);
}

function credentialRow(item, loadAfter) {
  const { host } = item;
  const isToken = item.kind === "token";
  const title = [element("strong", {}, host), " ", element("span", { class: "badge" }, t(isToken ? "git_token.badge" : "ssh_key.badge"))];
  const erase = rowButton(t("secrets.delete"), t(isToken ? "git_token.delete_one" : "ssh_key.delete_one", { host }), () => loadAfter(forget(item)), "danger");
  if (isToken) {
    const change = rowButton(t("secrets.replace"), t("git_token.replace_one", { host }), () => loadAfter(askForToken(item)));
    return secretRow({ title, facts: [t("git_token.username", { name: item.username })], item, again: t("secrets.unreadable.replace"), buttons: [change, erase] });
  }
  const renew = rowButton(t("ssh_key.renew"), t("ssh_key.renew_one", { host }), () => loadAfter(renewKey(item)));
  return secretRow({ title, facts: [], item, again: t("ssh_key.again"), buttons: [renew, erase] }, item.is_readable && publicKey(item));
}

function publicKey({ host, public_key: key }) {
  return element("div", { class: "row-wide" }, copyable(t("ssh_key.public_of", { host }), key, t("ssh_key.copy_one", { host })), element("p", { class: "field-hint" }, t("ssh_key.where", { host })));
}

const credentialPath = (host, kind) => `${CREDENTIALS}/${encodeURIComponent(host)}/${kind}`;

/** The host alone, also of somebody who pasted the address of a repository or a page. */
function hostOf(typed) {
  const address = typed.trim();
  return ((URL.canParse(address) && new URL(address).host) || address.split("/")[0]).toLowerCase();
}

const hostField = () => field(t("credentials.host"), input("host", { ...TYPED, required: true, maxlength: 300, pattern: "\\s*[^\\s\\/.].*", placeholder: "git.example.com", inputmode: "url", "data-first": "" }), t("credentials.host.hint"));

/** @returns {Promise<boolean>} whether it was sent: one that is refused may have been set elsewhere meanwhile */
async function askForToken(known) {
  let isSent = false;
  await dialog(known ? t("git_token.replace_one", { host: known.host }) : t("git_token.create"), (close) =>
    form({
      label: t("save"),
      fields: [
        !known && hostField(),
        field(t("field.username"), input("username", { ...TYPED, maxlength: 100, value: known?.username ?? "", placeholder: "git", "data-words": "git_username" }), t("git_token.username.hint")),
        field(t("git_token.token"), input("token", { type: "password", autocomplete: "new-password", required: true, maxlength: 4096, "data-first": known && "" }), t("git_token.token.hint")),
      ],
      send: async (values) => {
        const host = known?.host ?? hostOf(values.host);
        isSent = true;
        if (!known) await mustBeNew(CREDENTIALS, (item) => item.kind === "token" && item.host === host, "host", t("git_token.exists", { host }));
        await put(credentialPath(host, "token"), { username: values.username || "git", token: values.token.trim() });
        toast(t("git_token.saved", { host }));
        close();
      },
    }),
  );
  return isSent;
}

/** @returns {Promise<boolean>} whether it was sent: one that is refused may have been made elsewhere meanwhile */
async function askForKey() {
  let isSent = false;
  await dialog(t("ssh_key.create"), (close) => {
    const place = element("div", {});
    place.append(
      form({
        label: t("ssh_key.make"),
        fields: [element("p", {}, t("ssh_key.text")), hostField()],
        send: async (values) => {
          const host = hostOf(values.host);
          isSent = true;
          await mustBeNew(CREDENTIALS, (item) => item.kind === "ssh_key" && item.host === host, "host", t("ssh_key.exists", { host }));
          showKey(place, await post(credentialPath(host, "ssh-key")), close);
        },
      }),
    );
    return place;
  });
  return isSent;
}

/**
 * Makes another pair for the host, and shows its public half, which the server does not know yet.
 * @returns {Promise<boolean>} whether it was made
 */
async function renewKey({ host }) {
  if (!(await confirmed(t("ssh_key.renew_one", { host }), t("ssh_key.renew.sure", { host }), t("ssh_key.renew")))) return false;
  const made = await post(credentialPath(host, "ssh-key"));
  await dialog(t("ssh_key.public_of", { host }), (close) => {
    const place = element("div", {});
    showKey(place, made, close);
    return place;
  });
  return true;
}

function showKey(place, item, close) {
  const done = element("button", { type: "button", class: "button primary", "data-first": "", "aria-describedby": "ssh-key-made", on: { click: close } }, t("done"));
  replace(place, element("p", { class: "dialog-text", id: "ssh-key-made" }, t("ssh_key.made", { host: item.host })), publicKey(item), element("footer", { class: "dialog-foot" }, done));
  done.focus();
}

/** @returns {Promise<boolean>} whether it was deleted */
async function forget({ host, kind }) {
  const isToken = kind === "token";
  const title = t(isToken ? "git_token.delete_one" : "ssh_key.delete_one", { host });
  if (!(await confirmed(title, t(isToken ? "git_token.delete.sure" : "ssh_key.delete.sure", { host }), t("secrets.delete")))) return false;
  await remove(credentialPath(host, isToken ? "token" : "ssh-key"));
  toast(t("credentials.deleted", { host }));
  return true;
}
