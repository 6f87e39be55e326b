// The states of a page: loading, ready, empty, stale, not available, not allowed.

import { button, copyable, h, replace } from "./dom.js";
import { Problem, onHeard, onToken, signIn } from "./api.js";
import { ago } from "./format.js";
import { lastHeard } from "./status.js";

/**
 * @param {string} title
 * @param {string} text
 * @param {string[]} [commands] what to run, to be copied
 */
export function empty(title, text, commands = []) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, text), commands.map(copyable));
}

/** How long a call that the node does not have is not repeated. */
const MISSING_MS = 30_000;

export const loading = () => h("p", { class: "loading" }, "Loading…");

/** A call that this node does not have. @param {string} what */
export function unavailable(what) {
  return h("div", { class: "empty" },
    h("p", { class: "empty-title" }, `${what}: not available on this node`),
    h("p", null, "The node runs a version, or a configuration, without this call."));
}

/** Why a part of a page cannot be shown. @param {unknown} why @param {string} what */
export function failed(why, what) {
  if (!(why instanceof Problem)) return h("p", { class: "error-text" }, `${what}: ${why instanceof Error ? why.message : why}`);
  if (why.isMissing) return unavailable(what);
  if (why.status === 401) {
    return h("div", { class: "empty" },
      h("p", { class: "empty-title" }, "Sign in to see this"),
      button("Enter a token", () => void signIn(), { class: "primary" }));
  }
  return h("p", { class: "error-text", role: "alert" }, `${what}: ${why.message}`);
}

/** In the place of what the node would have said. @param {string} what */
export function unanswered(what) {
  const at = lastHeard();
  return h("p", { class: "error-text" }, `${what}: the node does not answer${at === null ? "" : `, last heard ${ago(at)}`}.`);
}

/** Calls it when the node answers again. @param {AbortSignal} signal ends the waiting @param {() => void} again */
export function whenHeard(signal, again) {
  const end = onHeard(() => {
    end();
    if (!signal.aborted) again();
  });
}

const MAX_REMEMBERED = 60;
/** What pages showed last, for one that is opened while the node does not answer. @type {Map<string, { value: any, at: number }>} */
const remembered = new Map();
onToken(() => remembered.clear());

/** @param {string} key @param {any} value */
export function remember(key, value) {
  remembered.delete(key);
  remembered.set(key, { value, at: Date.now() / 1000 });
  const [oldest] = remembered.keys();
  if (remembered.size > MAX_REMEMBERED) remembered.delete(oldest);
}

/** What was remembered, if the node did not answer. @param {string} key @param {unknown} why */
export function recall(key, why) {
  return why instanceof Problem && why.status === 0 ? remembered.get(key) : undefined;
}

/**
 * Loads a part of a page, and again at an interval. A failure leaves the last answer there, greyed, with its age, also
 * that of an earlier visit; without one it is shown in its place.
 */
export class Loaded {
  /**
   * @param {string} what the name of the part, for messages
   * @param {(signal: AbortSignal) => Promise<any>} load
   * @param {(value: any) => void} show puts the value into `body`
   * @param {number} [everyMs]
   * @param {() => string} [choice] what the user has chosen to see of it
   */
  constructor(what, load, show, everyMs, choice = () => "") {
    this.what = what;
    this.choice = choice;
    this.page = location.hash.replace(/^#\/(?:overview)?$/, "");
    this.shownKey = "";
    this.load = load;
    this.show = show;
    this.note = h("p", { class: "stale-note", role: "status" });
    this.body = h("div", { class: "loaded" }, loading());
    this.element = h("div", null, this.note, this.body);
    this.stopping = new AbortController();
    this.loadedAt = 0;
    this.turn = 0;
    this.missingUntil = 0;
    this.inFlight = 0;
    this.timer = everyMs ? setInterval(() => this.poll(), everyMs) : 0;
    this.unsubscribe = onToken(() => void this.refresh());
    void this.refresh();
  }

  /** Loads again, unless an answer is awaited: a slow node would never be shown. */
  poll() {
    if (this.inFlight === 0 && Date.now() >= this.missingUntil) void this.refresh();
  }

  async refresh() {
    const turn = ++this.turn;
    const key = `${this.page}|${this.what}|${this.choice()}`;
    this.inFlight++;
    try {
      const value = await this.load(this.stopping.signal);
      if (this.stopping.signal.aborted || turn !== this.turn) return;
      if (!this.loadedAt) replace(this.body);
      this.loadedAt = Date.now() / 1000;
      this.shownKey = key;
      remember(key, value);
      this.body.classList.remove("old");
      replace(this.note);
      this.show(value);
    } catch (why) {
      if (this.stopping.signal.aborted || turn !== this.turn) return;
      if (why instanceof Problem && why.isMissing) this.missingUntil = Date.now() + MISSING_MS;
      if (key !== this.shownKey) {
        const last = recall(key, why);
        replace(this.note);
        this.body.classList.remove("old");
        if (!last) {
          this.loadedAt = 0;
          this.shownKey = "";
          return replace(this.body, failed(why, this.what));
        }
        this.loadedAt = last.at;
        this.shownKey = key;
        replace(this.body);
        this.show(last.value);
      }
      this.body.classList.add("old");
      replace(this.note, `${this.what}: last heard ${ago(this.loadedAt)} (${why instanceof Error ? why.message : why})`);
    } finally {
      this.inFlight--;
    }
  }

  stop() {
    clearInterval(this.timer);
    this.unsubscribe();
    this.stopping.abort();
  }
}
