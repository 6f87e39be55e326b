// Rules: what is in force, how busy each is, and its editor.

import { button, h, replace } from "./dom.js";
import { Problem, get, pages, withQuery } from "./api.js";
import { adminCall, adminCommand } from "./commands.js";
import { sparkline } from "./chart.js";
import { openDialog } from "./dialog.js";
import { missingNote, scopeQuery, scopeSelect } from "./fleet.js";
import { ago, clock, count, keyText, limitsText, unix } from "./format.js";
import { ruleLink } from "./key_tables.js";
import { Loaded, empty, failed, recall, remember, whenHeard } from "./page_state.js";
import { editor } from "./rule_editor.js";
import { headroom, medianUsed, wholePercent } from "./headroom.js";
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
  let activityAt = 0;
  /** @type {any[]} */
  let loaded = [];
  const stopping = new AbortController();
  const of = (/** @type {any} */ rule) => activity.get(rule.id);
  const table = new Table("Rules in force", [
    { label: "Rule", width: "10em", narrow: "", cell: (rule) => [h("div", { class: "first-line" }, ruleLink(rule.id)), h("div", { class: "second-line" }, ...busyWords(rule, of(rule)))], sort: (rule) => rule.id },
    { label: "Applies to", width: "", cell: (rule) => h("span", { title: rule.match ?? "every request" }, rule.match ?? rule.url ?? "every request"), wide: true },
    { label: "Key", width: "6em", cell: (rule) => keyText(rule.key ?? (rule.uid ? "user" : null)), wide: true },
    { label: "Limits", width: "7.5em", narrow: "6.9em", cell: (rule) => h("span", { title: limitsText(rule) }, limitsText(rule)) },
    { label: "Mode", width: "7em", narrow: "7.2em", cell: (rule) => mode(rule), sort: (rule) => rule.mode ?? "enforce" },
    { label: "Last minute", width: "148px", cell: (rule) => lastMinute(rule.id, of(rule), activityAt), sort: (rule) => (of(rule)?.allowed ?? 0) + (of(rule)?.denied ?? 0), numeric: true, wide: true },
    { label: "Limited", width: "5.5em", numeric: true, cell: (rule) => count(of(rule)?.denied ?? 0), sort: (rule) => of(rule)?.denied ?? 0, wide: true },
    { label: "Would be", width: "6.5em", numeric: true, cell: (rule) => wouldBe(of(rule)), sort: (rule) => of(rule)?.shadow_denied ?? 0, wide: true },
    { label: "Clients, 1 h", width: "7.5em", numeric: true, cell: (rule) => { const found = of(rule); return found ? `≈ ${count(found.clients_limited ?? 0)}` : "0"; }, sort: (rule) => of(rule)?.clients_limited ?? 0, wide: true },
    { label: "Used, median", width: "10em", cell: (rule) => headroom(of(rule)), sort: (rule) => medianUsed(of(rule)) ?? -1, wide: true },
    { label: "Source", width: "6.3em", cell: (rule) => rule.source, wide: true },
  ], { rowClass: (rule) => (rule.left_out ? "left-out" : null), narrowRowPx: 54, rowKey: (rule) => rule.id });
  const total = h("span", { class: "muted" });
  const state = h("div");
  const filter = h("input", { type: "search", placeholder: "Filter by the start of the id", "aria-label": "Filter by the start of the id", oninput: () => void load() });
  const create = needs(button("New rule", () => { location.hash = "#/rules/new"; }, { class: "primary" }), "admin");
  let turn = 0;
  let summary = "";

  async function load() {
    const own = ++turn;
    loaded = [];
    try {
      await pages("/v1/rules", { prefix: filter.value.trim() }, (page) => {
        if (own !== turn) return false;
        loaded = loaded.concat(page.rules);
        table.setRows(loaded);
        summary = `${count(loaded.length)} of ${count(page.total)} rules, generation ${page.generation}`;
        replace(total, summary);
        return loaded.length < MAX_ROWS;
      }, stopping.signal);
      if (own !== turn) return;
      replace(state, loaded.length ? null : none(filter.value));
      remember(`rules ${filter.value.trim()}`, { rules: loaded, summary });
    } catch (why) {
      if (stopping.signal.aborted || own !== turn) return;
      notLoaded(why);
    }
    show();
  }

  function show() {
    table.element.hidden = loaded.length === 0;
  }

  /** @param {unknown} why */
  function notLoaded(why) {
    const last = recall(`rules ${filter.value.trim()}`, why);
    if (why instanceof Problem && why.status === 0) whenHeard(stopping.signal, () => void load());
    if (!last) return void replace(state, failed(why, "Rules"));
    loaded = last.value.rules;
    table.setRows(loaded);
    replace(total, last.value.summary);
    replace(state, h("p", { class: "stale-note", role: "status" }, `Rules: last heard ${ago(last.at)} (${why instanceof Error ? why.message : why})`));
  }

  const busy = new Loaded("Activity", (signal) => get(withQuery("/v1/activity", scopeQuery()), { signal }), (value) => {
    activity = new Map(value.rules.map((/** @type {any} */ each) => [each.rule, each]));
    activityAt = value.at;
    table.setRows(loaded);
    replace(busy.body, missingNote(value.nodes));
  }, ACTIVITY_MS, () => JSON.stringify(scopeQuery()));
  const nodes = scopeSelect(() => void busy.refresh());
  nodes.title = "whose requests are counted: the rules are those of this node";
  busy.element.className = "activity-state";
  place.append(
    h("div", { class: "toolbar" }, filter, nodes, total, create),
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
  if (rule.ramp_percent !== undefined) return h("span", { title: "a guarded apply is under way: see Changes" }, `◐ ramp ${rule.ramp_percent} %`);
  const name = rule.mode ?? "enforce";
  if (name === "enforce" && (rule.enforce_percent ?? 100) < 100) return `◐ ${rule.enforce_percent} %`;
  return { enforce: "● enforce", shadow: "○ shadow", off: "– off" }[/** @type {"enforce"} */ (name)] ?? name;
}

/** What the columns of a wide screen say, for the second line of a narrow one. @param {any} rule @param {any} found */
function busyWords(rule, found) {
  const used = medianUsed(found);
  return [limitedWords(found), used === null ? null : `${wholePercent(used)} used`, rule.source]
    .flatMap((each, number) => (each === null ? [] : number ? [" · ", each] : [each]));
}

/** @param {any} found */
function limitedWords(found) {
  const denied = found?.denied ?? 0;
  const shadow = found?.shadow_denied ?? 0;
  if (denied) return h("span", { class: "denied" }, `✗ ${count(denied)} limited`);
  return shadow ? `○ ${count(shadow)} would be limited` : "none limited";
}

/** What a rule in shadow, or under a ramp, would have limited. @param {any} found */
function wouldBe(found) {
  const shadow = found?.shadow_denied ?? 0;
  return shadow ? h("span", { title: "would be limited, if the rule were enforced for all keys" }, `○ ${count(shadow)}`) : null;
}

/** @param {string} id @param {any} found @param {number} at the second of the last element */
function lastMinute(id, found, at) {
  if (!found?.recent) return h("span", { class: "muted" }, "idle");
  const open = button("▤", () => showMinute(id, found.recent, unix(at)), { class: "quiet", "aria-label": `Last minute of ${id} as a table`, title: "as a table" });
  return h("span", { class: "spark-cell" }, sparkline(found.recent), open);
}

/** @param {string} id @param {[denied: number, allowed: number][]} pairs @param {number} at */
function showMinute(id, pairs, at) {
  const rows = pairs.map(([denied, allowed], number) => ({ at: at - (pairs.length - 1 - number), denied, allowed })).reverse();
  const table = new Table(`Last minute of ${id}`, [
    { label: "Second", width: "", cell: (row) => clock(row.at), sort: (row) => row.at },
    { label: "Passed", width: "7em", numeric: true, cell: (row) => count(row.allowed), sort: (row) => row.allowed },
    { label: "Limited", width: "7em", numeric: true, cell: (row) => count(row.denied), sort: (row) => row.denied },
  ]);
  table.setRows(rows);
  openDialog(`Rule ${id}, last minute`, table.element, { action: "Close", cancel: null, onaction: () => {} });
}

/** @param {string} filter */
function none(filter) {
  if (filter) return empty("No rule starts like this", "Ids are compared from their first character.");
  return empty("No rules yet", "Without a rule every request passes. Create one here, or from a file:", [
    adminCommand("rules apply rules.yaml"),
    adminCall("/v1/rules", '{"id":"login","match":"POST /login","key":"ip","limit":"5/m"}'),
  ]);
}
