/** A button with more behind it: arrows move, Escape closes, letters find; as menus do everywhere. */

import { element } from "../core/element.js";
import { icon } from "./icons.js";

let number = 0;

/**
 * @param {string} label for those who do not see the dots
 * @param {() => {label: string, icon?: string, danger?: boolean, act: () => void}[]} items asked each time it opens
 */
export function menu(label, items, face = icon("more"), look = "icon-button bordered") {
  const id = `menu-${(number += 1)}`;
  const list = element("div", { class: "menu", id, role: "menu", popover: "auto", "aria-label": label });
  const button = element(
    "button",
    { type: "button", class: look, "aria-label": label, "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id },
    face,
  );
  button.addEventListener("click", () => (list.matches(":popover-open") ? list.hidePopover() : open()));
  button.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    open();
  });
  list.addEventListener("toggle", (event) => {
    const opened = event.newState === "open";
    button.setAttribute("aria-expanded", String(opened));
    if (!opened && list.contains(document.activeElement)) button.focus();
  });
  list.addEventListener("keydown", (event) => move(event, list, button));

  function open() {
    list.replaceChildren(
      ...items().map((item) =>
        element(
          "button",
          {
            type: "button",
            role: "menuitem",
            tabindex: "-1",
            class: item.danger ? "menu-item danger" : "menu-item",
            on: {
              click: () => {
                list.hidePopover();
                button.focus();
                item.act();
              },
            },
          },
          item.icon && icon(item.icon),
          item.label,
        ),
      ),
    );
    list.showPopover();
    place(list, button);
    list.firstChild?.focus();
  }

  return element("div", { class: "menu-place" }, button, list);
}

function place(list, button) {
  const from = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = list;
  const left = Math.max(8, Math.min(from.right - width, innerWidth - width - 8));
  const below = from.bottom + 6;
  const top = below + height > innerHeight - 8 ? Math.max(8, from.top - height - 6) : below;
  list.style.left = `${left}px`;
  list.style.top = `${top}px`;
}

function move(event, list, button) {
  const items = [...list.children];
  const at = items.indexOf(document.activeElement);
  const to = {
    ArrowDown: () => items[(at + 1) % items.length],
    ArrowUp: () => items[(at - 1 + items.length) % items.length],
    Home: () => items[0],
    End: () => items.at(-1),
  }[event.key];
  if (event.key === "Tab" || event.key === "Escape") {
    list.hidePopover();
    button.focus();
    event.preventDefault();
  } else if (to) {
    event.preventDefault();
    to()?.focus();
  } else if (event.key.length === 1 && event.key !== " ") {
    items.find((item) => item.textContent.toLowerCase().startsWith(event.key.toLowerCase()))?.focus();
  }
}
