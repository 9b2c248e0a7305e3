/**
 * The browser's own dialogs: they keep the focus, close on Escape, and give the focus back, also to a button that was
 * drawn anew meanwhile.
 */

import { element, labelled, replace } from "../core/element.js";
import { problemText, t, wrongText } from "../core/language.js";
import { icon } from "./icons.js";

let number = 0;

/**
 * @param {string} title
 * @param {(close: () => void) => any} content
 * @returns {Promise<void>} when it is closed
 */
export function dialog(title, content) {
  const id = `dialog-${(number += 1)}`;
  const before = document.activeElement;
  const node = element("dialog", { class: "dialog", "aria-labelledby": id });
  const close = () => node.close();
  replace(
    node,
    element(
      "header",
      { class: "dialog-head" },
      element("h2", { id }, title),
      element("button", { type: "button", class: "icon-button", "aria-label": t("dialog.close"), on: { click: close } }, icon("close")),
    ),
    content(close),
  );
  document.body.append(node);
  return new Promise((done) => {
    node.addEventListener("close", () => {
      node.remove();
      const same = before?.isConnected ? before : labelled(document, before?.getAttribute("aria-label"));
      same?.focus();
      done();
    });
    node.showModal();
    node.querySelector("[data-first]")?.focus();
  });
}

/** Asks before something that cannot be undone. @returns {Promise<boolean>} */
export async function confirmed(title, text, label) {
  let said = false;
  await dialog(title, (close) => [
    element("p", { class: "dialog-text" }, text),
    element(
      "footer",
      { class: "dialog-foot" },
      element("button", { type: "button", class: "button", on: { click: close }, data: { first: "" } }, t("dialog.cancel")),
      element("button", { type: "button", class: "button danger", on: { click: () => ((said = true), close()) } }, label),
    ),
  ]);
  return said;
}

/**
 * A form that is sent once, keeps what was typed when it is refused, and says what is wrong beside the field it is about.
 *
 * @param {{label: string, fields: Node[], send: (values: Object) => Promise<void>, foot?: Node[]}} how
 */
export function form({ label, fields, send, foot = [], tone = "primary" }) {
  const complaint = element("p", { class: "complaint", role: "alert" });
  const button = element("button", { type: "submit", class: `button ${tone}` }, label);
  const node = element("form", { class: "form", novalidate: true }, fields, complaint, element("footer", { class: "dialog-foot" }, foot, button));
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    clear(node);
    if (!valid(node)) return;
    button.disabled = true;
    complaint.textContent = "";
    try {
      await send(values(node));
    } catch (problem) {
      refuse(node, complaint, problem);
    } finally {
      button.disabled = false;
    }
  });
  return node;
}

function values(node) {
  const found = {};
  for (const control of node.elements) {
    if (!control.name) continue;
    if (control.type === "checkbox") {
      if (control.dataset.many === undefined) found[control.name] = control.checked;
      else (found[control.name] ??= []).push(...(control.checked ? [control.value] : []));
    } else if (control.type !== "radio" || control.checked) {
      found[control.name] = control.value;
    }
  }
  return found;
}

function valid(node) {
  for (const control of node.elements) {
    if (control.willValidate && !control.validity.valid) {
      mark(control, invalidText(control));
      control.focus();
      return false;
    }
  }
  return true;
}

/** In the page's language: the browser's own words are in the browser's. */
function invalidText({ validity, min, max }) {
  if (validity.valueMissing) return t("invalid.missing");
  if (validity.rangeUnderflow) return t("invalid.least", { least: min });
  if (validity.rangeOverflow) return t("invalid.most", { most: max });
  return t("invalid.form");
}

function refuse(node, complaint, problem) {
  if (problem.status === undefined) console.error(problem);
  const [first] = problem.fields ?? [];
  const control = first && node.elements[first.field];
  if (control instanceof HTMLElement) {
    const wrong = wrongText(first, control.dataset.words);
    // A checkbox has no room of its own for what is wrong with it.
    if (!mark(control, wrong)) complaint.textContent = wrong;
    control.focus();
  } else {
    complaint.textContent = problemText(problem);
  }
}

function mark(control, message) {
  control.setAttribute("aria-invalid", "true");
  const place = document.getElementById(`${control.id}-wrong`);
  if (place) place.textContent = message;
  return Boolean(place);
}

function clear(node) {
  for (const control of node.elements) control.removeAttribute("aria-invalid");
  for (const place of node.querySelectorAll(".field-wrong")) place.textContent = "";
}

/** A label, its control, a hint, and room for what is wrong with it. */
export function field(label, control, hint) {
  const id = `field-${(number += 1)}`;
  control.id = id;
  const described = [hint ? `${id}-hint` : "", `${id}-wrong`].filter(Boolean).join(" ");
  control.setAttribute("aria-describedby", described);
  return element(
    "div",
    { class: "field" },
    element("label", { for: id }, label),
    control,
    hint && element("p", { class: "field-hint", id: `${id}-hint` }, hint),
    element("p", { class: "field-wrong", id: `${id}-wrong` }),
  );
}

export function choice(label, control) {
  const id = `field-${(number += 1)}`;
  control.id = id;
  return element("div", { class: "choice" }, control, element("label", { for: id }, label));
}

/** @param {[string, string][]} options value and label */
export function select(name, options, chosen) {
  const node = element("select", { name, class: "input" });
  for (const [value, label] of options) node.append(element("option", { value }, label));
  node.value = chosen;
  return node;
}

export const input = (name, properties = {}) => element("input", { name, class: "input", autocomplete: "off", ...properties });
