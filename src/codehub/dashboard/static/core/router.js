/** Addresses: each names a page and all it shows, so that links, reloads and the back button do what people expect. */

import { element, replace } from "./element.js";
import { problemText, t } from "./language.js";

/**
 * @typedef {{title: string, node: Node, dispose?: () => void}} Page
 * @typedef {{pattern: RegExp, open: (match: Object, app: Object) => Page | Promise<Page>}} Route
 */

export class Router {
  #routes;
  #main;
  #app;
  #page = null;
  #turn = 0;
  onOpened = () => {};

  /** @param {Route[]} routes */
  constructor(routes, main, app) {
    this.#routes = routes;
    this.#main = main;
    this.#app = app;
    addEventListener("popstate", () => this.#open(true));
    document.addEventListener("click", (event) => this.#clicked(event));
  }

  start() {
    return this.#open(false);
  }

  go(path) {
    history.pushState(null, "", path);
    return this.#open(true);
  }

  /** Changes the query of the present page: for filters, which must not fill the history. */
  note(values) {
    const search = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) {
      if (value) search.set(name, value);
      else search.delete(name);
    }
    const text = search.toString();
    history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}`);
  }

  #clicked(event) {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    const path = link.getAttribute("href");
    if (path.startsWith("#") || !this.#match(link.pathname)) return;
    event.preventDefault();
    this.go(path);
  }

  #match(path) {
    for (const route of this.#routes) {
      const match = route.pattern.exec(path);
      if (match) return { route, match };
    }
    return null;
  }

  async #open(focus) {
    const turn = (this.#turn += 1);
    const found = this.#match(location.pathname);
    let page;
    try {
      page = found ? await found.route.open(found.match.groups ?? {}, this.#app) : nothing();
    } catch (error) {
      page = failed(error);
    }
    if (turn !== this.#turn) return void page.dispose?.();
    this.#page?.dispose?.();
    this.#page = page;
    replace(this.#main, page.node);
    document.title = page.title ? `${page.title} · CodeHub` : "CodeHub";
    this.onOpened(location.pathname);
    for (const tab of this.#main.querySelectorAll(".tab[aria-current]")) tab.parentNode.scrollLeft = tab.offsetLeft - 40;
    if (focus) {
      scrollTo(0, 0);
      const heading = this.#main.querySelector("h1");
      heading?.setAttribute("tabindex", "-1");
      heading?.focus({ preventScroll: true });
    }
  }
}

function nothing() {
  return { title: t("missing.title"), node: told(t("missing.title"), t("missing.text")) };
}

function failed(error) {
  const missing = error.status === 404;
  if (!error.status && error.status !== 0) console.error(error);
  const title = missing ? t("missing.title") : t("failed.title");
  return { title, node: told(title, problemText(error)) };
}

function told(title, text) {
  return element(
    "div",
    { class: "page empty" },
    element("h1", {}, title),
    element("p", {}, text),
    element("p", {}, element("a", { href: "/", class: "button" }, t("missing.home"))),
  );
}
