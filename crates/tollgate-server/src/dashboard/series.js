// The points of `/v1/series` as a chart has them: the outcomes, the time ranges, the steps in which nothing happened.

import { select } from "./dom.js";

/** @type {import("./chart.js").Series[]} */
export const SERIES = [
  { key: "allowed", label: "passed" },
  { key: "denied", label: "limited" },
  { key: "banned", label: "banned" },
  { key: "shadow_denied", label: "would be limited (shadow)", short: "would be", line: true },
];

/** @type {Record<string, { step: string, seconds: number, unit: string }>} */
export const RANGES = {
  "5m": { step: "live", seconds: 300, unit: "/s" },
  "1h": { step: "minute", seconds: 3600, unit: "/min" },
  "24h": { step: "minute", seconds: 86_400, unit: "/min" },
  "30d": { step: "hour", seconds: 30 * 86_400, unit: "/h" },
};

/** An attack causes many of them: they would hide the edits. */
const AUTOMATIC_BAN = /^ban .* by tollgate$/;

/** @param {string} value @param {(value: string) => void} onchange */
export function rangeSelect(value, onchange) {
  return select([["5m", "last 5 minutes"], ["1h", "last hour"], ["24h", "last 24 hours"], ["30d", "last 30 days"]], value, onchange, { "aria-label": "Time range" });
}

/** The changes that people made. @param {import("./chart.js").Change[] | undefined} changes */
export const editsOf = (changes) => (changes ?? []).filter((each) => !AUTOMATIC_BAN.test(each.action));

/** @param {number} at @returns {import("./chart.js").Point} */
export const none = (at) => ({ at, allowed: 0, denied: 0, banned: 0, shadow_denied: 0 });

/** Points with the steps in which nothing happened. @param {import("./chart.js").Point[]} points @param {number} step @param {number} from */
export function filled(points, step, from) {
  const known = new Map(points.map((point) => [Math.floor(point.at / step), point]));
  const first = Math.floor(from / step) + 1;
  const last = Math.floor(Date.now() / 1000 / step);
  return Array.from({ length: Math.max(2, last - first + 1) }, (_, number) => known.get(first + number) ?? none((first + number) * step));
}
