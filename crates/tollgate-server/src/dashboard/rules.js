// Rules: what is in force, how busy each is, and its editor.

import { button, h, replace } from "./dom.js";
import { get, pages } from "./api.js";
import { bar, sparkline } from "./chart.js";
import { count, keyText, limitsText } from "./format.js";
import { ruleLink } from "./key_tables.js";
import { Loaded, empty, failed } from "./page_state.js";
import { editor } from "./rule_editor.js";
import { needs, roleNotice } from "./session.js";
import { Table } from "./table.js";

const MAX_ROWS = 100_000;
const ACTIVITY_MS = 3_000;

/** @type {import("./main.js").Page} */
export function rules(place, [id]) {
  return id === undefined ? list(place) : editor(place, id === "new" ? null : id);
}

/** @param {HTMLElement} place */
function list(place) {
  /** @type {Map<string, any>} */
  let activity = new Map();
  /** @type {any[]} */
  let loaded = [];
  const stopping = new AbortController();
  const of = (/** @type {any} */ rule) => activity.get(rule.id);
  const table = new Table("Rules in force", [
    { label: "Rule", width: "12em", narrow: "", cell: (rule) => ruleLink(rule.id), sort: (rule) => rule.id },
    { label: "Applies to", width: "", cell: (rule) => h("span", { title: rule.match ?? "every request" }, rule.match ?? rule.url ?? "every request"), wide: true },
    { label: "Key", width: "8em", cell: (rule) => keyText(rule.key ?? (rule.uid ? "user" : null)), wide: true },
    { label: "Limits", width: "8em", narrow: "6.5em", cell: (rule) => limitsText(rule) },
    { label: "Mode", width: "7em", narrow: "6.5em", cell: (rule) => mode(rule), sort: (rule) => rule.mode ?? "enforce" },
    { label: "Last minute", width: "136px", cell: (rule) => { const found = of(rule); return found?.recent ? sparkline(found.recent) : h("span", { class: "muted" }, "idle"); }, sort: (rule) => (of(rule)?.allowed ?? 0) + (of(rule)?.denied ?? 0), numeric: true, wide: true },
    { label: "Limited", width: "5.5em", numeric: true, cell: (rule) => count(of(rule)?.denied ?? 0), sort: (rule) => of(rule)?.denied ?? 0, wide: true },
    { label: "Clients, 1 h", width: "7em", numeric: true, cell: (rule) => { const found = of(rule); return found ? `≈ ${count(found.clients_limited ?? 0)}` : "0"; }, sort: (rule) => of(rule)?.clients_limited ?? 0, wide: true },
    { label: "Used, median", width: "11em", cell: (rule) => headroom(of(rule)), wide: true },
    { label: "Source", width: "6.5em", cell: (rule) => rule.source, wide: true },
  ], { rowClass: (rule) => (rule.left_out ? "left-out" : null) });
  const total = h("span", { class: "muted" });
  const state = h("div");
  const filter = h("input", { type: "search", placeholder: "Filter by the start of the id", "aria-label": "Filter by the start of the id", oninput: () => void load() });
  const create = needs(button("New rule", () => { location.hash = "#/rules/new"; }, { class: "primary" }), "admin");
  let turn = 0;

  async function load() {
    const own = ++turn;
    loaded = [];
    try {
      await pages("/v1/rules", { prefix: filter.value.trim() }, (page) => {
        if (own !== turn) return false;
        loaded = loaded.concat(page.rules);
        table.setRows(loaded);
        replace(total, `${count(loaded.length)} of ${count(page.total)} rules, generation ${page.generation}`);
        return loaded.length < MAX_ROWS;
      }, stopping.signal);
      if (own === turn) replace(state, loaded.length ? null : none(filter.value));
    } catch (why) {
      if (!stopping.signal.aborted) replace(state, failed(why, "Rules"));
    }
    table.element.hidden = loaded.length === 0;
  }

  const busy = new Loaded("Activity", (signal) => get("/v1/activity", { signal }), (value) => {
    activity = new Map(value.rules.map((/** @type {any} */ each) => [each.rule, each]));
    table.setRows(loaded);
  }, ACTIVITY_MS);
  busy.element.className = "activity-state";
  place.append(
    h("div", { class: "toolbar" }, filter, total, create),
    roleNotice("admin", "Changing rules") ?? "",
    h("section", { class: "panel", "aria-label": "Rules" }, busy.element, state, table.element));
  void load();
  return () => {
    stopping.abort();
    busy.stop();
  };
}

/** @param {any} rule */
function mode(rule) {
  if (rule.left_out) return h("span", { class: "denied", title: rule.left_out }, "✗ not in force");
  const name = rule.mode ?? "enforce";
  if (name === "enforce" && (rule.enforce_percent ?? 100) < 100) return `◐ ${rule.enforce_percent} %`;
  return { enforce: "● enforce", shadow: "○ shadow", off: "– off" }[/** @type {"enforce"} */ (name)] ?? name;
}

/** @param {any} found */
function headroom(found) {
  const deciles = found?.headroom;
  if (!deciles?.length) return h("span", { class: "muted" }, "–");
  const median = deciles[Math.floor((deciles.length - 1) / 2)] ?? 0;
  return bar(median, `${Math.round(100 * median)} %`);
}

/** @param {string} filter */
function none(filter) {
  if (filter) return empty("No rule starts like this", "Ids are compared from their first character.");
  return empty("No rules yet", "Without a rule every request passes. Create one here, or from a file:", [
    "tollgate rules apply rules.yaml",
    `curl -d '{"id":"login","match":"POST /login","key":"ip","limit":"5/m"}' 127.0.0.1:7070/v1/rules`,
  ]);
}
