// Keys and decisions as they appear on several pages.

import { h } from "./dom.js";
import { clock, count, unix } from "./format.js";
import { Table } from "./table.js";

const REASONS = /** @type {Record<string, string>} */ ({
  ok: "passed", limit: "limited", ban: "banned", allow_list: "passed: allow list", store_error: "store error", no_rule: "passed: no rule",
});

/** What stands for a masked key: in place of a value, of a whole key, or at the end of a long one. */
const MARK = /(?:^|[:…])#[0-9a-f]{16}(?:\+|$)/;

/** Whether a key is shown as a mark: it does not tell which key it is. @param {string} key */
export const isMasked = (key) => MARK.test(key);

/** Why rows of masked keys lead nowhere; null if there are none. @param {string[]} keys */
export function maskedNote(keys) {
  if (!keys.some(isMasked)) return null;
  return h("p", { class: "muted masked-note" }, "A key with a mark (#…) is masked and cannot be opened. Enter the key itself under ", h("a", { href: "#/keys" }, "One key"), ", or set log_keys: plain.");
}

/** @param {string | null} rule @param {string} key */
export function keyLink(rule, key) {
  if (isMasked(key)) return h("span", { class: "key", title: `${key}: a mark, which does not tell the key` }, key);
  const query = new URLSearchParams({ ...(rule ? { rule } : {}), key });
  return h("a", { class: "key", href: `#/keys?${query}`, title: key }, key);
}

/** @param {string} rule */
export const ruleLink = (rule) => h("a", { href: `#/rules/${encodeURIComponent(rule)}` }, rule);

/** The outcome with a sign, so that its colour is not all. @param {import("./live.js").Decision} decision */
export function outcome(decision) {
  const text = REASONS[decision.reason] ?? decision.reason;
  return h("span", { class: decision.allowed ? "passed" : "denied" }, decision.allowed ? `✓ ${text}` : `✗ ${text}`);
}

/** @param {import("./live.js").Decision} decision */
export function decisionLine(decision) {
  return h("span", { class: "decision-line" }, h("time", null, clock(unix(decision.at))), outcome(decision), decision.rule && ruleLink(decision.rule));
}

/** The limit that a decision is of, and how much of it was used. @param {import("./live.js").Decision} each */
export function limitText(each) {
  if (!each.limit) return null;
  const cost = each.cost === null || each.cost === 1 ? "" : `, cost ${count(each.cost)}`;
  return h("span", { title: `${each.limit}: ${count(each.used ?? 0)} used${cost}` }, each.limit, h("span", { class: "muted" }, ` ${count(each.used ?? 0)} used${cost}`));
}

/** A count of a sketch, which lies between `count − error` and `count`. @param {{ count: number, error: number }} row */
function countCell({ count: most, error }) {
  if (error === 0) return count(most);
  const half = Math.ceil(error / 2);
  const range = `the true count is from ${count(most - error)} to ${count(most)}`;
  return [count(most - half), h("span", { class: "muted", title: range }, ` ±${count(half)}`)];
}

/**
 * @param {{ rule: string | null, key: string, count: number, error: number, node?: string }[]} keys
 * @param {string} caption
 */
export function topTable(keys, caption) {
  const table = new Table(caption, [
    { label: "Key", width: "", cell: (row) => [row.key ? keyLink(row.rule, row.key) : h("span", { class: "muted" }, "all together"), row.node && h("span", { class: "muted", title: "the count of this node: other nodes have another mark for the key" }, ` on ${row.node}`)] },
    { label: "Rule", width: "11em", narrow: "6em", cell: (row) => (row.rule ? ruleLink(row.rule) : "banned") },
    { label: "Count", width: "8em", narrow: "5.5em", numeric: true, cell: (row) => countCell(row), sort: (row) => row.count },
  ], { rowKey: (row) => `${row.rule} ${row.key} ${row.node ?? ""}` });
  table.setRows(keys);
  return h("div", null, table.element, maskedNote(keys.map((row) => row.key)));
}
