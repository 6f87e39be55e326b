// The choice of one rule of the node: a list and, if that is not all of them, a search on the node.

import { field, h, replace, select } from "./dom.js";
import { get, withQuery } from "./api.js";
import { count } from "./format.js";
import { empty, failed } from "./page_state.js";

const MAX_LISTED = 1_000;
const SEARCH_MS = 250;

/**
 * @param {(id: string) => void} onchoose
 * @param {Map<string, string>} known where each rule is from; those that were listed are added
 * @param {AbortSignal} signal
 */
export function rulePicker(onchoose, known, signal) {
  const list = h("div");
  const search = h("input", { type: "search", name: "search", placeholder: "the start of its id", autocomplete: "off", spellcheck: "false", oninput: () => later() });
  const searchField = field("Find a rule", search);
  const note = h("p", { class: "muted", role: "status" });
  searchField.hidden = true;
  let timer = 0;
  let turn = 0;
  let chosen = "";
  let isFirst = true;
  /** @type {{ rules: { id: string, source: string }[], next: string | null, total: number } | null} */
  let shown = null;

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => void load(), SEARCH_MS);
  }

  async function load() {
    const own = ++turn;
    try {
      const page = await get(withQuery("/v1/rules", { limit: MAX_LISTED, prefix: search.value.trim() }), { signal });
      if (own === turn) show(page);
    } catch (why) {
      if (own === turn && !signal.aborted) replace(list, failed(why, "Rules"));
    }
  }

  /** @param {{ rules: { id: string, source: string }[], next: string | null, total: number }} page */
  function show(page) {
    shown = page;
    page.rules.forEach((rule) => known.set(rule.id, rule.source));
    if (isFirst && !page.rules.length) return replace(list, empty("No rules yet", "Write some below."));
    if (isFirst) searchField.hidden = page.next === null;
    isFirst = false;
    const ids = page.rules.map((rule) => rule.id);
    if (chosen && !ids.includes(chosen)) ids.unshift(chosen);
    const choices = /** @type {[string, string][]} */ ([["", "choose a rule"], ...ids.map((id) => [id, id])]);
    replace(list, field("Rule", select(choices, chosen, (id) => { chosen = id; onchoose(id); }, { name: "rule" })));
    replace(note, words(page));
  }

  /** As if the user had chosen it. @param {string} id */
  function choose(id) {
    chosen = id;
    if (shown) show(shown);
    onchoose(id);
  }

  /** @param {{ rules: any[], next: string | null, total: number }} page */
  function words({ rules, next, total }) {
    if (next !== null) return `The first ${count(rules.length)} of ${count(total)} rules are listed: type the start of an id to find others.`;
    return search.value.trim() ? (rules.length ? `${count(rules.length)} of ${count(total)} rules start like this.` : "No rule starts like this.") : "";
  }

  void load();
  return { element: h("div", null, searchField, list, note), choose };
}
