// What was limited before and after a change, from the counts of its rules.

import { Problem, get, pages, withQuery } from "./api.js";
import { isFleet, scopeQuery } from "./fleet.js";
import { duration, plural, rate, unix } from "./format.js";
import { loadMetrics, gauge } from "./metrics.js";

const AROUND_S = 600;
const HOUR_S = 3_600;
/** Rules of a set that are measured; beyond these all requests are. */
const MAX_RULES = 20;
/** The latest seconds are not complete, on all nodes a little later than on this one. */
const INCOMPLETE_S = { node: 2, fleet: 4 };
/** Rules that have a series of their own: the most active ones. */
const MAX_SERIES = 100;

/** @typedef {{ at: number, allowed: number, denied: number, banned?: number }} Point */
/** @typedef {{ points: Point[], nodes?: import("./fleet.js").Answered }} Series */

/**
 * The rules that a change is of; null if it is of all requests.
 * @param {any} change
 * @param {AbortSignal} signal
 * @returns {Promise<string[] | null>}
 */
async function rulesOf(change, signal) {
  if (change.what !== "rule") return null;
  if (change.name) return [change.name];
  if (change.created + change.changed + change.deleted > MAX_RULES + 1) return null;
  /** @type {any[]} */
  let found = [];
  await pages("/v1/audit", { change: change.version }, (page) => {
    found = found.concat(page.changes);
    return found.length <= MAX_RULES;
  }, signal);
  const ids = found.filter((each) => each.what === "rule").map((each) => each.name);
  return ids.length && ids.length <= MAX_RULES ? ids : null;
}

/**
 * @param {any} change
 * @param {AbortSignal} signal
 * @returns {Promise<string>}
 */
export async function effectText(change, signal) {
  const at = unix(change.at);
  const now = Date.now() / 1000;
  const found = await rulesOf(change, signal);
  const started = gauge(await loadMetrics(), "process_start_time_seconds");
  // Seconds are kept for an hour, and not over a restart.
  const isRecent = now - at + AROUND_S < HOUR_S && started < at;
  const step = isRecent ? 1 : 60;
  // The step of the change belongs to neither side.
  const split = Math.floor(at / step) * step;
  const range = { step: isRecent ? "second" : "minute", from: split - AROUND_S, to: split + step + AROUND_S - 1 };
  const total = await seriesOf(null, range, signal);
  /** @type {Map<string, Point[]>} */
  const byRule = new Map();
  // One after the other: a node makes few views of all nodes at the same time.
  for (const rule of found ?? []) byRule.set(rule, (await seriesOf(rule, range, signal)).points);
  const unlisted = await unlistedOf([...byRule].filter(([, points]) => !points.length).map(([rule]) => rule), signal);
  const listed = found?.filter((rule) => !unlisted.includes(rule));
  const rules = listed?.length ? listed : null;
  const points = rules ? rules.flatMap((rule) => byRule.get(rule) ?? []) : total.points;
  const counted = started && started <= range.from ? range.from : (total.points[0]?.at ?? now);
  const before = Math.min(AROUND_S, split - counted);
  const complete = now - INCOMPLETE_S[isFleet() ? "fleet" : "node"];
  const after = Math.min(AROUND_S, Math.floor(complete / step) * step - split - step);
  const side = (/** @type {number} */ from, /** @type {number} */ seconds) => sideText(points, from, seconds);
  const earlier = before > 0 ? `${side(split - before, before)} before` : "nothing was counted before";
  const text = `${ofText(rules)}, ${whereText(total.nodes)}: ${earlier}, and ${after > 0 ? side(split + step, after) : "nothing is counted yet"} since.`;
  return unlisted.length ? `${unlistedText(unlisted)} ${text}` : text;
}

/** @param {string | null} rule @param {{ step: string, from: number, to: number }} range @param {AbortSignal} signal @returns {Promise<Series>} */
async function seriesOf(rule, range, signal) {
  try {
    return await get(withQuery("/v1/series", { ...range, rule, ...scopeQuery() }), { signal });
  } catch (why) {
    if (why instanceof Problem && why.status === 404) return { points: [] }; // a deleted rule without counts
    throw why;
  }
}

/** Rules whose requests are counted together with those of others. @param {string[]} rules without points @param {AbortSignal} signal */
async function unlistedOf(rules, signal) {
  if (!rules.length) return [];
  const { rules: active } = await get("/v1/activity", { signal });
  if (active.length < MAX_SERIES) return []; // every rule that had a request has a series
  /** @type {string[]} */
  const found = [];
  for (const rule of rules) {
    const own = await get(withQuery("/v1/activity", { rule, ...scopeQuery() }), { signal });
    if (!own.rules.length) found.push(rule);
  }
  return found;
}

/** @param {string[]} rules */
function unlistedText(rules) {
  const which = rules.length === 1 ? `Rule ${rules[0]} has` : `${plural(rules.length, "rule")} of it have`;
  return `${which} no series of ${rules.length === 1 ? "its" : "their"} own: only the ${MAX_SERIES} most active rules do, and the others are counted together.`;
}

/** @param {string[] | null} rules */
function ofText(rules) {
  if (!rules) return "Of all requests";
  return rules.length === 1 ? `Under rule ${rules[0]}` : `Under its ${plural(rules.length, "rule")}`;
}

/** @param {import("./fleet.js").Answered | undefined} nodes */
function whereText(nodes) {
  if (!isFleet()) return "on this node";
  const answered = nodes?.answered.length ?? 0;
  const missing = nodes?.missing.length ?? 0;
  return missing ? `on the ${answered} of ${answered + missing} nodes that answer` : "on all nodes";
}

/** @param {Point[]} points @param {number} from @param {number} seconds */
function sideText(points, from, seconds) {
  const inside = points.filter((point) => point.at >= from && point.at < from + seconds);
  const denied = inside.reduce((sum, point) => sum + point.denied + (point.banned ?? 0), 0);
  const all = inside.reduce((sum, point) => sum + point.allowed, denied);
  const minutes = seconds / 60;
  return `${rate(denied / minutes)} of ${rate(all / minutes)} requests a minute were limited in the ${duration(seconds)}`;
}
