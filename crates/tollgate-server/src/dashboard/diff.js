// Differences of objects, key by key.

import { h } from "./dom.js";

/** @param {any} value */
const text = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

/** @param {any} a @param {any} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** @param {any} value @returns {Record<string, any>} */
const asObject = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : value === null || value === undefined ? {} : { value });

const NOT_CONTENT = new Set(["version", "source", "ramp_percent"]);

/** @param {any[]} objects */
const keysOf = (...objects) => [...new Set(objects.flatMap((object) => Object.keys(asObject(object))))].filter((key) => !NOT_CONTENT.has(key));

/**
 * What one change did, as lines with + and −.
 * @param {any} before null if it did not exist
 * @param {any} after null if it was deleted
 */
export function changeLines(before, after) {
  const rows = keysOf(before, after).flatMap((key) => {
    const old = asObject(before)[key];
    const now = asObject(after)[key];
    if (same(old, now)) return [];
    return [
      old !== undefined && h("div", { class: "removed" }, `− ${key}: ${text(old)}`),
      now !== undefined && h("div", { class: "added" }, `+ ${key}: ${text(now)}`),
    ];
  });
  return h("div", { class: "diff" }, rows.length ? rows : h("div", null, "no difference"));
}

const VERSIONS = ["when you began", "now on the node", "your draft"];

/**
 * Three versions of an item side by side: what the draft began with, what is there now, and the draft.
 * @param {any} base
 * @param {any} theirs
 * @param {any} mine
 */
export function threeWay(base, theirs, mine) {
  const rows = keysOf(base, theirs, mine).map((key) => {
    const [old, now, draft] = [base, theirs, mine].map((object) => asObject(object)[key]);
    const byThem = !same(old, now);
    const byYou = !same(old, draft);
    const what = byThem && byYou ? (same(now, draft) ? "same change" : "conflict") : byThem ? "changed by another" : byYou ? "changed by you" : "";
    return h("tr", { class: what.replaceAll(" ", "-") || null },
      h("th", { scope: "row" }, key), [old, now, draft].map((each, number) => h("td", { "data-label": VERSIONS[number] }, text(each))), h("td", { class: "what" }, what));
  });
  const head = ["field", ...VERSIONS, ""].map((name) => h("th", { scope: "col" }, name || h("span", { class: "hidden" }, "difference")));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Three versions of the rule" },
    h("table", { class: "three-way" }, h("thead", null, h("tr", null, head)), h("tbody", null, rows)));
}
