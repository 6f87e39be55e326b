// What every page shows: when the node was last heard, and whether it protects.

import { button, byId, h, replace } from "./dom.js";
import { get, onHeard, onLost, onToken } from "./api.js";
import { duration } from "./format.js";
import { live } from "./live.js";

const HEALTH_MS = 4_000;
const STALE_MS = 9_000;

let heardAt = Date.now();
let hasAnswered = false;
/** The last call was not answered. */
let isLost = false;
/** @type {any} */
let health = null;
let shown = "";

/** The latest answer of `/healthz`. */
export const lastHealth = () => health;

/** Whether the node answers: what it said last may be stated as its present state. */
export const isHeard = () => !isLost && Date.now() - heardAt <= STALE_MS;

/** When it answered last, in seconds since 1970; null if it never did. */
export const lastHeard = () => (hasAnswered ? heardAt / 1000 : null);

export function watch() {
  onHeard(() => {
    heardAt = Date.now();
    hasAnswered = true;
    isLost = false;
  });
  onLost(() => {
    isLost = true;
    showHeard();
  });
  onToken(() => void refreshHealth());
  live.subscribe((second) => {
    if (second && health && second.enforce !== health.enforce) void refreshHealth();
  });
  setInterval(showHeard, 1_000);
  setInterval(() => void refreshHealth(), HEALTH_MS);
  void refreshHealth();
}

export async function refreshHealth() {
  try {
    health = await get("/healthz", { quiet: true });
  } catch {
    return; // stays as it was, and becomes stale
  }
  showBanner();
  showHeard();
}

function showHeard() {
  const age = Date.now() - heardAt;
  const stale = !isHeard();
  document.body.classList.toggle("stale", stale);
  const text = stale ? (hasAnswered ? `last heard ${duration(age / 1000)} ago` : "no answer") : live.state === "open" ? "live" : "connected";
  const place = byId("heard");
  if (place.textContent === text) return;
  place.classList.toggle("is-stale", stale);
  // A counter that a screen reader would read every second: only its beginning is announced.
  place.setAttribute("aria-live", stale && age > STALE_MS + 2_000 ? "off" : "polite");
  replace(place, text);
}

/** Whether a node protects, as it says of itself. @param {any} health */
export function protection(health) {
  if (health?.enforce === "off") return "Not protecting";
  if (health?.enforce === "shadow") return "Only watching (shadow)";
  return health?.protection === "off" ? "Not protecting" : "Protecting";
}

/** What is wrong with the protection, the worst first. @param {any} health @returns {[title: string, text: string][]} */
export function troubles(health) {
  /** @type {[string, string][]} */
  const found = [];
  if (health.enforce === "off") found.push(["Protection is off", "The panic switch is off: every request passes, and nothing is counted."]);
  else if (health.enforce === "shadow") found.push(["Protection is in shadow", "The panic switch is on shadow: requests are counted, and none is denied."]);
  else if (health.protection === "off" && hasNoRules(health)) found.push(["Protection is off", "No rules were loaded: everything passes. The rules database cannot be read, and the file has none."]);
  else if (health.protection === "off") found.push(["Protection is off", serversDown(health)]);
  else if (health.protection === "partial") found.push(["Protection is partial", "The rules of the database could not be loaded: only those of the file are in force."]);
  if (health.memory) found.push(["Memory is full", memoryFull(health.memory)]);
  return found;
}

/** @param {string} memory such as `full: new keys share counters` */
function memoryFull(memory) {
  const consequence = memory.replace(/^full: /, "");
  return `${consequence.charAt(0).toUpperCase()}${consequence.slice(1)}: raise memory in the configuration.`;
}

/** Neither the database nor a local copy of its rules could be read. @param {any} health */
const hasNoRules = (health) => health.rules_db?.source === "none" && health.rules === 0;

/** @param {any} health */
function serversDown(health) {
  const down = (health.store ?? []).filter((/** @type {any} */ server) => !server.up).map((/** @type {any} */ server) => server.server);
  const which = down.length ? `${down.join(", ")} does not answer` : "The counter store does not answer";
  return `${which}: on_store_error decides which requests pass.`;
}

function showBanner() {
  const found = troubles(health);
  const text = JSON.stringify(found);
  if (text === shown) return; // an alert is read aloud each time it changes
  shown = text;
  const lines = found.map(([title, detail]) =>
    h("div", { class: "banner" }, h("strong", null, `⚠ ${title}.`), h("span", null, detail), button("See health", () => { location.hash = "#/health"; })),
  );
  replace(byId("banner"), lines);
}
