// A table of any length: only the rows in view are in the document.

import { h, replace } from "./dom.js";

const ROW_PX = 36;
const OVERSCAN_ROWS = 12;
const NEAR_END_ROWS = 200;
/** So many rows are shown at their full height on narrow screens: a list that scrolls inside a page that does is awkward. */
const SHORT_ROWS = 30;
const NARROW = matchMedia("(max-width: 720px)");

/**
 * @template R
 * @typedef {object} Column
 * @property {string} label
 * @property {string} width a CSS length, or "" for the rest
 * @property {(row: R) => import("./dom.js").Child | import("./dom.js").Child[]} cell
 * @property {(row: R) => string | number} [sort]
 * @property {string} [narrow] the width on narrow screens
 * @property {boolean} [numeric]
 * @property {boolean} [wide] left out on narrow screens
 * @property {boolean} [unlabelled] the label is for screen readers only
 */

/**
 * @template R
 * @typedef {object} TableOptions
 * @property {() => void} [onend] the last loaded rows come into view
 * @property {boolean} [tall]
 * @property {(row: R) => string | null} [rowClass]
 * @property {number} [narrowRowPx] the height of a row on narrow screens, for further lines
 * @property {(row: R) => string} [rowKey] what stays the same when the row is loaded again: the focus follows it
 * @property {number} [sortedBy] the column by which rows are sorted at first, ascending
 */

/** @template R */
export class Table {
  /**
   * @param {string} caption
   * @param {Column<R>[]} columns
   * @param {TableOptions<R>} [options]
   */
  constructor(caption, columns, options = {}) {
    this.columns = columns;
    this.options = options;
    /** @type {R[]} */
    this.rows = [];
    /** @type {R[]} */
    this.given = [];
    this.sorted = options.sortedBy ?? -1;
    this.descending = options.sortedBy === undefined;
    this.headings = columns.map((column, number) => this.#heading(column, number));
    this.body = h("tbody");
    this.table = h("table", { class: options.narrowRowPx ? "virtual two-lines" : "virtual" },
      h("caption", { class: "hidden" }, caption),
      h("colgroup", null, columns.map((column) => this.#col(column))),
      h("thead", null, h("tr", null, this.headings)),
      this.body);
    if (options.narrowRowPx) this.table.style.setProperty("--narrow-row", `${options.narrowRowPx}px`);
    this.element = h("div", { class: options.tall === false ? "scroll" : "scroll tall", tabindex: "0", role: "region", "aria-label": caption, onscroll: () => this.#draw() }, this.table);
    this.first = -1;
    this.last = -1;
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** @param {Column<R>} column */
  #col(column) {
    const col = h("col", { class: column.wide ? "wide-only" : null });
    const width = NARROW.matches ? (column.narrow ?? column.width) : column.width;
    if (width) col.style.width = width;
    return col;
  }

  /** @param {Column<R>} column */
  #cellClass(column) {
    return [column.numeric && "number", column.wide && "wide-only"].filter(Boolean).join(" ") || null;
  }

  /** @param {Column<R>} column @param {number} number */
  #heading(column, number) {
    const label = column.unlabelled ? h("span", { class: "hidden" }, column.label) : column.label;
    const content = column.sort ? h("button", { type: "button", class: "sort", onclick: () => this.#sortBy(number) }, column.label) : label;
    const direction = number === this.sorted ? "ascending" : null;
    return h("th", { scope: "col", class: this.#cellClass(column), "aria-sort": direction }, content);
  }

  /** @param {number} number */
  #sortBy(number) {
    this.descending = this.sorted === number ? !this.descending : Boolean(this.columns[number].numeric);
    this.sorted = number;
    this.headings.forEach((heading, each) => {
      if (each === number) heading.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    this.element.scrollTop = 0;
    this.setRows(this.given);
  }

  get #rowPx() {
    return NARROW.matches ? (this.options.narrowRowPx ?? ROW_PX) : ROW_PX;
  }

  /** @param {R[]} rows */
  setRows(rows) {
    const focused = this.#focusedCell();
    this.given = rows;
    const by = this.columns[this.sorted]?.sort;
    this.rows = by ? sorted(rows, by, this.descending) : rows;
    this.element.classList.toggle("short", rows.length <= SHORT_ROWS);
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.first = -1;
    this.#draw(focused);
  }

  /** @param {(() => void) | null} [focused] puts the focus back, if that is not to be found out here */
  #draw(focused) {
    const height = this.element.clientHeight || 600;
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.#rowPx) - OVERSCAN_ROWS);
    const last = Math.min(this.rows.length, Math.ceil((top + height) / this.#rowPx) + OVERSCAN_ROWS);
    if (last > this.rows.length - NEAR_END_ROWS) this.options.onend?.();
    if (first === this.first && last === this.last) return;
    this.first = first;
    this.last = last;
    const refocus = focused === undefined ? this.#focusedCell() : focused;
    const rows = this.rows.slice(first, last).map((row, number) => this.#row(row, first + number));
    replace(this.body, this.#space(first), rows, this.#space(this.rows.length - last));
    refocus?.();
  }

  /**
   * Keeps the focus where it is while rows are drawn again: on the same control of the same row, wherever that is now. If
   * it is out of view, the list has the focus, so that the keyboard goes on there.
   */
  #focusedCell() {
    const active = document.activeElement;
    const row = active?.closest("tr");
    if (!active || !row || !this.body.contains(row)) return null;
    const index = Number(row.getAttribute("aria-rowindex")) - 2;
    const { rowKey } = this.options;
    const key = rowKey && index in this.rows ? rowKey(this.rows[index]) : null;
    const at = [...row.querySelectorAll("a, button, input")].indexOf(active);
    return () => {
      const now = rowKey && key !== null ? this.rows.findIndex((each) => rowKey(each) === key) : index;
      const same = this.body.querySelector(`tr[aria-rowindex="${now + 2}"]`);
      const control = same?.querySelectorAll("a, button, input")[at] ?? this.element;
      if (control instanceof HTMLElement) control.focus({ preventScroll: true });
    };
  }

  /** @param {R} row @param {number} index */
  #row(row, index) {
    const cells = this.columns.map((column) => h("td", { class: this.#cellClass(column) }, column.cell(row)));
    return h("tr", { "aria-rowindex": String(index + 2), class: this.options.rowClass?.(row) }, cells);
  }

  /** @param {number} rows */
  #space(rows) {
    if (rows <= 0) return null;
    const shown = this.columns.filter((column) => !(column.wide && NARROW.matches));
    const cell = h("td", { colspan: String(shown.length) }); // a wider one would add columns
    cell.style.height = `${rows * this.#rowPx}px`;
    return h("tr", { "aria-hidden": "true", class: "space" }, cell);
  }
}

/**
 * A sorted copy. What is sorted by is computed once for each row.
 * @template R
 * @param {R[]} rows
 * @param {(row: R) => string | number} by
 * @param {boolean} descending
 */
function sorted(rows, by, descending) {
  const sign = descending ? -1 : 1;
  const pairs = rows.map((row) => ({ row, value: by(row) }));
  return pairs.sort((a, b) => sign * compare(a.value, b.value)).map(({ row }) => row);
}

const WORDS = new Intl.Collator("en");

/** @param {string | number} a @param {string | number} b */
function compare(a, b) {
  if (typeof a !== "number" || typeof b !== "number") return WORDS.compare(String(a), String(b));
  const left = Number.isNaN(a) ? -1 : a;
  const right = Number.isNaN(b) ? -1 : b;
  return left < right ? -1 : left > right ? 1 : 0; // a difference of infinities is not a number
}
