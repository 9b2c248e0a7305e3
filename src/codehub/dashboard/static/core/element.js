/**
 * The only way anything gets onto a page: nodes and text, never markup. What people typed stays text whatever it holds.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} tag
 * @param {Object<string, any>} [properties] attributes; `on`: listeners; `vars`: CSS custom properties; `data`: dataset.
 *   null, undefined and false leave an attribute out; true gives an empty one.
 * @param {...any} children nodes, text, arrays of them; null and false are left out.
 */
export function element(tag, properties = {}, ...children) {
  return dressed(document.createElement(tag), properties, children);
}

/** An SVG element, with its attributes and children. */
export function drawing(tag, properties = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), properties, children);
}

function dressed(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "vars") {
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    } else if (name === "data") {
      Object.assign(node.dataset, value);
    } else if (name === "value") {
      node.value = value ?? "";
    } else {
      attribute(node, name, value);
    }
  }
  node.append(...flat(children));
  return node;
}

/** Sets the text only when it differs, so that nothing is announced, animated or laid out anew for nothing. */
export function attribute(node, name, value) {
  if (/^on/i.test(name)) throw new Error(`${name}: listeners go into on`);
  const wanted = value === null || value === undefined || value === false ? null : value === true ? "" : String(value);
  if (name === "href" && wanted !== null && !/^(\/(?!\/)|#|https?:)/.test(wanted)) throw new Error("not an address");
  if (wanted === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
}

export function text(node, wanted) {
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

export function replace(node, ...children) {
  node.replaceChildren(...flat(children));
}

/** The element in `place` that those who do not see it hear as `label`; null if there is none. */
export function labelled(place, label) {
  return [...place.querySelectorAll("[aria-label]")].find((node) => node.getAttribute("aria-label") === label) ?? null;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/**
 * Brings `parent`'s children to `keys`, in that order, moving as few as it can: whoever stays keeps focus and scroll.
 *
 * @param {Map<string, {node: Node, dispose?: () => void}>} known
 * @param {(key: string) => {node: Node}} make
 */
export function arrange(parent, keys, known, make) {
  const wanted = new Set(keys);
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  for (const [key, part] of known) {
    if (wanted.has(key)) continue;
    part.dispose?.();
    part.node.remove();
    known.delete(key);
  }
  let place = parent.firstChild;
  for (const key of keys) {
    let part = known.get(key);
    if (!part) known.set(key, (part = make(key)));
    if (part.node === place) place = place.nextSibling;
    else parent.insertBefore(part.node, place);
  }
  // A node that is moved loses the focus, though whoever had it did nothing.
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}
