// A table of any length: only the rows in view are in the document.

import { h, replace } from "./dom.js";

const ROW_PX = 36;
const OVERSCAN_ROWS = 12;
const NEAR_END_ROWS = 200;
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

/** @template R */
export class Table {
  /**
   * @param {string} caption
   * @param {Column<R>[]} columns
   * @param {{ onend?: () => void, tall?: boolean, rowClass?: (row: R) => string | null, narrowRowPx?: number }} [options] `onend`: the last loaded
   *   rows come into view; `narrowRowPx`: the height of a row on narrow screens, for a second line
   */
  constructor(caption, columns, options = {}) {
    this.columns = columns;
    this.options = options;
    /** @type {R[]} */
    this.rows = [];
    /** @type {R[]} */
    this.given = [];
    this.sorted = -1;
    this.descending = true;
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
    return h("th", { scope: "col", class: this.#cellClass(column) }, content);
  }

  /** @param {number} number */
  #sortBy(number) {
    this.descending = this.sorted === number ? !this.descending : Boolean(this.columns[number].numeric);
    this.sorted = number;
    this.headings.forEach((heading, each) => {
      if (each === number) heading.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    this.setRows(this.given);
  }

  get #rowPx() {
    return NARROW.matches ? (this.options.narrowRowPx ?? ROW_PX) : ROW_PX;
  }

  /** @param {R[]} rows */
  setRows(rows) {
    this.given = rows;
    const by = this.columns[this.sorted]?.sort;
    this.rows = by ? [...rows].sort((a, b) => compare(by(a), by(b)) * (this.descending ? -1 : 1)) : rows;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.first = -1;
    this.#draw();
  }

  #draw() {
    const height = this.element.clientHeight || 600;
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.#rowPx) - OVERSCAN_ROWS);
    const last = Math.min(this.rows.length, Math.ceil((top + height) / this.#rowPx) + OVERSCAN_ROWS);
    if (last > this.rows.length - NEAR_END_ROWS) this.options.onend?.();
    if (first === this.first && last === this.last) return;
    this.first = first;
    this.last = last;
    const focused = this.#focusedCell();
    const rows = this.rows.slice(first, last).map((row, number) => this.#row(row, first + number));
    replace(this.body, this.#space(first), rows, this.#space(this.rows.length - last));
    focused?.();
  }

  /** Keeps the focus where it is while rows are drawn again. */
  #focusedCell() {
    const active = document.activeElement;
    const row = active?.closest("tr");
    if (!active || !row || !this.body.contains(row)) return null;
    const index = row.getAttribute("aria-rowindex");
    const at = [...row.querySelectorAll("a, button, input")].indexOf(active);
    return () => {
      const same = this.body.querySelector(`tr[aria-rowindex="${index}"]`);
      const control = same?.querySelectorAll("a, button, input")[at];
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

/** @param {string | number} a @param {string | number} b */
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return (Number.isNaN(a) ? -1 : a) - (Number.isNaN(b) ? -1 : b);
  return String(a).localeCompare(String(b));
}
