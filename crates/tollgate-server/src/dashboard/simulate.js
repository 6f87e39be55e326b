// Simulate: other rules on the recorded sample of live traffic, before they are in force.

import { button, copyable, field, h, replace, select } from "./dom.js";
import { Problem, call, get } from "./api.js";
import { bar } from "./chart.js";
import { notice, openDialog } from "./dialog.js";
import { clock, count, duration, percent } from "./format.js";
import { empty, failed, unavailable } from "./page_state.js";
import { needs, roleNotice } from "./session.js";
import { simulateRules } from "./simulation.js";
import { Table } from "./table.js";
import { asRules, yaml } from "./yaml.js";

const RUN_MS = 300;
const RATE = /^(\d+)\/(.+)$/;

/** @type {import("./main.js").Page} */
export function simulate(place) {
  const result = h("div");
  const text = h("textarea", { rows: "12", spellcheck: "false", "data-draft": true, oninput: () => later() });
  const slider = h("input", { type: "range", min: "1", max: "100", value: "10", oninput: () => dragged(), disabled: true });
  const sliderValue = h("output", null, "choose a rule");
  const picker = h("div");
  const apply = needs(button("Apply…", () => confirmApply(), { class: "primary" }), "admin");
  /** @type {Map<string, any>} */
  let known = new Map();
  /** @type {any} */
  let chosen = null;
  let timer = 0;
  let turn = 0;
  let stopping = new AbortController();

  /** @param {string} id */
  function choose(id) {
    chosen = known.get(id) ?? null;
    const rate = RATE.exec(limitOf(chosen));
    slider.disabled = !rate;
    if (!chosen) return;
    if (rate) {
      slider.max = String(Math.max(20, Number(rate[1]) * 4));
      slider.value = rate[1];
    }
    replace(sliderValue, rate ? limitOf(chosen) : "several limits: edit the text");
    text.value = asRules(yaml(chosen));
    later();
  }

  function dragged() {
    const rate = RATE.exec(limitOf(chosen));
    if (!rate) return;
    chosen = withLimit(chosen, `${slider.value}/${rate[2]}`);
    replace(sliderValue, limitOf(chosen));
    text.value = asRules(yaml(chosen));
    later();
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => void run(), RUN_MS);
  }

  async function run() {
    const own = ++turn;
    stopping.abort();
    stopping = new AbortController();
    result.classList.add("old");
    try {
      const outcome = await simulateRules(text.value, stopping.signal);
      if (own === turn) replace(result, outcomePart(outcome));
    } catch (why) {
      if (own === turn) replace(result, why instanceof Problem && why.isMissing ? offline() : failed(why, "Simulation"));
    }
    if (own === turn) result.classList.remove("old");
  }

  function confirmApply() {
    openDialog("Put these rules in force?", h("p", null, "They are written to the rules database as one change; rules that are not in the text stay as they are."), {
      action: "Apply",
      onaction: async () => {
        const { body } = await call("POST", "/v1/rules/import?mode=merge", { body: text.value });
        notice(`${body.created} rules created, ${body.changed} changed, version ${body.version}`);
      },
    });
  }

  get("/v1/rules?limit=1000").then((page) => {
    known = new Map(page.rules.map((/** @type {any} */ rule) => [rule.id, written(rule)]));
    const choices = /** @type {[string, string][]} */ ([["", "choose a rule"], ...[...known.keys()].map((id) => [id, id])]);
    replace(picker, known.size ? field("Rule", select(choices, "", choose, { name: "rule" })) : empty("No rules yet", "Write some below."));
  }, (why) => replace(picker, failed(why, "Rules")));

  text.value = "rules:\n  - id: try\n    key: ip\n    limit: 100/m\n";
  place.append(
    h("p", { class: "muted" }, "The node keeps the requests of a sample of clients. Other rules are tried on it: nothing is charged, and nothing changes."),
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("h2", null, "Rules to try"), picker,
        h("label", { class: "field" }, h("span", { class: "label" }, "Limit"), slider, sliderValue),
        field("Rules (YAML)", text), roleNotice("admin", "Applying"), h("div", { class: "buttons" }, button("Run", () => void run()), apply)),
      h("section", { class: "panel", "aria-label": "Result" }, h("h2", null, "Who would be limited"), result)));
  void run();
  return () => {
    clearTimeout(timer);
    stopping.abort();
  };
}

/** @param {any} rule */
function limitOf(rule) {
  const limits = rule?.limits ?? rule?.limit ?? "";
  return Array.isArray(limits) ? (limits.length === 1 ? limits[0] : "") : String(limits);
}

/** @param {any} rule @param {string} limit */
function withLimit(rule, limit) {
  const { limits, ...rest } = rule;
  return limits === undefined ? { ...rest, limit } : { ...rest, limits: [limit] };
}

/** Without what the API adds. @param {any} rule */
function written(rule) {
  const { source, version, left_out, ...rest } = rule;
  return rest;
}

/** @param {import("./simulation.js").Outcome} outcome */
function outcomePart(outcome) {
  if (!outcome.requests) return empty("The sample is empty", "It fills while requests arrive. Or replay a log on the command line:", ["tollgate simulate access.log -c new.yaml"]);
  const before = outcome.compare;
  const table = new Table("Clients that would be limited", [
    { label: "Client", width: "", cell: (row) => h("span", { class: "key", title: row.key }, row.key) },
    { label: "Requests", width: "7em", wide: true, numeric: true, cell: (row) => count(row.requests), sort: (row) => row.requests },
    { label: "Denied", width: "11em", cell: (row) => bar(row.requests ? row.denied / row.requests : 0, count(row.denied)), sort: (row) => row.denied, numeric: true },
  ]);
  const limited = outcome.clients.filter((each) => each.denied > 0);
  table.setRows(limited);
  return h("div", { id: "outcome" },
    h("p", { class: "sentence small" }, `${count(outcome.denied)} of ${count(outcome.requests)} requests denied (${percent(outcome.denied, outcome.requests)})`),
    h("p", { class: "muted" }, sampleText(outcome)),
    (outcome.notes ?? []).map((note) => h("p", { class: "role-notice" }, note)),
    before && h("p", { class: "muted" }, `All rules in force together deny ${count(before.denied)} of them (${percent(before.denied, before.requests)}).`),
    byRule(outcome),
    limited.length ? table.element : empty("No client of the sample would be limited", "Lower the limit to see who is first."));
}

/** Each rule of the draft, next to the rule in force of that id. @param {import("./simulation.js").Outcome} outcome */
function byRule(outcome) {
  const rows = outcome.by_rule.map((each) => {
    const now = outcome.compare?.by_rule.find((other) => other.rule === each.rule);
    return h("tr", null, h("th", { scope: "row" }, each.rule), h("td", { class: "number" }, count(each.requests)),
      h("td", { class: "number" }, `${count(each.denied)} (${percent(each.denied, each.requests)})`), h("td", { class: "number" }, now ? `${count(now.denied)} (${percent(now.denied, now.requests)})` : "–"));
  });
  if (!rows.length) return null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Denied by rule" }, h("table", { id: "by-rule" },
    h("caption", { class: "hidden" }, "Denied by rule"),
    h("thead", null, h("tr", null, ["rule", "requests", "denied", "in force"].map((name, number) => h("th", { scope: "col", class: number ? "number" : null }, name)))), h("tbody", null, rows)));
}

/** @param {import("./simulation.js").Outcome} outcome */
function sampleText(outcome) {
  const share = outcome.sampled_one_in === 1 ? "every client" : outcome.sampled_one_in ? `one client in ${count(outcome.sampled_one_in)}` : "the sample";
  const time = outcome.from && outcome.to ? `, ${duration(outcome.to - outcome.from)} until ${clock(outcome.to)}` : "";
  return `Requests of ${share}${time}.`;
}

function offline() {
  return h("div", null, unavailable("Simulation"), h("p", null, "A log can be replayed on the command line:"), copyable("tollgate simulate access.log -c new.yaml --compare tollgate.yaml"));
}
