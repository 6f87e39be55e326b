// Changes: who changed what, its measured effect, and its reversal.

import { button, h, replace, select } from "./dom.js";
import { get, withQuery } from "./api.js";
import { AutomaticBans, isAutomaticBan } from "./automatic_bans.js";
import { effectText } from "./change_effect.js";
import { adminCommand } from "./commands.js";
import { changeLines } from "./diff.js";
import { scopeSelect } from "./fleet.js";
import { ago, count, dateTime, unix } from "./format.js";
import { empty, failed, loading, recall, remember, whenHeard } from "./page_state.js";
import { rampPanel } from "./ramp.js";
import { rollbackButton } from "./rollback.js";
import { roleNotice } from "./session.js";

const PAGE = 50;
/** So many lines are to be there before "Older changes" is offered: bans of an attack are one. */
const MIN_LINES = 10;
/** Pages that are looked through at once for them; the node looks at 2,000 changes for each. */
const MAX_PAGES = 10;
/** Measured at once when they come into view; others are when asked. */
const MAX_MEASURED = 30;
/** So far below the view. */
const AHEAD_PX = 300;
/** @type {[string, string][]} */
const KINDS = [["", "all changes"], ["rule", "rules"], ["ban", "bans"], ["allow", "allow list"], ["enforce", "panic switch"], ["ramp", "ramp steps"]];

/** @type {import("./main.js").Page} */
export function changes(place) {
  const stopping = new AbortController();
  const { signal } = stopping;
  const list = h("ol", { class: "changes" });
  const note = h("p", { class: "stale-note", role: "status" });
  const state = h("div", null, loading());
  const more = button("Older changes", () => void load());
  more.hidden = true;
  /** @type {string | null} */
  let before = null;
  let what = "";
  let turn = 0;
  let loadingTurn = -1;
  /** The last line, while it is of automatic bans. @type {AutomaticBans | null} */
  let bans = null;
  const effects = new Effects(signal);
  const kinds = select(KINDS, what, (value) => { what = value; restart(); }, { "aria-label": "Which changes" });

  const nodes = scopeSelect(restart);
  nodes.title = "on which nodes effects are measured";

  function restart() {
    turn++;
    before = null;
    more.hidden = true;
    bans = null;
    effects.clear();
    replace(list);
    replace(note);
    replace(state, loading());
    void load();
  }

  async function load() {
    const own = turn;
    if (loadingTurn === own) return; // a page would be there twice
    loadingTurn = own;
    const isFirst = before === null;
    const linesBefore = list.childElementCount;
    try {
      for (let pages = 1; ; pages++) {
        const page = await get(withQuery("/v1/audit", { limit: PAGE, before, what }), { signal });
        if (own !== turn) return;
        before = page.next;
        show(page.changes);
        if (isFirst && pages === 1) remember(`changes ${what}`, page.changes);
        if (list.childElementCount - linesBefore >= MIN_LINES || before === null || pages === MAX_PAGES) return;
      }
    } catch (why) {
      if (!signal.aborted && own === turn) notLoaded(why, isFirst);
    } finally {
      if (loadingTurn === own) loadingTurn = -1;
    }
  }

  /** @param {any[]} found */
  function show(found) {
    found.forEach(append);
    more.hidden = before === null;
    replace(state, list.childElementCount ? null : none(what, before !== null));
  }

  /** @param {any} change */
  function append(change) {
    if (!isAutomaticBan(change)) {
      bans = null;
      return list.append(item(change, restart, effects));
    }
    if (!bans) {
      bans = new AutomaticBans(restart);
      list.append(bans.element);
    }
    bans.add(change);
  }

  /** @param {unknown} why @param {boolean} isFirst */
  function notLoaded(why, isFirst) {
    const last = isFirst ? recall(`changes ${what}`, why) : undefined;
    if (last) {
      show(last.value);
      list.classList.add("old");
      replace(note, `Changes: last heard ${ago(last.at)} (${why instanceof Error ? why.message : why})`);
    } else {
      replace(state, failed(why, "Changes"));
    }
    if (isFirst) whenHeard(signal, () => { list.classList.remove("old"); restart(); });
  }

  place.append(rampPanel(signal, restart), h("div", { class: "toolbar" }, kinds, nodes), roleNotice("admin", "Reverting") ?? "", note, list, state, h("div", { class: "buttons" }, more));
  void load();
  return () => {
    stopping.abort();
    effects.clear();
  };
}

/** Measures changes one after the other, as they come into view: each takes several calls. */
class Effects {
  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.signal = signal;
    /** @type {Map<Element, () => Promise<void>>} */
    this.waiting = new Map();
    this.last = Promise.resolve();
    this.measured = 0;
    this.observer = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting) this.#measure(target);
    }, { rootMargin: `${AHEAD_PX}px` });
  }

  clear() {
    this.observer.disconnect();
    this.waiting.clear();
    this.measured = 0;
  }

  /** @param {Element} element @param {() => Promise<void>} measure */
  watch(element, measure) {
    this.waiting.set(element, measure);
    this.observer.observe(element);
  }

  /** @param {Element} element */
  #measure(element) {
    this.observer.unobserve(element);
    if (this.measured === MAX_MEASURED) return;
    this.measured++;
    this.last = this.last.then(() => {
      const measure = this.signal.aborted ? undefined : this.waiting.get(element);
      this.waiting.delete(element);
      return measure?.();
    });
  }
}

/** @param {string} what @param {boolean} hasOlder */
function none(what, hasOlder) {
  const [, kind] = KINDS.find(([each]) => each === what) ?? KINDS[0];
  if (what === "") return empty("No changes yet", "Every edit of rules, bans, the allow list and the panic switch is recorded here. Make one:", [adminCommand("rules apply rules.yaml")]);
  const searched = `Of the kind “${kind}”.`;
  return hasOlder ? empty("No such change among the latest", `${searched} Older ones are searched with the button below.`) : empty("No such change", `${searched} The log has none.`);
}

/** @param {any} change */
const isRamp = (change) => change.what === "setting" && change.name === "ramp";

/** What limits requests: its effect is measured without being asked for. @param {any} change */
const isOfLimits = (change) => change.what === "rule" || (change.what === "setting" && change.name === "enforce");

/** @param {any} change @param {() => void} restart @param {Effects} effects */
function item(change, restart, effects) {
  const at = unix(change.at);
  const effect = h("p", { class: "effect" });
  const measure = button("Effect", () => {
    effect.setAttribute("role", "status"); // read aloud when it was asked for
    void showEffect(effect, change, effects.signal);
  }, { class: "quiet", "aria-label": `Measured effect of change ${change.version}` });
  const element = h("li", { "data-version": change.version },
    h("div", { class: "change-head" },
      h("b", null, change.changes ? setTitle(change) : title(change)),
      h("span", { class: "muted", title: dateTime(at) }, `${dateTime(at)} (${ago(at)})`),
      h("span", null, `by ${change.who}`), h("span", { class: "muted" }, `version ${change.version}`),
      change.undoes && h("span", null, `reverts ${change.undoes}`),
      change.note && h("span", null, change.note),
      // A step of a ramp has no reversal of its own: the ramp is stopped, or its apply reverted.
      h("span", { class: "buttons" }, measure, isRamp(change) ? null : rollbackButton(change, restart))),
    effect, change.changes ? setLines(change) : lines(change));
  if (isOfLimits(change)) effects.watch(element, () => showEffect(effect, change, effects.signal));
  return element;
}

/** @param {any} change */
function title(change) {
  if (isRamp(change)) {
    const rules = (change.after ?? change.before)?.rules ?? [];
    const which = rules.length === 1 ? ` of rule ${rules[0]}` : rules.length ? ` of ${count(rules.length)} rules` : "";
    return change.after === null ? `ramp${which} ended` : change.before === null ? `ramp${which} began` : `ramp${which}: step to ${change.after.percent} %`;
  }
  if (change.what === "setting" && change.name === "enforce") return `panic switch ${change.after === null ? "reset" : `set to ${change.after}`}`;
  return `${change.what} ${change.name} ${verb(change)}`;
}

/** @param {any} change */
function lines(change) {
  if (!isRamp(change)) return changeLines(change.before, change.after);
  const share = (/** @type {any} */ ramp) => (ramp ? { enforced: `for ${ramp.percent} % of the keys` } : null);
  return changeLines(share(change.before), change.after === null ? { enforced: "no ramp" } : share(change.after));
}

/** @param {any} change */
function verb(change) {
  return change.before === null ? "created" : change.after === null ? "deleted" : "changed";
}

/** Several changes that were made together. @param {any} set */
function setTitle(set) {
  const counts = ["created", "changed", "deleted"].filter((name) => set[name] > 0).map((name) => `${set[name]} ${name}`);
  return `${set.what === "rule" ? "rules" : `${set.what}s`}: ${counts.join(", ")}`;
}

/** The first changes of a set. @param {any} set */
function setLines(set) {
  const more = set.created + set.changed + set.deleted - set.changes.length;
  return h("div", null,
    set.changes.map((/** @type {any} */ each) => h("div", null, h("p", null, title(each)), lines(each))),
    more > 0 && h("p", { class: "muted" }, `and ${more} more`));
}

/** @param {Element} place @param {any} change @param {AbortSignal} signal */
async function showEffect(place, change, signal) {
  replace(place, "Measuring…");
  try {
    replace(place, h("b", null, "Effect: "), await effectText(change, signal));
  } catch (why) {
    if (!signal.aborted) replace(place, failed(why, "Series"));
  }
}
