// The requests of one rule: over time, how much of the limit they use, and whom the rule limits.

import { h, replace } from "./dom.js";
import { Problem, get, withQuery } from "./api.js";
import { StackedChart } from "./chart.js";
import { isFleet, missingNote, scopeQuery, scopeSelect } from "./fleet.js";
import { count } from "./format.js";
import { headroom } from "./headroom.js";
import { keyLink } from "./key_tables.js";
import { Loaded } from "./page_state.js";
import { RANGES, SERIES, editsOf, filled, rangeSelect } from "./series.js";

const SERIES_MS = 3_000;
const TOP_KEYS = 5;
/** Bans are before all rules. */
const OWN_SERIES = SERIES.filter((each) => each.key !== "banned");

/** @param {string} id */
export function ruleTraffic(id) {
  const chart = new StackedChart(`Requests under rule ${id}`, OWN_SERIES);
  const state = h("p", { class: "muted" });
  const facts = h("div");
  let range = "5m";
  const part = new Loaded("Series", (signal) => load(id, range, signal), ({ series, activity, top }) => {
    if (!chart.element.isConnected) replace(part.body, state, chart.element, facts);
    const { seconds, unit } = RANGES[range];
    const points = filled(series.points, series.step, Math.floor(Date.now() / 1000 - seconds));
    const idle = points.every((point) => OWN_SERIES.every((each) => !point[each.key]));
    replace(state, idle && "No request of this rule was counted in this time: it had none, or is not among the 100 most active rules, which have a series of their own.");
    chart.element.hidden = idle;
    chart.update(points, editsOf(series.changes), unit);
    replace(facts, missingNote(series.nodes), factList(activity.rules[0], top.keys, id));
  }, SERIES_MS, () => `${range} ${isFleet()}`);
  const nodes = scopeSelect(() => void part.refresh());
  const control = rangeSelect(range, (value) => { range = value; void part.refresh(); });
  const element = h("section", { class: "panel", "aria-label": "Traffic" }, h("div", { class: "panel-head" }, h("h2", null, "Traffic"), h("div", { class: "buttons" }, nodes, control)), part.element);
  return { element, stop: () => part.stop() };
}

/** One after the other: a node makes few views of all nodes at the same time. @param {string} id @param {string} range @param {AbortSignal} signal */
async function load(id, range, signal) {
  const { step, seconds } = RANGES[range];
  const scope = scopeQuery();
  const from = Math.floor(Date.now() / 1000 - seconds);
  const series = await get(withQuery("/v1/series", { rule: id, step: step === "live" ? "second" : step, from, ...scope }), { signal }).catch(noSeries);
  const activity = await get(withQuery("/v1/activity", { rule: id, ...scope }), { signal });
  const top = await get(withQuery("/v1/top", { rule: id, outcome: "denied", window: "1h", limit: TOP_KEYS, ...scope }), { signal });
  return { series, activity, top };
}

/** A rule that is not in force has none. @param {unknown} why */
function noSeries(why) {
  if (why instanceof Problem && why.status === 404) return { points: [], step: 1 };
  throw why;
}

/** @param {any} found @param {{ key: string, rule: string | null }[]} keys @param {string} id */
function factList(found, keys, id) {
  if (!found) return null;
  const shadow = found.shadow_denied ? `, ○ ${count(found.shadow_denied)} would be` : "";
  const named = keys.map((each) => keyLink(id, each.key));
  /** @type {[string, import("./dom.js").Child | import("./dom.js").Child[]][]} */
  const rows = [
    ["Limited, last minute", `${count(found.denied)} of ${count(found.allowed + found.denied)}${shadow}`],
    ["Clients limited, last hour", `≈ ${count(found.clients_limited)}`],
    ["Most limited, last hour", named.length ? h("span", { class: "some-keys" }, named) : "none"],
    ["Used of the limit, median", headroom(found)],
    ["Near the limit, last minute", count(found.near_limit)],
  ];
  return h("dl", { class: "facts tall" }, rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}
