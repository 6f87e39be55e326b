// The effect of rules on the recorded sample of live traffic (`/v1/simulate`).

import { h, replace } from "./dom.js";
import { Problem, call } from "./api.js";
import { clock, count, duration, percent } from "./format.js";
import { failed, unavailable } from "./page_state.js";

/**
 * @typedef {object} Outcome
 * @property {number} requests
 * @property {number} denied
 * @property {{ rule: string, requests: number, denied: number, clients: number }[]} by_rule
 * @property {{ key: string, requests: number, denied: number }[]} clients
 * @property {Outcome | null} [compare] null with too many rules in force
 * @property {number} [sampled_one_in]
 * @property {number | null} [from] Unix seconds
 * @property {number | null} [to]
 * @property {string[]} [notes]
 * @property {number} [unreadable] lines of a log
 */

/** @param {string} rules YAML @param {AbortSignal} [signal] @param {string | null} [log] in place of the sample @returns {Promise<Outcome>} */
export async function simulateRules(rules, signal, log = null) {
  const source = log === null ? { sample: "live" } : { sample: "log", log };
  const { body } = await call("POST", "/v1/simulate", { body: { rules, ...source }, signal });
  return body;
}

/**
 * Shows what a draft of one rule does, next to the rule in force.
 * @param {Element} place
 * @param {string} rules
 * @param {string | null} id
 * @param {() => boolean} isCurrent whether the answer is still wanted
 */
export async function effect(place, rules, id, isCurrent) {
  try {
    const outcome = await simulateRules(rules);
    if (isCurrent()) replace(place, effectTable(outcome, id));
  } catch (why) {
    if (!isCurrent()) return;
    replace(place, why instanceof Problem && why.isMissing ? unavailable("Simulation") : failed(why, "Simulation"));
  }
}

/** Whose requests the outcome is of, and what is to be known of it. @param {Outcome} outcome @param {boolean} isLog */
export function sampleLines(outcome, isLog) {
  const notes = (outcome.notes ?? []).map((note) => h("p", { class: "role-notice" }, note));
  return [h("p", { class: "muted" }, sampleText(outcome, isLog)), ...notes];
}

/** @param {Outcome} outcome @param {boolean} isLog */
function sampleText(outcome, isLog) {
  if (isLog && outcome.from && outcome.to) {
    const [from, to] = [outcome.from, outcome.to].map((at) => new Date(at * 1000).toISOString().slice(0, 19));
    return `Requests of the log, ${from} to ${to}${outcome.unreadable ? `; ${count(outcome.unreadable)} lines could not be read` : ""}.`;
  }
  const share = outcome.sampled_one_in === 1 ? "every client" : outcome.sampled_one_in ? `one client in ${count(outcome.sampled_one_in)}` : "the sample";
  const time = outcome.from && outcome.to ? `, ${duration(outcome.to - outcome.from)} until ${clock(outcome.to)}` : "";
  return `Requests of ${share}, on this node${time}.`;
}

/** @param {Outcome} outcome @param {string | null} id */
function effectTable(outcome, id) {
  const none = { requests: 0, denied: 0, clients: 0 };
  const draft = outcome.by_rule.find((each) => each.rule === id) ?? none;
  const now = outcome.compare?.by_rule.find((each) => each.rule === id) ?? none;
  if (outcome.requests === 0) return h("p", { class: "muted" }, "The sample is empty: it fills while requests arrive.");
  const row = (/** @type {string} */ label, /** @type {typeof none} */ of) =>
    h("tr", null, h("th", { scope: "row" }, label), h("td", { class: "number" }, count(of.requests)), h("td", { class: "number" }, `${count(of.denied)} (${percent(of.denied, of.requests)})`), h("td", { class: "number" }, count(of.clients)));
  const table = h("table", { id: "effect" },
    h("caption", { class: "hidden" }, "Effect on the recorded sample"),
    h("thead", null, h("tr", null, ["", "requests", "denied", "clients"].map((name) => h("th", { scope: "col", class: "number" }, name || h("span", { class: "hidden" }, "rules"))))),
    h("tbody", null, row("in force", now), row("draft", draft)));
  return h("div", null, sampleLines(outcome, false), table);
}
