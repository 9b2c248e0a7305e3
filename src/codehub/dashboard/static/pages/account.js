/** The account page: language, one's own things in every workspace, password, SSH keys, tokens for scripts, where one is signed in. */

import { get, post, put, remove } from "../core/api.js";
import { element, replace } from "../core/element.js";
import { SCOPES } from "../core/states.js";
import { LANGUAGES, ago, chooseLanguage, duration, language, moment, t } from "../core/language.js";
import { choice, confirmed, dialog, field, form, input, select } from "../parts/dialog.js";
import { icon } from "../parts/icons.js";
import { secret } from "../parts/secret_once.js";
import { complain, toast } from "../parts/toasts.js";
import { ownThingsPanels } from "./account_secrets.js";
import { sshKeysPanel } from "./account_ssh_keys.js";

const LIVES = [86_400, 7 * 86_400, 30 * 86_400, 90 * 86_400, 365 * 86_400];

export function accountPage(app) {
  app.stream.watchEverybody(false);
  const { user } = app.session;
  const node = element(
    "div",
    { class: "page narrow" },
    element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("account.title")), element("p", { class: "muted" }, [user.username, t(`role.${user.role}`)].join(" · ")))),
    languagePanel(),
    group(t("own.title"), [t("own.text"), t("own.unreadable"), t("own.visible")], ownThingsPanels()),
    group(t("access.title"), [], [user.has_password && passwordPanel(), sshKeysPanel(), tokensPanel(app), sessionsPanel()]),
  );
  return { title: t("account.title"), node };
}

function group(title, texts, panels) {
  return element("div", { class: "group" }, element("header", { class: "group-head" }, element("h2", {}, title), texts.map((text) => element("p", { class: "muted" }, text))), panels);
}

function languagePanel() {
  const chosen = select("language", Object.entries(LANGUAGES), language);
  chosen.addEventListener("change", () => chooseLanguage(chosen.value));
  return element("section", { class: "panel" }, element("h2", {}, t("account.language")), field(t("account.language.label"), chosen));
}

function passwordPanel() {
  const node = element("section", { class: "panel" }, element("h3", {}, t("password.title")), element("p", { class: "muted" }, t("password.text")));
  const fill = () =>
    form({
      label: t("password.change"),
      fields: [
        field(t("password.old"), input("old_password", { type: "password", required: true, autocomplete: "current-password" })),
        field(t("password.new"), input("new_password", { type: "password", required: true, autocomplete: "new-password" })),
        choice(t("password.revoke_tokens"), element("input", { type: "checkbox", name: "revoke_tokens" })),
      ],
      send: async (values) => {
        await put("session/password", values);
        toast(t("password.changed"));
        node.lastChild.replaceWith(fill());
      },
    });
  node.append(fill());
  return node;
}

function sessionsPanel() {
  const list = element("ul", { class: "plain rows" });
  const node = element("section", { class: "panel" }, element("h3", {}, t("sessions.title")), element("p", { class: "muted" }, t("sessions.text")), list);

  async function load() {
    const { items } = await get("sessions");
    replace(list, items.map(row));
  }

  function row(session) {
    const end = element("button", { type: "button", class: "button small", on: { click: () => remove(`sessions/${session.id}`).then(load, complain) } }, t("sessions.end"));
    return element(
      "li",
      { class: "row" },
      element(
        "div",
        { class: "row-main" },
        element("p", {}, browserOf(session.agent), " ", session.current && element("span", { class: "badge" }, t("sessions.current"))),
        element("p", { class: "muted small" }, [session.address, t("sessions.seen", { ago: ago(session.last_seen_at) }), t("sessions.expires", { time: moment(session.expires_at) })].filter(Boolean).join(" · ")),
      ),
      !session.current && end,
    );
  }

  load().catch(complain);
  return node;
}

/** "Chrome on Linux": what the long text boils down to for people. */
function browserOf(agent) {
  const browser = ["Edg", "OPR", "Firefox", "Chrome", "Safari", "curl", "codehub"].find((name) => agent.includes(name));
  const system = ["Windows", "Android", "iPhone", "iPad", "Mac OS", "Linux"].find((name) => agent.includes(name));
  const known = { Edg: "Edge", OPR: "Opera" }[browser] ?? browser;
  return [known, system].filter(Boolean).join(" · ") || agent.slice(0, 60) || t("sessions.unknown");
}

function tokensPanel(app) {
  const list = element("ul", { class: "plain rows" });
  const create = element("button", { type: "button", class: "button", on: { click: () => loadAfter(createToken(app)).catch(complain) } }, icon("plus"), t("tokens.create"));
  const node = element(
    "section",
    { class: "panel" },
    element("div", { class: "panel-head" }, element("h3", {}, t("tokens.title")), create),
    element("p", { class: "muted" }, t("tokens.text")),
    list,
  );

  async function load() {
    const { items } = await get("tokens");
    replace(list, items.length ? items.map(row) : element("li", { class: "row muted" }, t("tokens.none")));
  }

  async function loadAfter(work) {
    if (await work) await load();
  }

  function row(token) {
    const facts = [
      token.scopes.map((scope) => t(`scope.${scope}`)).join(", "),
      token.expires_at ? t("tokens.expires", { time: moment(token.expires_at) }) : t("tokens.forever"),
      token.last_used_at ? t("tokens.used", { ago: ago(token.last_used_at) }) : t("tokens.unused"),
    ];
    return element(
      "li",
      { class: "row" },
      element("div", { class: "row-main" }, element("p", {}, element("strong", {}, token.name)), element("p", { class: "muted small" }, facts.join(" · "))),
      element(
        "button",
        { type: "button", class: "button small danger", "aria-label": t("tokens.revoke_one", { name: token.name }), on: { click: () => loadAfter(revoke(token)).catch(complain) } },
        t("tokens.revoke"),
      ),
    );
  }

  load().catch(complain);
  return node;
}

/** @returns {Promise<boolean>} whether it was revoked */
async function revoke(token) {
  const sure = await confirmed(t("tokens.revoke"), t("tokens.revoke.sure", { name: token.name }), t("tokens.revoke"));
  if (sure) await remove(`tokens/${token.id}`);
  return sure;
}

/** @returns {Promise<boolean>} whether there is a new token */
async function createToken(app) {
  let isMade = false;
  const scopes = SCOPES.filter((scope) => app.session.scopes.includes(scope));
  const lives = [...LIVES.map((span) => [String(span), duration(span)]), ["", t("tokens.forever")]];
  await dialog(t("tokens.create"), (close) => {
    const place = element("div", {});
    place.append(
      form({
        label: t("tokens.create"),
        fields: [
          field(t("field.name"), input("name", { required: true, maxlength: 100, "data-first": "", placeholder: "ci" })),
          element(
            "fieldset",
            { class: "choices" },
            element("legend", {}, t("tokens.scopes")),
            scopes.map((scope) => choice(t(`scope.${scope}`), element("input", { type: "checkbox", name: "scopes", value: scope, "data-many": "", checked: scope === "read" }))),
          ),
          field(t("tokens.life"), select("life", lives, String(30 * 86_400))),
        ],
        send: async ({ name, scopes: chosen, life }) => {
          const made = await post("tokens", { name, scopes: chosen, expires_in_seconds: life ? Number(life) : null });
          isMade = true;
          replace(place, secret(t("tokens.once"), made.token, close));
        },
      }),
    );
    return place;
  });
  return isMade;
}
