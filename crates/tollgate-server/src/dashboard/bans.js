// Bans and the allow list.

import { button, h, replace } from "./dom.js";
import { call, pages } from "./api.js";
import { adminCommand } from "./commands.js";
import { notice, openDialog } from "./dialog.js";
import { count, dateTime, duration, keyOrder, plural, unix } from "./format.js";
import { Loaded, empty } from "./page_state.js";
import { needs, roleNotice } from "./session.js";
import { Table } from "./table.js";
import { askAllow, askBan, askImport } from "./ban_form.js";

const MAX_ROWS = 100_000;
const REFRESH_MS = 5_000;
/** Three lines: of the key, and of what is below it. */
const NARROW_ROW_PX = 64;
/** The column by which bans are sorted at first. */
const TIME_LEFT = 2;
/** Beyond this the lists are loaded once, not polled. */
const MAX_POLLED = 1_000;

/** @type {import("./main.js").Page} */
export function bans(place) {
  const banned = bansPart();
  const allowed = allowPart();
  place.append(banned.element, allowed.element);
  return () => {
    banned.stop();
    allowed.stop();
  };
}

/** A list that is polled while it is short. @param {string} path @param {string} name @param {(rows: any[]) => void} show */
function listed(path, name, show) {
  /** @type {any[]} */
  let rows = [];
  const part = new Loaded(name, async (signal) => {
    /** @type {any[]} */
    let found = [];
    await pages(path, {}, (page) => {
      found = found.concat(page[name]);
      if (!rows.length && page.next) show(found); // a long list is shown while it is loaded
      return found.length < MAX_ROWS;
    }, signal);
    return found;
  }, (found) => {
    rows = found;
    show(rows);
  });
  const timer = setInterval(() => rows.length <= MAX_POLLED && part.poll(), REFRESH_MS);
  return { part, refresh: () => void part.refresh(), stop: () => { clearInterval(timer); part.stop(); } };
}

function bansPart() {
  /** @type {Set<string>} */
  const selected = new Set();
  /** @type {any[]} */
  let all = [];
  const total = h("span", { class: "muted" });
  const box = (/** @type {any} */ ban) => needs(h("input", { type: "checkbox", "aria-label": `Select ${ban.key}`, checked: selected.has(ban.key), disabled: ban.source === "file",
    onchange: (/** @type {Event} */ event) => { if (/** @type {HTMLInputElement} */ (event.target).checked) selected.add(ban.key); else selected.delete(ban.key); showSelection(); } }), "operate");
  const table = new Table("Bans in force", [
    { label: "Select", width: "2.6em", narrow: "2.2em", unlabelled: true, cell: box },
    { label: "Key", width: "", cell: (ban) => keyLines(ban.key, [timeLeft(ban), ban.strikes ? plural(ban.strikes, "strike") : "", ban.source].filter(Boolean).join(" · "), ban.reason), sort: (ban) => keyOrder(ban.key) },
    { label: "Time left", width: "9em", cell: (ban) => h("span", { title: ban.until ? dateTime(unix(ban.until)) : null }, timeLeft(ban)), sort: (ban) => (ban.until ? unix(ban.until) : Infinity), numeric: true, wide: true },
    { label: "Strikes", width: "6em", numeric: true, cell: (ban) => count(ban.strikes), sort: (ban) => ban.strikes, wide: true },
    { label: "Origin", width: "8em", cell: (ban) => ban.source, sort: (ban) => ban.source, wide: true },
    { label: "Reason", width: "16em", cell: (ban) => h("span", { title: ban.reason }, ban.reason), wide: true },
    { label: "Lift", width: "6em", narrow: "4em", unlabelled: true, cell: (ban) => lift(ban) },
  ], { narrowRowPx: NARROW_ROW_PX, rowKey: (ban) => ban.key, sortedBy: TIME_LEFT });
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter bans by key or reason", oninput: () => draw() });
  const bulk = h("button", { type: "button", onclick: () => liftSelected() }, "Lift selected…");
  const list = listed("/v1/bans", "bans", (rows) => {
    all = [...rows].sort((a, b) => compareText(keyOrder(a.key), keyOrder(b.key))); // of bans that end at the same time
    const known = new Set(rows.map((ban) => ban.key));
    selected.forEach((key) => known.has(key) || selected.delete(key));
    if (!table.element.isConnected) replace(list.part.body, state, table.element);
    draw();
  });
  const state = h("div");

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const rows = wanted ? all.filter((ban) => `${ban.key} ${ban.reason}`.toLowerCase().includes(wanted)) : all;
    table.setRows(rows);
    table.element.hidden = rows.length === 0;
    replace(total, wanted ? `${count(rows.length)} of ${count(all.length)} bans` : plural(all.length, "ban"));
    replace(state, rows.length ? null : wanted ? empty("No ban matches", "Keys and reasons are searched.") : empty("Nobody is banned", "Ban a key here, let a rule ban repeat offenders (ban: after), or run:", [adminCommand("ban add ip:203.0.113.9 --for 1h --reason scraping")]));
    showSelection();
  }

  function showSelection() {
    bulk.textContent = selected.size ? `Lift selected (${selected.size})…` : "Lift selected…";
    bulk.disabled = selected.size === 0;
    needs(bulk, "operate");
  }

  /** @param {any} ban */
  function lift(ban) {
    if (ban.source === "file") return h("span", { class: "muted", title: "it is in the configuration file" }, "in the file");
    return needs(button("Lift", () => confirmLift([ban.key]), { class: "quiet", "aria-label": `Lift the ban of ${ban.key}` }), "operate");
  }

  /** @param {string[]} keys */
  function confirmLift(keys) {
    const what = keys.length === 1 ? keys[0] : `${count(keys.length)} keys`;
    openDialog("Lift the ban?", h("p", null, h("b", null, what), " may send requests again, under the limits of the rules."), {
      action: "Lift",
      onaction: async () => {
        /** @type {string[]} */
        const failed = [];
        for (const key of keys) {
          try {
            await call("DELETE", `/v1/bans/${encodeURIComponent(key)}`);
            selected.delete(key);
          } catch (why) {
            failed.push(`${key}: ${why instanceof Error ? why.message : why}`);
          }
        }
        list.refresh();
        if (failed.length) throw new Error(`${failed.length} of ${keys.length} could not be lifted: ${failed.slice(0, 3).join("; ")}`);
        notice(`${what} may send requests again`);
      },
    });
  }

  const liftSelected = () => confirmLift([...selected]);
  const buttons = h("div", { class: "buttons" },
    needs(button("Ban a key…", () => askBan("", list.refresh), { class: "primary" }), "operate"), needs(button("Import…", () => askImport(list.refresh)), "operate"), bulk);
  showSelection();
  const element = h("section", { class: "panel", "aria-label": "Bans" },
    h("div", { class: "panel-head" }, h("h2", null, "Bans"), total), h("div", { class: "toolbar" }, filter, buttons), roleNotice("operate", "Banning"), list.part.element);
  const timer = setInterval(() => all.length <= MAX_POLLED && !table.element.contains(document.activeElement) && draw(), 1_000); // the time left
  return { element, stop: () => { clearInterval(timer); list.stop(); } };
}

/** A key and, on narrow screens, what other columns say of it. @param {string} key @param {...string} more */
function keyLines(key, ...more) {
  return h("div", { class: "key-lines" }, h("div", { class: "first-line key", title: key }, key), more.map((line) => h("div", { class: "second-line", title: line }, line)));
}

/** @param {string} a @param {string} b */
const compareText = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

/** @param {any} ban */
function timeLeft(ban) {
  if (!ban.until) return "permanent";
  const left = unix(ban.until) - Date.now() / 1000;
  return left > 0 ? duration(left) : "ending";
}

function allowPart() {
  const table = new Table("Allow list", [
    { label: "Key", width: "", cell: (entry) => keyLines(entry.key, entry.note ?? ""), sort: (entry) => keyOrder(entry.key) },
    { label: "Note", width: "18em", cell: (entry) => entry.note ?? "", wide: true },
    { label: "Origin", width: "8em", narrow: "5.5em", cell: (entry) => entry.source },
    { label: "Remove", width: "7em", narrow: "6em", unlabelled: true, cell: (entry) => (entry.source === "file" ? h("span", { class: "muted" }, "in the file") : needs(button("Remove", () => confirmRemove(entry.key), { class: "quiet", "aria-label": `Remove ${entry.key}` }), "admin")) },
  ], { narrowRowPx: NARROW_ROW_PX, rowKey: (entry) => entry.key });
  const total = h("span", { class: "muted" });
  const list = listed("/v1/allow", "allow", (rows) => {
    table.setRows(rows);
    replace(total, plural(rows.length, "key"));
    replace(list.part.body, rows.length ? table.element : empty("The allow list is empty", "Keys on it always pass, without a limit:", [adminCommand("allow add ip:10.0.0.0/8 --note office")]));
  });

  /** @param {string} key */
  function confirmRemove(key) {
    openDialog("Remove from the allow list?", h("p", null, h("b", null, key), " is limited like all others from then on."), {
      action: "Remove", danger: true,
      onaction: async () => {
        await call("DELETE", `/v1/allow/${encodeURIComponent(key)}`);
        list.refresh();
        notice(`${key} was removed from the allow list`);
      },
    });
  }

  const add = needs(button("Allow a key…", () => askAllow(list.refresh)), "admin");
  const element = h("section", { class: "panel", "aria-label": "Allow list" },
    h("div", { class: "panel-head" }, h("h2", null, "Allow list"), total), h("div", { class: "toolbar" }, add), roleNotice("admin", "Changing the allow list"), list.part.element);
  return { element, stop: list.stop };
}
