/** All of one's workspaces, live. What is searched, filtered and sorted is in the address. */

import { get } from "../core/api.js";
import { arrange, element, replace, show, text } from "../core/element.js";
import { everySecond } from "../core/clock.js";
import { number, t } from "../core/language.js";
import { card } from "../parts/card.js";
import { createDialog } from "../parts/new_workspace_dialog.js";
import { icon } from "../parts/icons.js";
import { complain } from "../parts/toasts.js";
import { FILTERS, SORTS, chosen, counts } from "./selection.js";
import { slots } from "../parts/running_slots.js";

const STEP = 60;

/** @param {{everybody?: boolean}} [how] */
export function workspacesPage(app, how = {}) {
  return new WorkspacesPage(app, how).page();
}

class WorkspacesPage {
  #app;
  #everybody;
  #cards = new Map();
  #seen = new Set();
  /** null: not asked yet. @type {Map<string, Object> | null} */
  #deleted = null;
  #shown = STEP;
  #total = 0;
  #list = element("div", { class: "cards" });
  #end = element("div", { class: "cards-end", "aria-hidden": "true" });
  #empty = element("div", { class: "empty-place" });
  #count = element("p", { class: "unseen", role: "status" });
  #chips = new Map();
  #watching = new IntersectionObserver((entries) => this.#scrolled(entries), { rootMargin: "200px" });
  #ending = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.#more(), { rootMargin: "800px" });
  #stops = [];

  constructor(app, { everybody = false }) {
    this.#app = app;
    this.#everybody = everybody;
    app.stream.watchEverybody(everybody);
  }

  page() {
    const node = element(
      "div",
      { class: "page" },
      this.#head(),
      this.#tools(),
      this.#count,
      this.#list,
      this.#end,
      this.#empty,
    );
    this.#stops = [
      this.#app.store.listen((ids) => this.#changed(ids)),
      this.#app.lifecycles.listen((id) => this.#cards.get(id)?.update()),
      this.#app.usages.listen((ids) => ids.forEach((id) => this.#find(id) && this.#cards.get(id)?.update())),
      everySecond(() => this.#tick()),
    ];
    this.#ending.observe(this.#end);
    if (this.#view().filter === "deleted") this.#loadDeleted();
    else this.#draw();
    return { title: t(this.#everybody ? "admin.workspaces" : "workspaces.title"), node, dispose: () => this.#dispose() };
  }

  #head() {
    const title = element("h1", {}, t(this.#everybody ? "admin.workspaces" : "workspaces.title"));
    if (this.#everybody) return element("header", { class: "page-head" }, title);
    const used = slots(this.#app);
    this.#stops.push(used.dispose);
    const create = element("button", { type: "button", class: "button primary big", on: { click: () => this.#create() } }, icon("plus"), t("create.open"));
    return element("header", { class: "page-head" }, element("div", {}, title, used.node), create);
  }

  #create() {
    createDialog(this.#app).catch(complain);
  }

  #tools() {
    const view = this.#view();
    const search = element("input", {
      type: "search",
      class: "input search-input",
      placeholder: t("search.hint"),
      "aria-label": t("search.label"),
      value: view.q,
      on: { input: () => this.#look({ q: search.value }) },
    });
    const sort = element("select", { class: "input", "aria-label": t("sort.label"), on: { change: () => this.#look({ sort: sort.value }) } });
    for (const name of Object.keys(SORTS)) sort.append(element("option", { value: name }, t(`sort.${name}`)));
    sort.value = view.sort;
    const chips = element("div", { class: "chips", role: "group", "aria-label": t("filter.label") });
    for (const name of Object.keys(FILTERS)) {
      const count = element("span", { class: "chip-count" });
      const chip = element(
        "button",
        { type: "button", class: "chip", on: { click: () => this.#look({ filter: name === "all" ? "" : name }) } },
        t(`filter.${name}`),
        count,
      );
      this.#chips.set(name, { chip, count });
      chips.append(chip);
    }
    return element("div", { class: "tools" }, element("div", { class: "search" }, icon("search"), search), sort, chips);
  }

  #view() {
    const search = new URLSearchParams(location.search);
    const filter = search.get("filter") ?? "all";
    const sort = search.get("sort") ?? "created";
    return { q: search.get("q") ?? "", filter: filter in FILTERS ? filter : "all", sort: sort in SORTS ? sort : "created" };
  }

  /** How many there are is said when it is known: the deleted have to be asked for first. */
  async #look(values) {
    this.#app.router.note(values);
    this.#shown = STEP;
    if (values.filter === "deleted") await this.#loadDeleted();
    this.#draw();
    if (this.#isKnown()) text(this.#count, t("search.found", { count: number(this.#total) }));
  }

  async #loadDeleted() {
    if (!this.#deleted) this.#draw();
    try {
      const path = this.#everybody ? "admin/workspaces" : "workspaces";
      const { items } = await get(`${path}?deleted=true&limit=200`);
      this.#deleted = new Map(items.filter((ws) => !ws.purged_at).map((ws) => [ws.id, ws]));
      this.#draw();
    } catch (problem) {
      complain(problem);
    }
  }

  #isKnown() {
    return this.#view().filter === "deleted" ? this.#deleted !== null : this.#app.store.ready;
  }

  #find = (id) => this.#app.store.get(id) ?? this.#deleted?.get(id);

  #known() {
    const all = this.#app.store.values();
    return this.#everybody ? all : all.filter((ws) => ws.owner === this.#app.session.user.username);
  }

  #changed(ids) {
    if (ids && this.#view().filter === "deleted") this.#loadDeleted();
    this.#draw(ids);
  }

  /** @param {Set<string> | null} [ids] only these differ from what was drawn */
  #draw(ids = null) {
    const view = this.#view();
    const known = this.#known();
    const source = view.filter === "deleted" ? [...(this.#deleted?.values() ?? [])] : known;
    const found = chosen(source, view);
    this.#total = found.length;
    for (const id of ids ?? this.#cards.keys()) if (this.#find(id)) this.#cards.get(id)?.update();
    arrange(this.#list, found.slice(0, this.#shown).map((ws) => ws.id), this.#cards, (id) => this.#made(id));
    this.#drawChips(view, known);
    this.#drawEmpty(view, known);
    for (const id of ids ?? this.#seen) this.#ask(id);
  }

  #made(id) {
    const made = card(this.#app, id, this.#find, { owner: this.#everybody });
    this.#watching.observe(made.node);
    return {
      ...made,
      dispose: () => {
        this.#watching.unobserve(made.node);
        this.#seen.delete(id);
      },
    };
  }

  #drawChips(view, known) {
    const totals = counts(known);
    for (const [name, { chip, count }] of this.#chips) {
      chip.setAttribute("aria-pressed", String(view.filter === name));
      text(count, name === "deleted" ? "" : number(totals[name]));
    }
  }

  #drawEmpty(view, known) {
    const state = !this.#isKnown() ? "loading" : this.#total ? "" : view.filter === "deleted" ? "deleted" : known.length ? "nothing" : "new";
    show(this.#empty, state !== "");
    if (this.#empty.dataset.state === state) return;
    this.#empty.dataset.state = state;
    replace(this.#empty, state === "" ? [] : this.#emptyState(state));
  }

  #emptyState(state) {
    if (state === "loading") return [...Array(3)].map(() => element("div", { class: "card ghost", "aria-hidden": "true" }));
    const button = { new: [t("create.open"), () => this.#create()], nothing: [t("search.clear"), () => this.#clear()] }[state];
    return element(
      "div",
      { class: "empty" },
      element("h2", {}, t(`empty.${state}.title`)),
      element("p", {}, t(`empty.${state}.text`)),
      button && !(state === "new" && this.#everybody) && element("p", {}, element("button", { type: "button", class: "button primary", on: { click: button[1] } }, button[0])),
    );
  }

  #clear() {
    this.#app.router.go(location.pathname);
  }

  #more() {
    if (this.#shown >= this.#total) return;
    this.#shown += STEP;
    this.#draw(new Set());
    // Still in sight after these: an observer speaks only of changes.
    this.#ending.unobserve(this.#end);
    this.#ending.observe(this.#end);
  }

  #scrolled(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.#seen.add(target.dataset.id);
      else this.#seen.delete(target.dataset.id);
      if (isIntersecting) this.#ask(target.dataset.id);
    }
  }

  #ask(id) {
    const ws = this.#seen.has(id) && this.#app.store.get(id);
    if (ws) this.#app.lifecycles.want(ws);
  }

  #tick() {
    for (const id of this.#seen) {
      if (!this.#find(id)) continue;
      this.#cards.get(id)?.update();
      this.#ask(id);
    }
    this.#app.usages.want([...this.#seen].map((id) => this.#app.store.get(id)).filter(Boolean));
  }

  #dispose() {
    for (const stop of this.#stops) stop();
    this.#watching.disconnect();
    this.#ending.disconnect();
  }
}
