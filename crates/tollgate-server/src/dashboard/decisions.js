// Decisions: the live tail, what the rings still hold, and why one request was denied.

import { button, field, h, replace, select } from "./dom.js";
import { call, get, withQuery } from "./api.js";
import { checkCommands } from "./commands.js";
import { explainBody } from "./explain_input.js";
import { isFleet, missingNote, scopeQuery, scopeSelect } from "./fleet.js";
import { clock, dateTime, unix } from "./format.js";
import { live } from "./live.js";
import { keyLink, limitText, outcome, ruleLink } from "./key_tables.js";
import { empty, failed, unanswered, unavailable } from "./page_state.js";
import { isHeard } from "./status.js";
import { Table } from "./table.js";

const MAX_SHOWN = 5_000;
/** How many decisions of each outcome are asked for at first, and then of all nodes. */
const FIRST_LIMIT = 500;
const FLEET_LIMIT = 100;
const FLEET_MS = 3_000;

/** @type {import("./main.js").Page} */
export function decisions(place) {
  const tail = tailPart();
  place.append(explainPart(), tail.element);
  return tail.stop;
}

function tailPart() {
  /** @type {Map<string, import("./live.js").Decision>} */
  const known = new Map();
  let paused = false;
  let wanted = "all";
  const table = new Table("Decisions, newest first", [
    { label: "Time", width: "7em", narrow: "5.2em", cell: (each) => h("time", { title: dateTime(unix(each.at)) }, clock(unix(each.at))) },
    { label: "Outcome", width: "11em", narrow: "5.8em", cell: (each) => [outcome(each), h("div", { class: "second-line" }, each.rule && ruleLink(each.rule))] },
    { label: "Rule", width: "12em", cell: (each) => each.rule && ruleLink(each.rule), wide: true },
    { label: "Limit", width: "11em", cell: (each) => limitText(each), wide: true },
    { label: "Key", width: "", cell: (each) => [h("div", { class: "first-line" }, each.key && keyLink(each.rule, each.key)), h("div", { class: "second-line" }, limitText(each))] },
    { label: "Id", width: "13em", cell: (each) => h("code", null, each.id), wide: true },
  ], { narrowRowPx: 54, rowKey: (each) => each.id });
  const state = h("div");
  const filter = h("input", { type: "search", placeholder: "Filter by rule, key or id", "aria-label": "Filter by rule, key or id", oninput: () => draw() });
  const outcomes = select([["all", "all outcomes"], ["denied", "denied"], ["allowed", "passed"]], wanted, (value) => { wanted = value; draw(); }, { "aria-label": "Outcome" });
  const pause = button("Pause", () => {
    paused = !paused;
    pause.textContent = paused ? "Continue" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused && !isFleet()) add(live.decisions);
  }, { "aria-pressed": "false" });

  /** @param {import("./live.js").Decision[]} found */
  function add(found) {
    found.forEach((each) => known.set(each.id, each));
    draw();
  }

  function draw() {
    const text = filter.value.trim().toLowerCase();
    const rows = [...known.values()]
      .filter((each) => wanted === "all" || each.allowed === (wanted === "allowed"))
      .filter((each) => !text || `${each.rule} ${each.key} ${each.id}`.toLowerCase().includes(text))
      .sort((a, b) => unix(b.at) - unix(a.at))
      .slice(0, MAX_SHOWN);
    if (known.size > 2 * MAX_SHOWN) [...known.keys()].slice(0, known.size - MAX_SHOWN).forEach((id) => known.delete(id));
    table.element.hidden = rows.length === 0;
    table.setRows(rows);
    replace(state, rows.length ? null : live.state === "missing" && !known.size ? unavailable("Decisions") : !isHeard() && !known.size ? unanswered("Decisions") : text || wanted !== "all" ? empty("No decision matches", "Of the latest ones, which the node keeps in memory.") : empty("No decisions yet", "Send a request:", checkCommands("203.0.113.7")));
  }

  const note = h("div");
  const how = h("span", { class: "muted" });
  let stopping = new AbortController();

  /** Both outcomes, one after the other: a node makes few views of all nodes at the same time. @param {number} limit */
  async function load(limit) {
    const { signal } = stopping;
    try {
      for (const outcome of ["denied", "allowed"]) {
        const value = await get(withQuery("/v1/decisions", { outcome, limit, ...scopeQuery() }), { signal });
        if (signal.aborted) return;
        replace(note, missingNote(value.nodes));
        add(value.decisions);
      }
    } catch (why) {
      if (signal.aborted) return;
      if (isFleet()) replace(note, failed(why, "All nodes"));
      draw();
    }
  }

  /** The stream is of this node only: the others are asked again and again. */
  async function followFleet() {
    const { signal } = stopping;
    while (!signal.aborted) {
      if (!paused && !document.hidden) await load(known.size ? FLEET_LIMIT : FIRST_LIMIT);
      await new Promise((resolve) => setTimeout(resolve, FLEET_MS));
    }
  }

  function chooseScope() {
    stopping.abort();
    stopping = new AbortController();
    known.clear();
    replace(note);
    replace(how, isFleet() ? `of all nodes, asked every ${FLEET_MS / 1000} s` : "up to 20 of each second, denials first");
    if (isFleet()) {
      draw();
      return void followFleet();
    }
    add(live.decisions);
    void load(FIRST_LIMIT);
  }

  const end = live.subscribe((second) => {
    if (paused || isFleet()) return;
    if (second === null && live.state === "open") void load(FIRST_LIMIT); // replayed seconds have no decisions
    add(second?.decisions ?? []);
  });
  chooseScope();
  const element = h("section", { class: "panel", "aria-label": "Decisions" },
    h("div", { class: "panel-head" }, h("h2", null, "Latest decisions"), how),
    h("div", { class: "toolbar" }, filter, outcomes, scopeSelect(chooseScope), pause), note, state, table.element);
  return { element, stop: () => { end(); stopping.abort(); } };
}

function explainPart() {
  const ticket = h("textarea", { name: "ticket", rows: "2", spellcheck: "false", placeholder: "the ticket of a denial, or a request: POST /login --ip 203.0.113.7" });
  const result = h("div", { role: "status" });
  const form = h("form", { onsubmit: async (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = ticket.value.trim();
    if (!text) return;
    try {
      const { body: explained } = await call("POST", "/v1/explain", { body: explainBody(text) });
      replace(result, tree(explained));
    } catch (why) {
      replace(result, failed(why, "Explain"));
    }
  } }, field("Ticket or request", ticket, "A ticket, the denied response that has it, or a request as for tollgate explain or as JSON. A request is explained without being counted."), h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Explain")));
  return h("section", { class: "panel" }, h("h2", null, "Why was it denied?"), form, result);
}

const STEPS = /** @type {Record<string, string>} */ ({ allow_list: "Allow list", ban: "Bans", rule: "Rule" });

/** The steps of a decision, in their order. @param {any} explained */
export function tree(explained) {
  const denied = explained.decision === "denied";
  const steps = (explained.steps ?? []).map((/** @type {any} */ step) => {
    const facts = [
      ["limit", step.limit], ["key", step.key], ["used", step.used], ["remaining", step.remaining],
      ["charged", step.charged === undefined || step.charged === null ? null : step.charged ? "yes" : "no"], ["shadow", step.shadow ? "yes" : null], ["source", step.source],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    return h("li", { class: step.matched ? "matched" : null },
      h("div", null, h("b", null, `${STEPS[step.step] ?? step.step}${step.rule ? ` ${step.rule}` : ""}`), " ", h("span", { class: step.matched ? null : "muted" }, step.matched ? "● applies" : "○ does not apply")),
      step.why && h("div", null, step.why),
      facts.length ? h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, String(value))))) : null);
  });
  const sealed = explained.ticket;
  return h("div", { class: "explained" },
    h("p", null, h("b", { class: denied ? "denied" : "passed" }, denied ? "✗ Denied" : "✓ Passed"), ` ${explained.reason ?? ""}${explained.rule ? `, rule ${explained.rule}` : ""}`),
    sealed && h("p", { class: "muted" }, [sealed.at && `Decided ${dateTime(unix(sealed.at))}`, sealed.node && `on ${sealed.node}`, sealed.limit && `limit ${sealed.limit}`, sealed.used !== undefined && sealed.used !== null && `${sealed.used} used`].filter(Boolean).join(", ")),
    h("ol", { class: "tree" }, steps));
}
