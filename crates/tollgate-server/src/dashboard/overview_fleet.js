// Overview of all nodes: their rates in one sentence, and their latest denials. The stream has those of this node only.

import { replace } from "./dom.js";
import { get, withQuery } from "./api.js";
import { missingNote, scopeQuery } from "./fleet.js";
import { rate } from "./format.js";
import { Loaded, empty } from "./page_state.js";
import { protection } from "./status.js";

const EVERY_MS = 3_000;
const RATE_SECONDS = 5;
/** The latest seconds, which not all nodes have completed. */
const INCOMPLETE_SECONDS = 4;

/**
 * @typedef {object} FleetPart
 * @property {HTMLElement} denials
 * @property {() => string | null} sentence null before the first answer
 * @property {() => void} stop
 */

/**
 * @param {number} limit denials
 * @param {(denied: any[]) => HTMLElement} list shows denials
 * @param {() => void} onchange the sentence is another one
 * @returns {FleetPart}
 */
export function fleetPart(limit, list, onchange) {
  /** @type {string | null} */
  let sentence = null;
  const part = new Loaded("All nodes", (signal) => load(limit, signal), ({ nodes, points, denied }) => {
    sentence = words(nodes, points);
    const found = denied.decisions;
    replace(part.body, missingNote(denied.nodes), found.length ? list(found) : empty("No denials on any node", "The nodes keep the latest ones in memory."));
    onchange();
  }, EVERY_MS, () => "fleet");
  return { denials: part.element, sentence: () => sentence, stop: () => part.stop() };
}

/** @param {number} limit @param {AbortSignal} signal */
async function load(limit, signal) {
  const before = Math.floor(Date.now() / 1000) - INCOMPLETE_SECONDS;
  // One after the other: a node makes few views of all nodes at the same time.
  const { nodes } = await get("/v1/nodes", { signal });
  const range = { step: "second", from: before - RATE_SECONDS, to: before - 1 };
  const { points } = await get(withQuery("/v1/series", { ...range, ...scopeQuery() }), { signal });
  const denied = await get(withQuery("/v1/decisions", { outcome: "denied", limit, ...scopeQuery() }), { signal });
  return { nodes, points, denied };
}

/** @param {any[]} nodes @param {any[]} points */
function words(nodes, points) {
  const protecting = nodes.filter((node) => node.answered && protection(node.health) === "Protecting").length;
  const start = `Protecting on ${protecting} of ${nodes.length} nodes`;
  const mean = (/** @type {(point: any) => number} */ of) => points.reduce((sum, point) => sum + of(point), 0) / RATE_SECONDS;
  const passed = mean((point) => point.allowed);
  const limited = mean((point) => point.denied + point.banned);
  if (passed + limited === 0) return `${start}: no requests now.`;
  const shadow = mean((point) => point.shadow_denied);
  return `${start}: ${rate(passed)}/s pass, ${rate(limited)}/s limited${shadow > 0 ? `, ${rate(shadow)}/s would be` : ""}.`;
}
