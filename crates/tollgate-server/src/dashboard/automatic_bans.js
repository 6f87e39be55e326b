// Bans that rules made, one after the other: one line of the log of changes, which opens.

import { h, replace } from "./dom.js";
import { clock, count, dateTime, unix } from "./format.js";
import { keyLink } from "./key_tables.js";
import { rollbackButton } from "./rollback.js";

/** The author of what rules do by themselves. */
const AUTHOR = "tollgate";
/** Rules that the line names. */
const MAX_NAMED = 3;

/** @param {any} change */
export const isAutomaticBan = (change) => change.what === "ban" && change.who === AUTHOR && !change.changes;

export class AutomaticBans {
  /** @param {() => void} done a ban was reverted */
  constructor(done) {
    this.done = done;
    /** @type {any[]} newest first */
    this.changes = [];
    /** The rules that banned. @type {Set<string>} */
    this.rules = new Set();
    this.title = h("b");
    this.time = h("span", { class: "muted" });
    this.reason = h("span", { class: "muted" });
    this.list = h("ul", { class: "lines" });
    this.element = h("li", { class: "automatic" }, h("details", null, h("summary", null, this.title, " ", this.time, " ", this.reason), this.list));
  }

  /** @param {any} change the next older one */
  add(change) {
    this.changes.push(change);
    const ban = change.after ?? change.before;
    this.list.append(h("li", { "data-version": change.version },
      h("time", null, clock(unix(change.at))), keyLink(null, change.name), h("span", { class: "muted grow" }, [verb(change), ban?.reason, ban?.until && `until ${dateTime(unix(ban.until))}`].filter(Boolean).join(", ")),
      rollbackButton(change, this.done)));
    const number = this.changes.length;
    replace(this.title, number === 1 ? `automatic ban of ${change.name}` : `${count(number)} automatic bans`);
    replace(this.time, period(unix(change.at), unix(this.changes[0].at)));
    const rule = /by rule (\S+)$/.exec(ban?.reason ?? "")?.[1];
    if (rule) this.rules.add(rule);
    replace(this.reason, this.rules.size > 0 && `by rule ${[...this.rules].slice(0, MAX_NAMED).join(", ")}${this.rules.size > MAX_NAMED ? " and others" : ""}`);
  }
}

/** @param {any} change */
const verb = (change) => (change.before === null ? null : change.after === null ? "ended" : "again");

/** @param {number} from @param {number} to */
function period(from, to) {
  const [start, end] = [dateTime(from), dateTime(to)];
  if (start === end) return start;
  return start.slice(0, 10) === end.slice(0, 10) ? `${start} – ${end.slice(11)}` : `${start} – ${end}`;
}
