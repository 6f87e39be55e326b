// Simulate: other rules on the recorded sample of live traffic or on a log, before they are in force.

import { button, copyable, field, fitRows, h, replace, select } from "./dom.js";
import { Problem, call, get } from "./api.js";
import { bar } from "./chart.js";
import { changeLines } from "./diff.js";
import { notice, openDialog } from "./dialog.js";
import { bytes, count, percent, plural } from "./format.js";
import { empty, failed, unavailable } from "./page_state.js";
import { needs, refusal, roleNotice } from "./session.js";
import { rulePicker } from "./rule_picker.js";
import { sampleLines, simulateRules } from "./simulation.js";
import { Table } from "./table.js";
import { asRules, yaml } from "./yaml.js";

const RUN_MS = 300;
/** The node takes 16 MiB, in which quotes and line ends take two bytes. */
const MAX_LOG_BYTES = 12 << 20;
const IMPORT = "/v1/rules/import?mode=merge";
/** Rules that the question names. */
const MAX_DIFF = 20;
const RATE = /^(\d+)\/(.+)$/;

/** @type {import("./main.js").Page} */
export function simulate(place) {
  const result = h("div");
  const text = h("textarea", { spellcheck: "false", "data-draft": true, oninput: () => { isUntouched = false; choice++; later(); } });
  const slider = h("input", { type: "range", min: "1", max: "100", value: "10", oninput: () => dragged(), disabled: true });
  const sliderValue = h("output");
  const sliderField = h("label", { class: "field" }, h("span", { class: "label" }, "Limit"), slider, sliderValue);
  sliderField.hidden = true;
  const sliderNote = h("p", { class: "muted", role: "status" });
  /** Nothing was chosen or written yet. */
  let isUntouched = true;
  const limitPicker = h("div");
  /** Which of the limits is dragged. */
  let dragging = 0;
  const apply = button("Apply…", () => confirmApply(), { class: "primary" });
  apply.disabled = true;
  needs(apply, "admin");
  const applyNote = h("p", { class: "muted", id: "apply-note", role: "status" });
  apply.setAttribute("aria-describedby", "apply-note");
  /** What "Apply" would write, for the text and the requests of the last run. @type {{ plan: any, outcome: import("./simulation.js").Outcome, isLog: boolean } | null} */
  let planned = null;
  /** Where each rule is from. @type {Map<string, string>} */
  const known = new Map();
  const ended = new AbortController();
  let choice = 0;
  /** @type {any} */
  let chosen = null;
  let timer = 0;
  let turn = 0;
  let stopping = new AbortController();
  /** The text of a log, in place of the sample. @type {string | null} */
  let log = null;

  /** @param {HTMLInputElement} input */
  async function chooseLog(input) {
    const file = input.files?.[0];
    log = null;
    if (file && file.size > MAX_LOG_BYTES) {
      input.value = "";
      replace(result, empty(`${file.name} is longer than ${bytes(MAX_LOG_BYTES)}`, "Replay it on the command line:", [`tollgate simulate ${file.name} -c new.yaml`]));
      return;
    }
    if (file) log = await file.text();
    live.hidden = log === null;
    void run();
  }

  const source = h("input", { type: "file", name: "log", onchange: (/** @type {Event} */ event) => void chooseLog(/** @type {HTMLInputElement} */ (event.target)) });
  const live = button("Use live requests", () => { source.value = ""; log = null; live.hidden = true; void run(); });
  live.hidden = true;

  /** @param {string} id */
  async function choose(id) {
    const own = ++choice;
    isUntouched = false;
    chosen = null;
    slider.disabled = true;
    replace(limitPicker);
    replace(sliderNote);
    sliderField.hidden = id === "";
    if (!id) return;
    try {
      chosen = (await get(`/v1/rules/${encodeURIComponent(id)}?as=written`, { signal: ended.signal })).rule;
    } catch (why) {
      if (own === choice && !ended.signal.aborted) replace(sliderNote, why instanceof Error ? why.message : String(why));
      return;
    }
    if (own === choice) showChosen();
  }

  /** Begins with the rule that has the most requests. */
  async function chooseMostActive() {
    try {
      const { rules } = await get("/v1/activity", { signal: ended.signal });
      const busiest = rules.find((/** @type {any} */ each) => each.rule !== "other" && each.allowed + each.denied > 0);
      if (busiest && isUntouched) picker.choose(busiest.rule);
    } catch {
      // The list of rules, or the result, says why nothing can be read.
    }
  }

  function showChosen() {
    const limits = limitsOf(chosen);
    const rates = limits.flatMap((limit, number) => (RATE.test(limit) ? [number] : []));
    const choices = /** @type {[string, string][]} */ (rates.map((number) => [String(number), limits[number]]));
    replace(limitPicker, rates.length > 1 && field("Which limit", select(choices, String(rates[0]), (number) => showLimit(Number(number)), { name: "limit" })));
    text.value = asRules(yaml(chosen));
    sliderField.hidden = rates.length === 0;
    if (rates.length) showLimit(rates[0]);
    else replace(sliderNote, "Its limits are not plain rates: edit the text.");
    later();
  }

  /** @param {number} number */
  function showLimit(number) {
    dragging = number;
    const limit = limitsOf(chosen)[number];
    const [, requests] = /** @type {RegExpExecArray} */ (RATE.exec(limit));
    slider.disabled = false;
    slider.max = String(Math.max(20, Number(requests) * 4));
    slider.value = requests;
    replace(sliderValue, limit);
  }

  function dragged() {
    const rate = RATE.exec(limitsOf(chosen)[dragging] ?? "");
    if (!rate) return;
    chosen = withLimit(chosen, dragging, `${slider.value}/${rate[2]}`);
    const limits = limitsOf(chosen);
    replace(sliderValue, limits[dragging]);
    limitPicker.querySelectorAll("option").forEach((option) => replace(option, limits[Number(option.value)]));
    text.value = asRules(yaml(chosen));
    later();
  }

  /** @param {string} note why, or what, is applied */
  function showApply(note) {
    apply.disabled = planned === null || refusal("admin") !== null;
    replace(applyNote, note);
  }

  function later() {
    fitRows(text);
    planned = null;
    showApply("");
    clearTimeout(timer);
    timer = setTimeout(() => void run(), RUN_MS);
  }

  async function run() {
    const own = ++turn;
    stopping.abort();
    stopping = new AbortController();
    result.classList.add("old");
    planned = null;
    showApply("");
    try {
      const isLog = log !== null;
      const outcome = await simulateRules(text.value, stopping.signal, log);
      if (own !== turn) return;
      replace(result, outcomePart(outcome, isLog));
      void plan(outcome, isLog);
    } catch (why) {
      if (own === turn) replace(result, why instanceof Problem && why.isMissing ? offline() : failed(why, "Simulation"));
    }
    if (own === turn) result.classList.remove("old");
  }

  /** Asks the node what "Apply" would write: it refuses rules of the configuration file. @param {import("./simulation.js").Outcome} outcome @param {boolean} isLog */
  async function plan(outcome, isLog) {
    if (refusal("admin") !== null) return;
    const own = turn;
    try {
      const { body } = await call("POST", `${IMPORT}&dry_run=true`, { body: text.value, signal: stopping.signal });
      if (own !== turn) return;
      const isSame = body.created + body.changed === 0;
      planned = isSame ? null : { plan: body, outcome, isLog };
      showApply(isSame ? "These rules are in force as written." : `Applying creates ${plural(body.created, "rule")} and changes ${count(body.changed)}.`);
    } catch (why) {
      if (own !== turn || stopping.signal.aborted) return;
      const isOfFile = chosen && known.get(chosen.id) === "file";
      showApply(`Cannot be applied: ${why instanceof Error ? why.message : why}${isOfFile ? "; change it there" : ""}.`);
    }
  }

  function confirmApply() {
    if (!planned) return;
    openDialog("Put these rules in force?", applyPart(planned.plan, planned.outcome, planned.isLog), {
      action: "Apply", wide: true,
      onaction: async () => {
        const { body } = await call("POST", IMPORT, { body: text.value });
        notice(`${body.created} rules created, ${body.changed} changed, version ${body.version}`);
        void run();
      },
    });
  }

  const picker = rulePicker((id) => void choose(id), known, ended.signal);
  text.value = "rules:\n  - id: try\n    key: ip\n    limit: 100/m\n";
  fitRows(text);
  place.append(
    h("p", { class: "muted" }, "The node keeps the requests of a sample of clients. Other rules are tried on it, or on a log: nothing is charged, and nothing changes."),
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("h2", null, "Rules to try"), picker.element, limitPicker, sliderField, sliderNote,
        field("Rules (YAML)", text), field("Access log", source, "in place of live requests: common, combined, JSON or CSV; it is not stored"), roleNotice("admin", "Applying"), h("div", { class: "buttons" }, button("Run", () => void run()), apply, live), applyNote),
      h("section", { class: "panel", "aria-label": "Result" }, h("h2", null, "Who would be limited"), result)));
  void run();
  void chooseMostActive();
  return () => {
    clearTimeout(timer);
    stopping.abort();
    ended.abort();
  };
}

/** What is written, and what it was measured to do. @param {any} plan @param {import("./simulation.js").Outcome} outcome @param {boolean} isLog */
function applyPart(plan, outcome, isLog) {
  const shown = plan.diff.slice(0, MAX_DIFF);
  const more = plan.created + plan.changed - shown.length;
  return h("div", null,
    h("p", null, "One change of the rules database; rules that are not in the text stay as they are."),
    shown.map((/** @type {any} */ each) => h("div", null, h("h3", null, `rule ${each.id}${each.before === null ? ", new" : ""}`), changeLines(each.before, each.after))),
    more > 0 && h("p", { class: "muted" }, `and ${count(more)} more`),
    h("h3", null, "Measured effect"), outcome.requests ? [outcomeSentence(outcome), ...sampleLines(outcome, isLog), byRule(outcome)] : h("p", null, `Not known: the ${isLog ? "log" : "sample"} has no request.`));
}

/** The limits of a rule as text; none if they differ by an attribute. @param {any} rule @returns {string[]} */
function limitsOf(rule) {
  if (rule?.requests !== undefined) return [`${rule.requests}/${rule.time}`];
  const limits = rule?.limits ?? rule?.limit ?? [];
  return (Array.isArray(limits) ? limits : [limits]).map(String);
}

/** @param {any} rule @param {number} number @param {string} limit */
function withLimit(rule, number, limit) {
  if (rule.requests !== undefined) return { ...rule, requests: Number.parseInt(limit, 10) };
  const name = rule.limits === undefined ? "limit" : "limits";
  if (!Array.isArray(rule[name])) return { ...rule, [name]: limit };
  return { ...rule, [name]: rule[name].map((/** @type {string} */ each, /** @type {number} */ at) => (at === number ? limit : each)) };
}

/** @param {import("./simulation.js").Outcome} outcome @param {boolean} isLog */
function outcomePart(outcome, isLog) {
  if (!outcome.requests && isLog) return empty("The log has no request", "Each line is one.");
  if (!outcome.requests) return empty("The sample is empty", "It fills while requests arrive. Or replay a log on the command line:", ["tollgate simulate access.log -c new.yaml"]);
  const before = outcome.compare;
  const table = new Table("Clients that would be limited", [
    { label: "Client", width: "", cell: (row) => h("span", { class: "key", title: row.key }, row.key) },
    { label: "Requests", width: "7em", wide: true, numeric: true, cell: (row) => count(row.requests), sort: (row) => row.requests },
    { label: "Denied", width: "12em", cell: (row) => bar(row.requests ? row.denied / row.requests : 0, count(row.denied)), sort: (row) => row.denied, numeric: true },
  ]);
  const limited = outcome.clients.filter((each) => each.denied > 0);
  table.setRows(limited);
  return h("div", { id: "outcome" },
    outcomeSentence(outcome),
    sampleLines(outcome, isLog),
    before && h("p", { class: "muted" }, `All rules in force together deny ${count(before.denied)} of them (${percent(before.denied, before.requests)}).`),
    byRule(outcome),
    limited.length ? table.element : empty(`No client of the ${isLog ? "log" : "sample"} would be limited`, "Lower the limit to see who is first."));
}

/** @param {import("./simulation.js").Outcome} outcome */
const outcomeSentence = (outcome) => h("p", { class: "sentence small" }, `${count(outcome.denied)} of ${count(outcome.requests)} requests denied (${percent(outcome.denied, outcome.requests)})`);

/** Each rule of the draft, next to the rule in force of that id. @param {import("./simulation.js").Outcome} outcome */
function byRule(outcome) {
  const rows = outcome.by_rule.map((each) => {
    const now = outcome.compare?.by_rule.find((other) => other.rule === each.rule);
    return h("tr", null, h("th", { scope: "row" }, each.rule), h("td", { class: "number" }, count(each.requests)),
      h("td", { class: "number" }, `${count(each.denied)} (${percent(each.denied, each.requests)})`), h("td", { class: "number" }, now ? `${count(now.denied)} (${percent(now.denied, now.requests)})` : "–"));
  });
  if (!rows.length) return null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Denied by rule" }, h("table", { class: "by-rule" },
    h("caption", { class: "hidden" }, "Denied by rule"),
    h("thead", null, h("tr", null, ["rule", "requests", "denied", "in force"].map((name, number) => h("th", { scope: "col", class: number ? "number" : null }, name)))), h("tbody", null, rows)));
}

function offline() {
  return h("div", null, unavailable("Simulation"), h("p", null, "A log can be replayed on the command line:"), copyable("tollgate simulate access.log -c new.yaml --compare tollgate.yaml"));
}
