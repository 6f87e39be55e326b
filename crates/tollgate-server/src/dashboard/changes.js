// Changes: who changed what, its measured effect, and its reversal.

import { button, h, replace, select } from "./dom.js";
import { get, withQuery } from "./api.js";
import { changeLines } from "./diff.js";
import { ago, dateTime, rate, unix } from "./format.js";
import { empty, failed, loading } from "./page_state.js";
import { rollbackButton } from "./rollback.js";
import { roleNotice } from "./session.js";

const PAGE = 50;
const AROUND_S = 600;

/** @type {import("./main.js").Page} */
export function changes(place) {
  const stopping = new AbortController();
  const list = h("ol", { class: "changes" });
  const state = h("div", null, loading());
  const more = button("Older changes", () => void load());
  more.hidden = true;
  /** @type {string | null} */
  let before = null;
  let only = "all";
  const kinds = select([["all", "all changes"], ["rule", "rules"], ["ban", "bans"], ["allow", "allow list"], ["setting", "panic switch"]], only, (value) => { only = value; filter(); }, { "aria-label": "Which changes" });

  function filter() {
    for (const each of list.children) /** @type {HTMLElement} */ (each).hidden = only !== "all" && each.getAttribute("data-what") !== only;
  }

  function restart() {
    before = null;
    replace(list);
    void load();
  }

  async function load() {
    try {
      const page = await get(withQuery("/v1/audit", { limit: PAGE, before }), { signal: stopping.signal });
      list.append(...page.changes.map((/** @type {any} */ change) => item(change, restart)));
      filter();
      before = page.next;
      more.hidden = before === null;
      replace(state, list.childElementCount ? null : empty("No changes yet", "Every edit of rules, bans, the allow list and the panic switch is recorded here. Make one:", ["tollgate rules apply rules.yaml"]));
    } catch (why) {
      if (!stopping.signal.aborted) replace(state, failed(why, "Changes"));
    }
  }

  place.append(h("div", { class: "toolbar" }, kinds), roleNotice("admin", "Reverting") ?? "", state, list, h("div", { class: "buttons" }, more));
  void load();
  return () => stopping.abort();
}

/** @param {any} change @param {() => void} restart */
function item(change, restart) {
  const at = unix(change.at);
  const verb = change.before === null ? "created" : change.after === null ? "deleted" : "changed";
  const effect = h("span", { class: "muted" });
  const measure = button("Effect", () => void showEffect(effect, change), { class: "quiet", "aria-label": `Measured effect of change ${change.version}` });
  return h("li", { "data-version": change.version, "data-what": change.what },
    h("div", { class: "change-head" },
      h("b", null, `${change.what} ${change.name} ${verb}`),
      h("span", { class: "muted", title: dateTime(at) }, `${dateTime(at)} (${ago(at)})`),
      h("span", null, `by ${change.who}`), h("span", { class: "muted" }, `version ${change.version}`),
      change.undoes && h("span", null, `reverts ${change.undoes}`),
      h("span", { class: "buttons" }, measure, rollbackButton(change, restart))),
    changeLines(change.before, change.after), effect);
}

/** Denials before and after, in the ten minutes around it. @param {Element} place @param {any} change */
async function showEffect(place, change) {
  replace(place, "Measuring…");
  const at = unix(change.at);
  const until = Math.min(at + AROUND_S, Date.now() / 1000);
  try {
    const rule = change.what === "rule" ? change.name : null;
    const series = await get(withQuery("/v1/series", { step: "minute", rule, from: Math.floor(at - AROUND_S), to: Math.ceil(until) }));
    const per = (/** @type {(at: number) => boolean} */ inside, /** @type {number} */ seconds) => {
      const points = series.points.filter((/** @type {any} */ point) => inside(point.at));
      const denied = points.reduce((/** @type {number} */ sum, /** @type {any} */ point) => sum + point.denied + (point.banned ?? 0), 0);
      const all = points.reduce((/** @type {number} */ sum, /** @type {any} */ point) => sum + point.denied + (point.banned ?? 0) + point.allowed, 0);
      return `${rate((60 * denied) / Math.max(60, seconds))} of ${rate((60 * all) / Math.max(60, seconds))} requests a minute limited`;
    };
    replace(place, `Ten minutes before: ${per((each) => each < at, AROUND_S)}. Since then, up to ten minutes: ${per((each) => each >= at, until - at)}.`);
  } catch (why) {
    replace(place, failed(why, "Series"));
  }
}
