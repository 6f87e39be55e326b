// Keys: the most limited, the most active and those near their limit; one key under a rule.

import { button, field, h, replace, select } from "./dom.js";
import { Problem, call, get, withQuery } from "./api.js";
import { bar } from "./chart.js";
import { notice, openDialog } from "./dialog.js";
import { isFleet, missingNote, scopeQuery, scopeSelect } from "./fleet.js";
import { ago, count, duration, unix } from "./format.js";
import { decisionLine, isMasked, limitText, topTable } from "./key_tables.js";
import { Loaded, empty } from "./page_state.js";
import { needs, roleNotice } from "./session.js";
import { askBan } from "./ban_form.js";

const TOP_MS = 5_000;
const INSPECT_MS = 2_000;
const TOP_LIMIT = 200;
const RECENT = 10;
const ONE_PART = /^(ip|user|email|mac|api_key):([^+]+)$/;
/** Denials of the key under all rules, among which bans are looked for. */
const MAX_SEARCHED = 100;

/** @type {import("./main.js").Page} */
export function keys(place, _rest, query) {
  const inspected = inspector(query.get("rule") ?? "", query.get("key") ?? "");
  const top = topPart();
  // What was asked for is first: one key, or which keys there are.
  place.append(...(query.get("key") || query.get("rule") ? [inspected.element, top.element] : [top.element, inspected.element]));
  return () => {
    inspected.stop();
    top.stop();
  };
}

function topPart() {
  let outcome = "denied";
  let window = "5m";
  const load = (/** @type {AbortSignal} */ signal) => get(withQuery("/v1/top", { outcome, window, limit: TOP_LIMIT, ...scopeQuery() }), { signal });
  const part = new Loaded("Top keys", load, (value) => {
    const title = { denied: "No key was limited", allowed: "No key has passed", near: "No key is near its limit" }[/** @type {"denied"} */ (outcome)];
    replace(part.body, missingNote(value.nodes), value.keys.length ? topTable(value.keys, "Top keys") : empty(`${title} in this time`, "Counts begin with the first request after the start of the node."));
  }, TOP_MS);
  const refresh = () => void part.refresh();
  const outcomes = select([["denied", "most limited"], ["allowed", "most active"], ["near", "near their limit"]], outcome, (value) => { outcome = value; refresh(); }, { "aria-label": "Which keys" });
  const windows = select([["1m", "last minute"], ["5m", "last 5 minutes"], ["1h", "last hour"]], window, (value) => { window = value; refresh(); }, { "aria-label": "Time range" });
  const element = h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", null, "Top keys"), h("div", { class: "buttons" }, scopeSelect(refresh), outcomes, windows)), part.element);
  return { element, stop: () => part.stop() };
}

/** @param {string} rule @param {string} key */
function inspector(rule, key) {
  const ruleInput = h("input", { value: rule, name: "rule", placeholder: "login", autocomplete: "off", spellcheck: "false" });
  const keyInput = h("input", { value: key, name: "key", placeholder: "ip:203.0.113.7", autocomplete: "off", spellcheck: "false" });
  const result = h("div");
  const form = h("form", { class: "toolbar", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    const query = new URLSearchParams({ rule: ruleInput.value.trim(), key: keyInput.value.trim() });
    location.hash = `#/keys?${query}`;
  } }, field("Rule", ruleInput), field("Key", keyInput), h("button", { type: "submit", class: "primary" }, "Inspect"));
  const element = h("section", { class: "panel" }, h("h2", null, "One key"), form, result);
  if (isMasked(key)) {
    replace(result, h("p", { class: "role-notice" }, h("b", null, key), " is a mark, which does not tell the key: enter the key itself, such as email:ann@example.com. Keys are shown with log_keys: plain."));
    return { element, stop: () => {} };
  }
  if (!rule && !key) return { element, stop: () => {} };
  const recent = recentPart(rule, key);
  if (!rule) {
    replace(result, h("p", { class: "muted" }, "Name the rule whose counter of this key is to be shown."), keyButtons("", key, () => {}), recent.element);
    return { element, stop: () => recent.stop() };
  }
  const path = withQuery("/v1/keys", { rule, key });
  const part = new Loaded("Key", (signal) => get(path, { signal }), (report) => replace(part.body, keyReport(report), keyButtons(rule, key, () => void part.refresh())), INSPECT_MS);
  replace(result, part.element, recent.element);
  return { element, stop: () => { part.stop(); recent.stop(); } };
}

/** @param {string} rule "" for all rules @param {string} key */
function recentPart(rule, key) {
  const part = new Loaded("Recent decisions", async (signal) => ({ lists: await listsOf(key, signal), found: await loadDecisions(rule, key, signal) }), ({ lists, found }) => replace(part.body,
    lists.map(listLine),
    h("h3", null, `Recent decisions, ${isFleet() ? "all nodes" : "this node"}`),
    found.length ? h("ul", { class: "lines" }, found.map((/** @type {any} */ each) => h("li", null, decisionLine(each), limitText(each)))) : h("p", { class: "muted" }, "None is recorded: the rings hold the latest ones only.")), INSPECT_MS);
  return part;
}

/** The lists that have the key: the steps of a request that has nothing else. @param {string} key @param {AbortSignal} signal @returns {Promise<any[]>} */
async function listsOf(key, signal) {
  const [, name, value] = ONE_PART.exec(key) ?? [];
  if (!name) return [];
  try {
    const { body } = await call("POST", "/v1/explain", { body: { request: { [name]: value } }, signal });
    return body.steps.filter((/** @type {any} */ step) => step.matched && step.step !== "rule");
  } catch (why) {
    if (why instanceof Problem && why.status === 400) return []; // a network, or not a value of its kind
    throw why;
  }
}

/** @param {any} step */
function listLine(step) {
  const isBan = step.step === "ban";
  return h("p", { class: isBan ? "denied" : "passed" }, `${isBan ? "✗" : "✓"} ${step.key ? `${step.key}: ` : ""}${step.why} (${step.source}) `, h("a", { href: "#/bans" }, "Bans and allow"));
}

/** Both outcomes, newest first. Bans are before all rules: their decisions name none. @param {string} rule @param {string} key @param {AbortSignal} signal */
async function loadDecisions(rule, key, signal) {
  const of = async (/** @type {string} */ outcome, /** @type {string} */ wanted, /** @type {number} */ limit) =>
    (await get(withQuery("/v1/decisions", { outcome, rule: wanted, key, limit, ...scopeQuery() }), { signal })).decisions;
  // One after the other: a node makes few views of all nodes at the same time.
  const denied = await of("denied", rule, RECENT);
  const allowed = await of("allowed", rule, RECENT);
  const others = rule && key ? await of("denied", "", MAX_SEARCHED) : [];
  const bans = others.filter((/** @type {any} */ each) => each.reason === "ban");
  return [...denied, ...allowed, ...bans].sort((a, b) => unix(b.at) - unix(a.at)).slice(0, RECENT);
}

/** @param {any} report */
function keyReport(report) {
  const rows = report.limits.map((/** @type {any} */ limit) => {
    const size = limit.used + limit.remaining;
    const left = unix(limit.reset_at) - Date.now() / 1000;
    return h("tr", null,
      h("th", { scope: "row" }, limit.limit), h("td", { class: "wide-only" }, limit.algorithm),
      h("td", null, bar(size ? limit.used / size : 1, `${count(limit.used)} used`)),
      h("td", { class: "number" }, count(limit.remaining)),
      h("td", { class: "number" }, left > 0 ? duration(left) : "full"));
  });
  const tracked = report.tries === undefined ? null : h("p", null, `${count(report.tries)} tries, ${count(report.denials)} denials, last seen ${report.last_seen ? ago(unix(report.last_seen)) : "never"} (${report.scope}).`);
  return h("div", { class: "key-report" },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Limits of the key" }, h("table", null, h("caption", { class: "hidden" }, "Limits of the key"),
      h("thead", null, h("tr", null, ["limit", "algorithm", "level", "remaining", "full again in"].map((name, number) => h("th", { scope: "col", class: number > 2 ? "number" : number === 1 ? "wide-only" : null }, name)))),
      h("tbody", null, rows))),
    tracked, report.store_error && h("p", { class: "error-text" }, report.store_error));
}

/** @param {string} rule @param {string} key @param {() => void} done */
function keyButtons(rule, key, done) {
  const reset = button("Reset…", () => confirmReset(rule, key, done));
  const override = button("Override…", () => askOverride(rule, key, done));
  return h("div", null,
    h("div", { class: "buttons" },
      rule && needs(reset, "operate"), key && needs(button("Ban…", () => askBan(key, done)), "operate"), rule && key && needs(override, "admin")),
    roleNotice("operate", "Resetting and banning"), roleNotice("admin", "Overriding"));
}

/** @param {string} rule @param {string} key @param {() => void} done */
function confirmReset(rule, key, done) {
  openDialog("Reset the counters of this key?", h("p", null, h("b", null, key || "all requests together"), ` under rule ${rule} may use its whole limit again.`), {
    action: "Reset",
    onaction: async () => {
      await call("DELETE", withQuery("/v1/keys", { rule, key }));
      notice("the key was reset");
      done();
    },
  });
}

/** @param {string} rule @param {string} key @param {() => void} done */
function askOverride(rule, key, done) {
  const limits = h("input", { name: "limits", placeholder: "50/m, 500/h", required: true, autocomplete: "off" });
  openDialog("Limits of this key", h("div", null, h("p", null, h("b", null, key), ` under rule ${rule}`), field("Limits", limits, "separated by commas")), {
    action: "Set",
    onaction: async () => {
      const list = limits.value.split(",").map((each) => each.trim()).filter(Boolean);
      await call("POST", "/v1/overrides", { body: { rule, key, limits: list } });
      notice("the override is in force");
      done();
    },
  });
}
