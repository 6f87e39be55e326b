// Elements from names, attributes and children. Text becomes text nodes, never markup.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Attributes */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes | null} [attributes] `onclick` and the like are listeners; null and false are left out
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/**
 * @param {string} tag
 * @param {Attributes | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function s(tag, attributes, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS("http://www.w3.org/2000/svg", tag));
  fill(element, attributes, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Attributes | null | undefined} attributes
 * @param {(Child | Child[])[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
}

/** @param {(Child | Child[])[]} children @returns {(Node | string)[]} */
function nodes(children) {
  const kept = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  return kept.map((child) => (child instanceof Node ? child : String(child)));
}

/** @param {Element} element @param {...(Child | Child[])} children */
export function replace(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`there is no element #${id}`);
  return found;
}

/**
 * A button; `type=button`, so that it never submits.
 * @param {string} label
 * @param {(event: Event) => void} onclick
 * @param {Attributes} [attributes]
 */
export function button(label, onclick, attributes) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/**
 * A labelled control.
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [hint]
 */
export function field(label, control, hint) {
  return h("label", { class: "field" }, h("span", { class: "label" }, label), control, hint && h("span", { class: "hint" }, hint));
}

const MIN_TEXT_ROWS = 6;
const MAX_TEXT_ROWS = 30;

/** As high as its text. @param {HTMLTextAreaElement} text */
export function fitRows(text) {
  text.rows = Math.max(MIN_TEXT_ROWS, Math.min(MAX_TEXT_ROWS, text.value.split("\n").length));
}

/**
 * A list of choices.
 * @param {[value: string, label: string][]} choices
 * @param {string} value
 * @param {(value: string) => void} onchange
 * @param {Attributes} [attributes]
 */
export function select(choices, value, onchange, attributes) {
  const options = choices.map(([each, label]) => h("option", { value: each, selected: each === value }, label));
  return h("select", { ...attributes, onchange: (/** @type {Event} */ event) => onchange(/** @type {HTMLSelectElement} */ (event.target).value) }, options);
}

/**
 * Text that a click copies: a command to run.
 * @param {string} text
 */
export function copyable(text) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(code); // without the permission: selected, to be copied by hand
      copy.textContent = "Selected";
    }
  }, { class: "quiet" });
  const code = h("code", { tabindex: "0" }, text); // it scrolls on a narrow screen
  return h("div", { class: "copyable" }, code, copy);
}
