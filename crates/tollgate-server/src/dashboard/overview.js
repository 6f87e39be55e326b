// Overview: whether it protects, in one sentence; the traffic; what it runs on; the keys that are limited most.

import { h, replace } from "./dom.js";
import { get, withQuery } from "./api.js";
import { checkCommands } from "./commands.js";
import { StackedChart } from "./chart.js";
import { isFleet, missingNote, scopeQuery, scopeSelect } from "./fleet.js";
import { ago, bytes, count, micros, rate } from "./format.js";
import { gauge, loadMetrics } from "./metrics.js";
import { live } from "./live.js";
import { Loaded, empty, unanswered, unavailable } from "./page_state.js";
import { fleetPart } from "./overview_fleet.js";
import { isHeard, lastHealth, lastHeard, protection } from "./status.js";
import { decisionLine, keyLink, topTable } from "./key_tables.js";
import { RANGES, SERIES, editsOf, filled, none, rangeSelect } from "./series.js";

const RATE_SECONDS = 5;
/** A time of a decision counts as recent. */
const TIMED_SECONDS = 60;
const RECENT = 8;
/** How often changes are looked for beside the stream. */
const CHANGES_MS = 5_000;

/** @type {import("./main.js").Page} */
export function overview(place) {
  const sentence = h("p", { class: "sentence", id: "sentence" });
  const detail = h("p", { class: "muted", id: "sentence-detail" });
  const nodes = scopeSelect(() => { traffic.reload(); void top.refresh(); chooseScope(); });
  const stripTitle = h("p", { class: "muted strip-title" });
  const traffic = trafficPart();
  const recent = h("div");
  const strip = new Loaded("Health", loadStrip, (value) => replace(strip.body, stripTiles(value)), 5_000);
  const top = new Loaded("Top keys", (signal) => get(withQuery("/v1/top", { outcome: "denied", window: "5m", limit: 5, ...scopeQuery() }), { signal }), (value) => replace(top.body, topKeys(value)), 5_000, () => JSON.stringify(scopeQuery()));

  /** While all nodes are chosen. @type {import("./overview_fleet.js").FleetPart | null} */
  let fleet = null;

  const show = () => {
    const [first, second] = words(fleet);
    replace(sentence, first);
    replace(detail, second);
    traffic.show();
    if (!fleet) replace(recent, recentDenials());
  };

  function chooseScope() {
    fleet?.stop();
    fleet = isFleet() ? fleetPart(RECENT, denialList, show) : null;
    replace(recent, fleet && fleet.denials);
    replace(stripTitle, fleet && "This node");
    show();
  }
  const end = live.subscribe(show);
  const timer = setInterval(show, 2_000); // an idle node sends no seconds
  place.append(
    h("section", { "aria-label": "Protection" }, sentence, detail),
    h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", null, "Requests"), h("div", { class: "buttons" }, nodes, traffic.control)), traffic.element),
    stripTitle, strip.element,
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", null, "Most limited keys"), h("a", { href: "#/keys" }, "All keys")), top.element),
      h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", null, "Latest denials"), h("a", { href: "#/decisions" }, "All decisions")), recent)));
  chooseScope();
  return () => {
    end();
    clearInterval(timer);
    fleet?.stop();
    traffic.stop();
    strip.stop();
    top.stop();
  };
}

/**
 * The state of the node, or of all nodes, in one sentence, and what belongs to it.
 * @param {import("./overview_fleet.js").FleetPart | null} fleet
 * @returns {[string, string]}
 */
function words(fleet) {
  if (isHeard()) {
    const own = lastWords(Date.now() / 1000);
    if (!fleet) return own;
    const all = fleet.sentence();
    const [sentence, detail] = own;
    return all === null ? [`This node: ${sentence}`, detail] : [all, `This node: ${sentence} ${detail}`];
  }
  const at = lastHeard();
  if (at === null) return ["The node does not answer.", "Whether requests are limited is not known."];
  const [then] = lastWords(at);
  return [`The node does not answer, last heard ${ago(at)}.`, `Whether requests are limited now is not known. What it said last: “${then}”`];
}

/** What the node has said of its state. @param {number} now in seconds since 1970 @returns {[string, string]} */
function lastWords(now) {
  const health = lastHealth();
  const latest = live.seconds.at(-1);
  const start = protection({ ...health, enforce: latest?.enforce ?? health?.enforce });
  if (live.state === "missing") return [`${start}.`, "This node has no live data."];
  const recent = live.seconds.filter((second) => second.at > now - RATE_SECONDS - 2).slice(-RATE_SECONDS);
  if (!latest || !recent.some(requests)) {
    const last = live.seconds.findLast(requests);
    return [`${start}: no requests now.`, last ? `The last one was ${ago(last.at)}.` : "None was decided since this page was opened."];
  }
  const mean = (/** @type {(second: import("./live.js").Second) => number} */ of) => recent.reduce((sum, each) => sum + of(each), 0) / recent.length;
  const clients = Math.max(...recent.map((each) => each.clients_limited));
  const limited = mean((each) => each.denied + each.banned);
  const shadow = mean((each) => each.shadow_denied);
  const parts = [`${rate(mean((each) => each.allowed))}/s pass`, `${rate(limited)}/s limited`];
  if (limited > 0 && clients > 0) parts[1] += ` (${count(clients)} client${clients === 1 ? "" : "s"})`;
  if (shadow > 0) parts.push(`${rate(shadow)}/s would be`);
  return [`${start}: ${parts.join(", ")}.`, `${decisionTimes(now)} ${count(latest.near_limit)} near their limit.`];
}

/** A sample of the decisions is timed: at a low rate, none in most seconds. @param {number} now */
function decisionTimes(now) {
  const timed = live.seconds.findLast((each) => each.at > now - TIMED_SECONDS && each.latency?.p50_us)?.latency;
  if (!timed) return "Decisions: too few are timed for p50 and p99.";
  return `Decisions: p50 ${micros(timed.p50_us ?? 0)}, p99 ${micros(timed.p99_us ?? 0)}.`;
}

/** @param {import("./live.js").Second} second */
const requests = (second) => second.allowed + second.denied + second.banned > 0;

function trafficPart() {
  const chart = new StackedChart("Requests by outcome", SERIES);
  const state = h("div");
  const control = rangeSelect("5m", choose);
  const element = h("div", null, state, chart.element);
  /** @type {Loaded | null} */
  let loaded = null;
  let range = "5m";
  /** @type {import("./chart.js").Change[]} */
  let changes = [];

  /** @param {string} value */
  function choose(value) {
    range = value;
    loaded?.stop();
    loaded = null;
    const { seconds, unit } = RANGES[value];
    // The stream is of this node only.
    const step = RANGES[value].step === "live" && isFleet() ? "second" : RANGES[value].step;
    const from = () => Math.floor(Date.now() / 1000 - seconds);
    const path = () => withQuery("/v1/series", { step: step === "live" ? "second" : step, from: from(), ...scopeQuery() });
    loaded = new Loaded("Series", (signal) => get(path(), { signal }), (value) => {
      changes = editsOf(value.changes);
      if (step === "live") return merge(value.points);
      if (isFleet()) replace(loaded?.body ?? state, missingNote(value.nodes));
      chart.element.hidden = false;
      chart.update(filled(value.points, value.step, from()), changes, unit);
    }, step === "live" ? CHANGES_MS : step === "second" ? 3_000 : 15_000, () => `${value} ${isFleet()}`);
    replace(state, step === "live" ? null : loaded.element);
    show();
  }

  /** Seconds from before the page was opened. @type {import("./chart.js").Point[]} */
  let earlier = [];

  /** @param {import("./chart.js").Point[]} points */
  function merge(points) {
    earlier = points;
    show();
  }

  function show() {
    if (range !== "5m" || isFleet()) return;
    chart.element.hidden = live.state === "missing";
    if (live.state === "missing") return replace(state, unavailable("Live data"));
    const now = Math.floor(Date.now() / 1000);
    const known = new Map(earlier.map((point) => [Math.floor(point.at), point]));
    live.seconds.forEach((second) => known.set(Math.floor(second.at), /** @type {any} */ (second)));
    if (!isHeard() && !known.size) {
      chart.element.hidden = true;
      return replace(state, unanswered("Requests"));
    }
    // While the node is not heard, time does not go on: nothing is known of it.
    const last = isHeard() ? Math.max(...known.keys(), now - 2) : Math.max(...known.keys());
    const points = Array.from({ length: 300 }, (_, number) => known.get(last - 299 + number) ?? none(last - 299 + number));
    const idle = points.every((point) => SERIES.every((each) => !point[each.key]));
    replace(state, !idle ? null : isHeard() ? noRequests() : unanswered("Requests"));
    chart.element.hidden = idle;
    chart.update(points, changes, "/s");
  }

  choose("5m");
  // A stream without an id to resume from has missed the seconds before it was open.
  const end = live.subscribe((second) => {
    if (second === null && live.state === "open") void loaded?.refresh();
  });
  return { element, control, show, reload: () => choose(range), stop: () => { end(); loaded?.stop(); } };
}

function noRequests() {
  return empty("No requests in the last five minutes", "Send one to the decision API, or to the proxy:", checkCommands("203.0.113.7"));
}

/** @param {any} value */
function topKeys(value) {
  if (value.keys.length) return topTable(value.keys, "Most limited keys of the last five minutes");
  return empty("No key was limited in the last five minutes", "Keys appear here as soon as a limit denies them.");
}

function recentDenials() {
  if (live.state === "missing") return unavailable("Live decisions");
  const denied = live.decisions.filter((each) => !each.allowed).slice(0, RECENT);
  if (!denied.length && !isHeard()) return unanswered("Latest denials");
  if (!denied.length) return empty("No denials since this page was opened", "They appear here within a second.");
  return denialList(denied);
}

/** @param {import("./live.js").Decision[]} denied */
function denialList(denied) {
  return h("ul", { class: "lines" }, denied.map((each) => h("li", null, decisionLine(each), each.key && keyLink(each.rule, each.key))));
}

/** @param {AbortSignal} signal */
async function loadStrip(signal) {
  const [health, found] = await Promise.all([get("/healthz", { signal }), loadMetrics()]);
  return { health, found };
}

/** @param {{ health: any, found: import("./metrics.js").Metrics }} value */
function stripTiles({ health, found }) {
  const used = gauge(found, "tollgate_store_bytes");
  const cap = gauge(found, "tollgate_store_cap_bytes");
  const upstreams = health.upstreams ?? [];
  const up = upstreams.filter((/** @type {any} */ each) => each.up).length;
  const servers = health.store ?? [];
  const down = servers.filter((/** @type {any} */ server) => !server.up).length;
  return h("div", { class: "tiles" },
    tile("Counters", servers.length ? (down ? `✗ ${down} of ${servers.length} down` : `✓ ${servers.length} up`) : "in memory", down ? "bad" : ""),
    tile("Rules database", database(health.rules_db), health.rules_db?.trouble ? "bad" : ""),
    tile("Upstreams", upstreams.length ? `${up === upstreams.length ? "✓" : "✗"} ${up} of ${upstreams.length} up` : "none", up < upstreams.length ? "bad" : ""),
    tile("Rules", count(gauge(found, "tollgate_rules"))),
    tile("Bans", count(gauge(found, "tollgate_bans"))),
    tile("Keys in memory", count(gauge(found, "tollgate_store_keys"))),
    tile("Memory", `${bytes(used)} of ${bytes(cap)}`, health.memory ? "bad" : ""));
}

/** @param {any} db */
function database(db) {
  if (!db) return "none";
  if (db.trouble) return "✗ cannot be read";
  return db.source === "database" ? `✓ version ${db.version ?? "–"}` : `from the ${db.source === "copy" ? "local copy" : "file only"}`;
}

/** @param {string} label @param {string} value @param {string} [kind] */
function tile(label, value, kind = "") {
  return h("div", { class: `tile ${kind}` }, h("span", { class: "label" }, label), h("span", { class: "value" }, value));
}
