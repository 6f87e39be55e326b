// The caller's name and role; controls that the role does not allow.

import { button, byId, h, replace } from "./dom.js";
import { Problem, forgetToken, get, hasToken, onToken, signIn } from "./api.js";

/** @typedef {"read" | "operate" | "admin"} Role */

const ORDER = ["read", "operate", "admin"];

/** @type {{ name: string, role: Role } | null} */
let caller = null;
/** @type {Set<() => void>} */
const listeners = new Set();

/** Called when the role has changed. @param {() => void} listener */
export function onCaller(listener) {
  listeners.add(listener);
}

export async function loadCaller() {
  try {
    caller = await get("/v1/caller");
  } catch (why) {
    // An older node does not say: the controls are enabled, and the node refuses what is not allowed.
    caller = why instanceof Problem && why.isMissing ? { name: "", role: "admin" } : null;
  }
  show();
  listeners.forEach((listener) => listener());
}

onToken(() => void loadCaller());

/** @param {Role} needed */
export function may(needed) {
  return caller !== null && ORDER.indexOf(caller.role) >= ORDER.indexOf(needed);
}

/** Why a control is disabled; null if it is not. @param {Role} needed @returns {string | null} */
export function refusal(needed) {
  if (may(needed)) return null;
  return caller ? `needs the role ${needed}: yours is ${caller.role}` : `needs a token with the role ${needed}`;
}

/**
 * Disables a control, with the reason, if the role does not include what it needs.
 * @template {HTMLButtonElement | HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} E
 * @param {E} control
 * @param {Role} needed
 * @returns {E}
 */
export function needs(control, needed) {
  const why = refusal(needed);
  if (why) {
    control.disabled = true;
    control.title = why;
  }
  return control;
}

/** A line above controls that are disabled. @param {Role} needed @param {string} what */
export function roleNotice(needed, what) {
  const why = refusal(needed);
  return why ? h("p", { class: "role-notice" }, `${what} ${why}.`) : null;
}

function show() {
  const place = byId("caller");
  if (!caller) return replace(place, button("Sign in", () => void signIn(), { class: "quiet" }));
  const role = h("span", { title: "your role" }, caller.name ? `${caller.name} · ${caller.role}` : "");
  replace(place, role, hasToken() && button("Sign out", () => forgetToken(), { class: "quiet" }));
}
