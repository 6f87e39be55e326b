// What was limited before and after a change, from the counts of its rules.

import { Problem, get, pages, withQuery } from "./api.js";
import { duration, plural, rate, unix } from "./format.js";
import { loadMetrics, gauge } from "./metrics.js";

const AROUND_S = 600;
const HOUR_S = 3_600;
/** Rules of a set that are measured; beyond these all requests are. */
const MAX_RULES = 20;
/** The current second and the one before it are not complete. */
const INCOMPLETE_S = 2;

/** @typedef {{ at: number, allowed: number, denied: number, banned?: number }} Point */

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
  const rules = await rulesOf(change, signal);
  const started = gauge(await loadMetrics(), "process_start_time_seconds");
  // Seconds are kept for an hour, and not over a restart.
  const isRecent = now - at + AROUND_S < HOUR_S && started < at;
  const step = isRecent ? 1 : 60;
  // The step of the change belongs to neither side.
  const split = Math.floor(at / step) * step;
  const range = { step: isRecent ? "second" : "minute", from: split - AROUND_S, to: split + step + AROUND_S - 1 };
  const series = (/** @type {string | null} */ rule) => pointsOf(rule, range, signal);
  const [total, ...each] = await Promise.all([series(null), ...(rules ?? []).map(series)]);
  const points = rules ? each.flat() : total;
  const counted = started && started <= range.from ? range.from : (total[0]?.at ?? now);
  const before = Math.min(AROUND_S, split - counted);
  const after = Math.min(AROUND_S, Math.floor((now - INCOMPLETE_S) / step) * step - split - step);
  const side = (/** @type {number} */ from, /** @type {number} */ seconds) => sideText(points, from, seconds);
  const earlier = before > 0 ? `${side(split - before, before)} before` : "nothing was counted before";
  return `${ofText(rules)}: ${earlier}, and ${after > 0 ? side(split + step, after) : "nothing is counted yet"} since.`;
}

/** @param {string | null} rule @param {{ step: string, from: number, to: number }} range @param {AbortSignal} signal @returns {Promise<Point[]>} */
async function pointsOf(rule, range, signal) {
  try {
    return (await get(withQuery("/v1/series", { ...range, rule }), { signal })).points;
  } catch (why) {
    if (why instanceof Problem && why.status === 404) return []; // a deleted rule without counts
    throw why;
  }
}

/** @param {string[] | null} rules */
function ofText(rules) {
  if (!rules) return "Of all requests";
  return rules.length === 1 ? `Under rule ${rules[0]}` : `Under its ${plural(rules.length, "rule")}`;
}

/** @param {Point[]} points @param {number} from @param {number} seconds */
function sideText(points, from, seconds) {
  const inside = points.filter((point) => point.at >= from && point.at < from + seconds);
  const denied = inside.reduce((sum, point) => sum + point.denied + (point.banned ?? 0), 0);
  const all = inside.reduce((sum, point) => sum + point.allowed, denied);
  const minutes = seconds / 60;
  return `${rate(denied / minutes)} of ${rate(all / minutes)} requests a minute were limited in the ${duration(seconds)}`;
}
