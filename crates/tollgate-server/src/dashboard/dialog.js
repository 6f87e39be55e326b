// Modal dialogs and short notices.

import { button, byId, h, replace } from "./dom.js";

const NOTICE_MS = 8_000;

/**
 * @typedef {object} DialogOptions
 * @property {string} action the label of the button that acts
 * @property {string | null} [cancel] null for a dialog that only shows something
 * @property {boolean} [danger]
 * @property {boolean} [wide]
 * @property {() => (void | Promise<void>)} onaction an error that it throws is shown, and the dialog stays open
 * @property {() => void} [oncancel]
 */

/**
 * @param {string} title
 * @param {Node} body
 * @param {DialogOptions} options
 */
export function openDialog(title, body, options) {
  const error = h("p", { class: "error-text", role: "alert" });
  const act = h("button", { type: "submit", class: options.danger ? "danger" : "primary" }, options.action);
  const form = h("form", { novalidate: true, onsubmit: submit },
    h("h2", { id: "dialog-title" }, title),
    body,
    error,
    h("div", { class: "dialog-buttons" }, options.cancel !== null && button(options.cancel ?? "Cancel", () => dialog.close()), act),
  );
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: options.wide ? "wide" : null, onclose: closed }, form);
  const opener = document.activeElement;
  let acted = false;

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    if (act.disabled) return;
    act.disabled = true;
    replace(error);
    try {
      await options.onaction();
      acted = true;
      dialog.close();
    } catch (why) {
      replace(error, why instanceof Error ? why.message : String(why));
    } finally {
      act.disabled = false;
    }
  }

  function closed() {
    dialog.remove();
    focusAgain(opener);
    if (!acted) options.oncancel?.();
  }

  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** The browser does this unless the control was drawn again meanwhile. @param {Element | null} opener */
function focusAgain(opener) {
  if (opener?.isConnected) return;
  const label = opener?.getAttribute("aria-label");
  const same = label ? document.querySelector(`${opener?.localName}[aria-label="${CSS.escape(label)}"]`) : null;
  (same instanceof HTMLElement ? same : byId("main")).focus({ preventScroll: true });
}

/**
 * @param {string} text
 * @param {"done" | "failed"} [kind]
 */
export function notice(text, kind = "done") {
  const close = button("Dismiss", () => line.remove(), { class: "quiet" });
  const line = h("div", { class: `notice ${kind}` }, h("span", null, kind === "failed" ? `Failed: ${text}` : text), close);
  byId("notices").append(line);
  setTimeout(() => line.remove(), NOTICE_MS);
}

/** Runs an action, and shows why it failed. @param {() => Promise<void>} action */
export async function attempt(action) {
  try {
    await action();
  } catch (why) {
    notice(why instanceof Error ? why.message : String(why), "failed");
  }
}
