/**
 * What can be set, replaced and deleted, and is never shown again. Environment variables, a person's own or a template's,
 * are such a list; git credentials are another.
 */

import { Problem, get, put, remove } from "../core/api.js";
import { element, labelled, replace, show } from "../core/element.js";
import { ago, moment, t } from "../core/language.js";
import { confirmed, dialog, field, form, input } from "./dialog.js";
import { icon } from "./icons.js";
import { complain, toast } from "./toasts.js";

const SHOWN_AT_FIRST = 50;

/**
 * The focus stays on the button that was pressed, also when its row was drawn anew; if the row is gone it goes to `otherwise`.
 *
 * @param {{path: string, empty: string, row: (item: any, loadAfter: (work: Promise<boolean>) => Promise<void>) => Node, otherwise: HTMLElement}} how
 */
export function secretList({ path, empty, row, otherwise }) {
  const list = element("ul", { class: "plain rows" });
  const more = element("button", { type: "button", class: "button", hidden: true, on: { click: showAll } }, t("more"));
  let items = [];
  let most = SHOWN_AT_FIRST;

  async function load() {
    ({ items } = await get(path));
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    draw();
    if (focused) (labelled(list, focused) ?? otherwise).focus();
  }

  /**
   * Loads the list anew if it may differ after `work`, and leaves it as it is if not.
   * @param {Promise<boolean>} work
   */
  async function loadAfter(work) {
    if (await work) await load();
  }

  function draw() {
    replace(list, items.length ? items.slice(0, most).map((item) => row(item, loadAfter)) : element("li", { class: "row muted" }, empty));
    show(more, items.length > most);
  }

  function showAll() {
    const before = list.childElementCount;
    most = Infinity;
    draw();
    list.children[before].querySelector("button").focus();
  }

  return { node: element("div", {}, list, more), load, loadAfter };
}

/**
 * @param {{title: any, facts: string[], item: {updated_at: string, is_readable: boolean}, again: string, buttons: Node[]}} how
 *   `again`: how it is set again if it can no longer be decrypted
 */
export function secretRow({ title, facts, item, again, buttons }, ...below) {
  const set = element("time", { datetime: item.updated_at, title: moment(item.updated_at) }, t("secrets.set", { ago: ago(item.updated_at) }));
  return element(
    "li",
    { class: "row" },
    element(
      "div",
      { class: "row-main" },
      element("p", {}, title, " ", !item.is_readable && element("span", { class: "badge bad" }, t("secrets.unreadable"))),
      element("p", { class: "muted small" }, facts.map((fact) => [fact, " · "]), set),
      !item.is_readable && element("p", { class: "small" }, t("secrets.unreadable.text"), " ", again),
    ),
    element("div", { class: "buttons" }, buttons),
    below,
  );
}

/** @param {string} name what it is about, for those who hear the button alone */
export function rowButton(label, name, act, look = "") {
  return element("button", { type: "button", class: `button small ${look}`.trim(), "aria-label": name, on: { click: () => act().catch(complain) } }, label);
}

/** Refuses a name that is there already: what is replaced should be known to be. */
export async function mustBeNew(path, isSame, fieldName, message) {
  const { items } = await get(path);
  if (items.some(isSame)) throw new Problem(422, { code: "invalid", errors: [{ field: fieldName, message, isTranslated: true }] });
}

/** Environment variables that are kept at `path`: the button that adds one, and the list. */
export function secretVariables(path, empty) {
  const create = element("button", { type: "button", class: "button", on: { click: () => loadAfter(edit(path, null)).catch(complain) } }, icon("plus"), t("secrets.create"));
  const { node, load, loadAfter } = secretList({ path, empty, row, otherwise: create });

  function row(item) {
    const { name } = item;
    const buttons = [
      rowButton(t("secrets.replace"), t("secrets.replace_one", { name }), () => loadAfter(edit(path, name))),
      rowButton(t("secrets.delete"), t("secrets.delete_one", { name }), () => loadAfter(forget(path, name)), "danger"),
    ];
    return secretRow({ title: element("code", { class: "break" }, name), facts: [], item, again: t("secrets.unreadable.replace"), buttons });
  }

  load().catch(complain);
  return { create, node };
}

/** @returns {Promise<boolean>} whether it was deleted */
async function forget(path, name) {
  if (!(await confirmed(t("secrets.delete_one", { name }), t("secrets.delete.sure", { name }), t("secrets.delete")))) return false;
  await remove(`${path}/${encodeURIComponent(name)}`);
  toast(t("secrets.deleted", { name }));
  return true;
}

/** @returns {Promise<boolean>} whether it was sent: one that is refused may have been set elsewhere meanwhile */
async function edit(path, known) {
  let isSent = false;
  const typed = { class: "input mono", spellcheck: "false", autocapitalize: "off" };
  const name = input("name", { ...typed, required: true, maxlength: 100, pattern: "[A-Za-z_][A-Za-z0-9_]*", placeholder: "NPM_TOKEN", "data-words": "variable", "data-first": "" });
  const value = element("textarea", { ...typed, name: "value", rows: 5, required: true, autocomplete: "off", "data-first": known && "" });
  await dialog(known ? t("secrets.replace_one", { name: known }) : t("secrets.create"), (close) =>
    form({
      label: t("save"),
      fields: [!known && field(t("field.name"), name, t("secrets.name.hint")), field(t(known ? "secrets.value.new" : "secrets.value"), value, t("secrets.value.hint"))],
      send: async (values) => {
        const chosen = known ?? values.name;
        isSent = true;
        if (!known) await mustBeNew(path, (item) => item.name === chosen, "name", t("secrets.exists", { name: chosen }));
        await put(`${path}/${encodeURIComponent(chosen)}`, { value: values.value });
        toast(t("secrets.saved", { name: chosen }));
        close();
      },
    }),
  );
  return isSent;
}
