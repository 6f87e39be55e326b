// Health: the panic switch, stores, database, nodes, queue, memory, log.

import { button, h, replace, select } from "./dom.js";
import { Problem, call, get } from "./api.js";
import { notice, openDialog, attempt } from "./dialog.js";
import { bar } from "./chart.js";
import { ago, bytes, count, duration, unix } from "./format.js";
import { gauge, loadMetrics } from "./metrics.js";
import { Loaded } from "./page_state.js";
import { needs, refusal, roleNotice } from "./session.js";
import { refreshHealth } from "./status.js";

const REFRESH_MS = 4_000;

/** @type {import("./main.js").Page} */
export function health(place) {
  // In columns: parts of a similar height are not beside each other.
  const columns = [
    [part("Panic switch", () => get("/v1/enforce"), enforcement), part("Rules database", () => get("/healthz"), database), part("Nodes", () => optional("/v1/nodes"), nodes)],
    [part("Node", loadNode, node), part("Memory and state", loadNode, memory)],
    [part("Counter store", () => get("/healthz"), store), part("Upstreams", () => get("/healthz"), upstreams), part("Queue", loadMetrics, queue), part("Log", () => get("/v1/log"), log)],
  ];
  const stacks = columns.map((parts) => h("div", null, parts.map((each) => each.element)));
  place.append(roleNotice("admin", "The panic switch") ?? "", h("div", { class: "grid" }, stacks));
  return () => columns.flat().forEach((each) => each.stop());
}

/** @param {string} title @param {(signal: AbortSignal) => Promise<any>} load @param {(value: any, refresh: () => void) => Node | (Node | null)[]} show */
function part(title, load, show) {
  const loaded = new Loaded(title, load, (value) => {
    if (loaded.body.contains(document.activeElement)) return; // a control in use is not replaced
    replace(loaded.body, show(value, () => void loaded.refresh()));
  }, REFRESH_MS);
  const element = h("section", { class: "panel", "aria-label": title }, h("h2", null, title), loaded.element);
  return { element, stop: () => loaded.stop() };
}

/** A call that some nodes do not have: null there. @param {string} path */
async function optional(path) {
  try {
    return await get(path);
  } catch (why) {
    if (why instanceof Problem && why.status === 404) return null;
    throw why;
  }
}

async function loadNode() {
  const [health, ready, found] = await Promise.all([get("/healthz"), get("/readyz"), loadMetrics()]);
  return { health, ready, found };
}

/** @param {[string, import("./dom.js").Child][]} rows */
function facts(rows) {
  return h("dl", { class: "facts tall" }, rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** @param {boolean} good @param {string} text */
const verdict = (good, text) => h("span", { class: good ? "passed" : "denied" }, `${good ? "✓" : "✗"} ${text}`);

/** @param {any} value @param {() => void} refresh */
function enforcement(value, refresh) {
  const meanings = /** @type {Record<string, string>} */ ({ on: "limits deny", shadow: "limits count, and deny nothing", off: "every request passes uncounted" });
  const buttons = Object.keys(meanings).map((position) => needs(button(position, () => ask(position), { "aria-pressed": String(value.enforce === position), class: value.enforce === position ? "pressed" : "" }), "admin"));
  function ask(/** @type {string} */ position) {
    if (position === value.enforce) return;
    openDialog(`Switch enforcement to ${position}?`, h("p", null, `${value.scope === "fleet" ? "On all nodes" : "On this node"} ${meanings[position]}.`), {
      action: `Switch to ${position}`, danger: position !== "on",
      onaction: async () => {
        await call("PUT", "/v1/enforce", { body: { enforce: position } });
        notice(`enforcement is ${position}`);
        void refreshHealth();
        refresh();
      },
    });
  }
  const by = value.who ? `set by ${value.who} ${value.at ? ago(unix(value.at)) : ""}` : "never changed";
  return [h("div", { class: "segments", role: "group", "aria-label": "Enforcement" }, buttons), h("p", { class: "muted" }, `${meanings[value.enforce]}; for ${value.scope === "fleet" ? "all nodes" : "this node"}, ${by}`)];
}

/** @param {any} value */
function node({ health, ready, found }) {
  const version = found.get("tollgate_build_info")?.[0]?.labels.version ?? found.get("tollgate_build")?.[0]?.labels.version;
  const reloaded = found.get("tollgate_config_last_reload_success")?.[0]?.value;
  const rejected = health.reload?.trouble ?? (reloaded === 0 ? "the latest change was rejected" : null);
  return facts([
    ["Status", verdict(health.status === "ok", health.status)],
    ["Ready", verdict(ready.status === "ready", ready.status)],
    ["Version", version ?? "–"],
    ["Generation of the rules", count(ready.rules_generation ?? 0)],
    ["Rules", count(gauge(found, "tollgate_rules"))],
    ["Configuration file", rejected ? verdict(false, rejected) : reloaded === undefined ? null : verdict(true, "in force")],
    ...Object.entries(health.tls ?? {}).map(([listener, why]) => /** @type {[string, Node]} */ ([`TLS of ${listener}`, verdict(false, String(why))])),
  ]);
}

/** @param {any} health */
function store(health) {
  // Without a token the servers are not named: what else turns protection off is known.
  const isOff = health.protection === "off" && health.enforce === "on" && health.rules_db?.source !== "none";
  if (!health.store?.length) return h("p", null, isOff ? verdict(false, "does not answer") : health.protection === "on" ? verdict(true, "answers") : "Counters are in the memory of this node.");
  return facts(health.store.map((/** @type {any} */ server) => [server.server, verdict(server.up, server.up ? "answers" : `breaker open: ${server.trouble}`)]));
}

/** @param {any} health */
function database(health) {
  const db = health.rules_db;
  if (!db) return h("p", null, "None: the rules are those of the configuration file.");
  const copy = db.copy;
  return facts([
    ["Name", db.name],
    ["In force", `version ${db.version ?? "–"}, from the ${db.source}`],
    ["Read", db.trouble ? verdict(false, db.trouble) : verdict(true, "up to date")],
    ["Write", db.writable ? verdict(true, "possible") : verdict(false, db.write_trouble ?? "not possible")],
    ["Local copy", copy ? (copy.trouble ? verdict(false, copy.trouble) : `version ${copy.version ?? "–"}, ${duration(copy.age_seconds ?? 0)} old`) : null],
    ["Behind the primary", db.lag ? `${count(db.lag)} changes` : null],
    ["Left out", db.left_out?.length ? verdict(false, `${db.left_out.length}: ${db.left_out[0].why}`) : null],
  ]);
}

/** @param {any} value */
function memory({ health, found }) {
  const used = gauge(found, "tollgate_store_bytes");
  const cap = gauge(found, "tollgate_store_cap_bytes");
  const state = health.state;
  return facts([
    ["Counters", bar(cap ? used / cap : 0, `${bytes(used)} of ${bytes(cap)}`)],
    ["Keys", count(gauge(found, "tollgate_store_keys"))],
    ["Full", health.memory ? verdict(false, health.memory) : verdict(true, "no")],
    ["Evicted", count(gauge(found, "tollgate_store_evicted_total"))],
    ["Saved state", state ? (state.trouble ? verdict(false, state.trouble) : `${bytes(state.file_bytes ?? 0)}, ${state.age_ms === null ? "not yet written" : `${duration(state.age_ms / 1000)} old`}`) : null],
  ]);
}

/** @param {any} health */
function upstreams(health) {
  /** @type {{ server?: string, up: boolean, trouble?: string | null }[]} */
  const list = health.upstreams ?? [];
  if (!list.length) return h("p", null, "None: the proxy is not in use.");
  return facts(list.map((each, number) => [each.server ?? `Upstream ${number + 1}`, verdict(each.up, each.up ? "up" : `down: ${each.trouble ?? "it does not answer"}`)]));
}

/** @param {any} value */
function nodes(value) {
  if (!value) return h("p", null, "Not available on this node.");
  const others = value.nodes.length - 1;
  const note = others ? null : h("p", { class: "muted" }, "No other node has announced itself in the rules database (advertise).");
  const trouble = value.trouble ? h("p", { class: "error-text" }, value.trouble) : null;
  return [trouble, h("dl", { class: "facts tall" }, value.nodes.map(nodeRow)), note];
}

/** @param {any} each */
const nodeName = (each) => (each.is_self ? `${each.address ?? each.node} (this node)` : each.address);

/** @param {any} each */
function nodeRow(each) {
  const rules = each.rules_version ? `, rules ${each.rules_version}` : "";
  const seen = !each.answered && each.last_seen ? `, last seen ${ago(each.last_seen)}` : "";
  const about = h("div", { class: "node-about" }, `generation ${count(each.generation)}${rules}, version ${each.version}${seen}`);
  const state = each.answered ? verdict(each.health?.status === "ok", each.health?.status ?? "unknown") : verdict(false, each.why ?? "no answer");
  return h("div", null, h("dt", { class: "node-name" }, nodeName(each), about), h("dd", null, state));
}

/** @param {import("./metrics.js").Metrics} found */
function queue(found) {
  const counts = found.get("tollgate_queue_requests");
  if (!counts) return h("p", null, found.has("tollgate_queued_total") ? "No counts: no rule has on_exceed: queue, or the queue does not answer." : "None: the proxy is not in use.");
  return facts(counts.map((each) => [each.labels.state, count(each.value)]));
}

/** @param {any} value @param {() => void} refresh */
function log(value, refresh) {
  const set = (/** @type {any} */ body) => void attempt(async () => {
    await call("PUT", "/v1/log", { body });
    notice("the log was changed, until the node restarts");
    refresh();
  });
  const level = needs(select(["error", "warn", "info", "debug"].map((each) => [each, each]), value.level, (chosen) => set({ level: chosen }), { "aria-label": "Level of the log" }), "operate");
  const format = needs(select(["text", "json"].map((each) => [each, each]), value.format, (chosen) => set({ format: chosen }), { "aria-label": "Format of the log" }), "operate");
  const why = refusal("operate");
  return [facts([["Level", level], ["Format", format]]), why ? h("p", { class: "role-notice" }, `Changing the log ${why}.`) : null];
}
