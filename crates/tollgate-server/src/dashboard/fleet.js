// Whether a view is of this node or of all nodes of the fleet; nodes that did not answer.

import { h, select } from "./dom.js";

/** @typedef {"node" | "fleet"} Scope */
/** @typedef {{ answered: string[], missing: { node: string, address: string, why: string }[] }} Answered */

/** The same for all pages, until the page is loaded again. @type {Scope} */
let scope = "node";

/** As a parameter of a call: left out for this node, so that an older node understands the call. */
export const scopeQuery = () => (scope === "fleet" ? { scope } : {});

export const isFleet = () => scope === "fleet";

/** @param {() => void} onchange */
export function scopeSelect(onchange) {
  return select([["node", "this node"], ["fleet", "all nodes"]], scope, (value) => { scope = /** @type {Scope} */ (value); onchange(); }, { "aria-label": "Nodes" });
}

/** Who is not in the answer. @param {Answered | undefined} nodes */
export function missingNote(nodes) {
  if (!nodes?.missing.length) return null;
  const total = nodes.answered.length + nodes.missing.length;
  return h("div", { class: "role-notice", role: "status" },
    h("p", null, `${nodes.answered.length} of ${total} nodes answered. Not counted:`),
    h("ul", { class: "lines" }, nodes.missing.map((each) => h("li", null, h("b", null, each.address), ` ${each.why}`))));
}
