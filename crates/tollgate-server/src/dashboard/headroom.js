// How much of its limit the requests of a rule use.

import { h } from "./dom.js";
import { decileStrip } from "./chart.js";

/** @param {number} share */
export const wholePercent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** The share of the limit that half of the requests use at most. @param {any} found of `/v1/activity` @returns {number | null} */
export function medianUsed(found) {
  const deciles = found?.headroom;
  return deciles?.length ? (deciles[Math.floor((deciles.length - 1) / 2)] ?? 0) : null;
}

/** The median, beside all deciles as a strip. @param {any} found of `/v1/activity` */
export function headroom(found) {
  const median = medianUsed(found);
  if (median === null) return h("span", { class: "muted" }, "–");
  /** @type {number[]} */
  const deciles = found.headroom;
  const words = deciles.map((share, number) => `${10 * (number + 1)} % of the requests use up to ${wholePercent(share)} of the limit`);
  const short = `median ${wholePercent(median)}, 9 in 10 up to ${wholePercent(deciles[8] ?? median)}`;
  return h("span", { class: "bar headroom", title: words.join("\n") },
    decileStrip(deciles), h("span", { "aria-hidden": "true" }, wholePercent(median)), h("span", { class: "hidden" }, short));
}
