/** The frame around every page: where one is, where one can go, and whether what is shown is true. */

import { remove } from "../core/api.js";
import { element, show, text } from "../core/element.js";
import { LANGUAGES, chooseLanguage, clock, language, t } from "../core/language.js";
import { icon } from "./icons.js";
import { menu } from "./menu.js";
import { complain, toastRegion } from "./toasts.js";

const SECTIONS = [
  ["/", "nav.workspaces", (path) => path === "/" || path.startsWith("/workspaces/")],
  ["/admin", "nav.admin", (path) => path.startsWith("/admin")],
];

export function shell(app) {
  const main = element("main", { id: "main", tabindex: "-1" });
  const links = SECTIONS.filter(([path]) => path !== "/admin" || isAdmin(app)).map(([path, key, here]) => ({
    link: element("a", { class: "nav-link", href: path }, t(key)),
    here,
  }));
  const header = element(
    "header",
    { class: "top" },
    element(
      "div",
      { class: "top-inside" },
      element("a", { class: "brand", href: "/", "aria-label": "CodeHub" }, mark(), element("span", {}, "CodeHub")),
      element("nav", { "aria-label": t("nav.label") }, links.map(({ link }) => link)),
      element("span", { class: "spacer" }),
      account(app),
    ),
  );
  const skip = element("a", { class: "skip", href: "#main" }, t("nav.skip"));
  skip.addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  return {
    main,
    nodes: [skip, header, staleBanner(app), main, toastRegion()],
    opened(path) {
      for (const { link, here } of links) {
        if (here(path)) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
    },
  };
}

export const isAdmin = (app) => app.session.user.role === "admin";

function mark() {
  const holder = element("span", { class: "mark", "aria-hidden": "true" });
  holder.append("‹›");
  return holder;
}

function account(app) {
  const { username } = app.session.user;
  const face = element("span", { class: "account" }, icon("user"), element("span", { class: "account-name" }, username));
  return menu(
    `${username}: ${t("nav.account")}`,
    () => [
      { label: t("account.title"), icon: "user", act: () => app.router.go("/account") },
      ...Object.entries(LANGUAGES)
        .filter(([code]) => code !== language)
        .map(([code, name]) => ({ label: name, icon: "settings", act: () => chooseLanguage(code) })),
      { label: t("account.sign_out"), icon: "back", act: signOut },
    ],
    face,
    "button quiet",
  );
}

async function signOut() {
  try {
    await remove("session");
    location.assign("/signin");
  } catch (problem) {
    complain(problem);
  }
}

/** Shows that what is seen may be stale, only when it takes long. */
function staleBanner(app) {
  const words = element("p", {});
  const node = element("div", { class: "stale", role: "status", hidden: true }, element("span", { class: "stale-dot", "aria-hidden": "true" }), words);
  app.stream.watch((since) => {
    text(words, since === null ? "" : t("stream.stale", { time: clock(since) }));
    show(node, since !== null);
    document.documentElement.classList.toggle("is-stale", since !== null);
  });
  return node;
}
