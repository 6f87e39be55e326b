// Charts as SVG: stacked areas over time, sparklines, bars. Each series has a pattern and a label besides its colour.

import { button, h, replace, s } from "./dom.js";
import { clock, clockMinutes, compact, count, dateTime, plural } from "./format.js";
import { Table } from "./table.js";

/** @typedef {Record<string, number> & { at: number }} Point */
/**
 * @typedef {object} Series
 * @property {string} key
 * @property {string} label
 * @property {string} [short] the label in the head of the table
 * @property {boolean} [line] a line of its own instead of a part of the stack
 */
/** @typedef {{ at: number, version: string, action: string }} Change */

const HEIGHT_PX = 220;
const LEFT_PX = 48;
const RIGHT_PX = 12;
const TOP_PX = 18;
const BOTTOM_PX = 24;
/** Changes that are nearer than this have one mark. */
const MARK_PX = 16;
/** Changes that a mark names. */
const MAX_NAMED = 5;

/** The steps of an axis: 1, 2 or 5 times a power of ten. @param {number} max */
export function ticks(max) {
  const rough = Math.max(max, 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough);
  const top = Math.max(step, Math.ceil(max / step) * step);
  return Array.from({ length: Math.round(top / step) + 1 }, (_, number) => number * step);
}

/** @param {number} span seconds @param {number} width */
function timeStep(span, width) {
  const rough = span / Math.max(2, width / 110);
  const steps = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800];
  return steps.find((step) => step >= rough) ?? 604_800;
}

/** @param {number} at @param {number} span */
function timeLabel(at, span) {
  if (span <= 1800) return clock(at);
  return span <= 2 * 86_400 ? clockMinutes(at) : dateTime(at).slice(5, 10);
}

export class StackedChart {
  /** @param {string} title @param {Series[]} series */
  constructor(title, series) {
    this.title = title;
    this.series = series;
    /** @type {Point[]} */
    this.points = [];
    /** @type {Change[]} */
    this.changes = [];
    this.unit = "/s";
    this.plot = h("div", { class: "plot", onpointermove: (/** @type {PointerEvent} */ event) => this.#point(event), onpointerleave: () => this.#unpoint() });
    this.tip = h("div", { class: "tip", "aria-hidden": "true" });
    this.tip.hidden = true;
    this.table = new Table(`${title} as a table`, [
      { label: "Time", width: "", cell: (point) => dateTime(point.at), sort: (point) => point.at },
      ...series.map((each) => ({ label: titled(each.short ?? each.label), width: "8.5em", narrow: "4.6em", cell: (/** @type {Point} */ point) => count(point[each.key] ?? 0), sort: (/** @type {Point} */ point) => point[each.key] ?? 0, numeric: true })),
    ], { rowKey: (point) => String(point.at) });
    this.changeList = h("div");
    this.tableBox = h("div", { class: "chart-table" }, this.changeList, this.table.element);
    this.tableBox.hidden = true;
    this.toggle = button("View as table", () => this.#toggleTable(), { class: "quiet", "aria-expanded": "false" });
    const legend = [...series.map((each) => h("li", null, swatch(each.key), each.label)), h("li", null, changeSwatch(), "change")];
    this.element = h("figure", { class: "chart" },
      h("figcaption", null, h("ul", { class: "legend" }, legend), this.toggle),
      h("div", { class: "plot-box" }, this.plot, this.tip), this.tableBox);
    new ResizeObserver(() => this.#draw()).observe(this.plot);
  }

  /** @param {Point[]} points @param {Change[]} changes @param {string} unit */
  update(points, changes, unit) {
    this.points = points;
    this.changes = changes;
    this.unit = unit;
    this.#draw();
    if (!this.tableBox.hidden) this.#drawTable();
  }

  #toggleTable() {
    this.tableBox.hidden = !this.tableBox.hidden;
    this.toggle.textContent = this.tableBox.hidden ? "View as table" : "Hide table";
    this.toggle.setAttribute("aria-expanded", String(!this.tableBox.hidden));
    if (!this.tableBox.hidden) this.#drawTable();
  }

  /** Every point of the chart, newest first. */
  #drawTable() {
    const changes = this.points.length < 2 ? [] : this.#shownChanges().reverse();
    replace(this.changeList, changes.length > 0 && [h("h3", null, "Changes in this time"), h("ul", { class: "lines" }, changes.map((each) => h("li", null, h("time", null, dateTime(each.at)), `${each.action}, version ${each.version}`)))]);
    this.table.setRows([...this.points].reverse());
  }

  #scales() {
    const width = Math.max(200, this.plot.clientWidth);
    const first = this.points[0].at;
    const last = Math.max(first + 1, this.points[this.points.length - 1].at);
    const stack = this.series.filter((each) => !each.line);
    const lines = this.series.filter((each) => each.line);
    const total = (/** @type {Point} */ point) => stack.reduce((sum, each) => sum + (point[each.key] ?? 0), 0);
    const max = this.points.reduce((most, point) => Math.max(most, total(point), ...lines.map((each) => point[each.key] ?? 0)), 0);
    const steps = ticks(max);
    const top = steps[steps.length - 1];
    const x = (/** @type {number} */ at) => LEFT_PX + ((at - first) / (last - first)) * (width - LEFT_PX - RIGHT_PX);
    const y = (/** @type {number} */ value) => TOP_PX + (1 - value / top) * (HEIGHT_PX - TOP_PX - BOTTOM_PX);
    return { width, first, last, stack, lines, steps, x, y };
  }

  #draw() {
    if (this.points.length < 2 || !this.plot.clientWidth) return;
    const { width, first, last, stack, lines, steps, x, y } = this.#scales();
    const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT_PX}`, width, height: HEIGHT_PX, role: "img", "aria-label": this.#summary() });
    for (const step of steps) {
      svg.append(s("line", { class: "grid", x1: LEFT_PX, x2: width - RIGHT_PX, y1: y(step), y2: y(step) }));
      svg.append(s("text", { class: "tick", x: LEFT_PX - 8, y: y(step) + 4, "text-anchor": "end" }, compact(step)));
    }
    svg.append(s("text", { class: "tick", x: LEFT_PX - 8, y: 9, "text-anchor": "end" }, this.unit));
    const step = timeStep(last - first, width);
    for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
      const anchor = x(at) > width - 40 ? "end" : x(at) < LEFT_PX + 30 ? "start" : "middle";
      svg.append(s("text", { class: "tick", x: x(at), y: HEIGHT_PX - 6, "text-anchor": anchor }, timeLabel(at, last - first)));
    }
    const below = this.points.map(() => 0);
    for (const each of stack) {
      const bottom = [...below];
      this.points.forEach((point, number) => {
        below[number] += point[each.key] ?? 0;
      });
      const upper = this.points.map((point, number) => `${x(point.at).toFixed(1)},${y(below[number]).toFixed(1)}`);
      const lower = this.points.map((point, number) => `${x(point.at).toFixed(1)},${y(bottom[number]).toFixed(1)}`).reverse();
      const area = `M${upper.join("L")}L${lower.join("L")}Z`;
      svg.append(s("path", { class: `area ${each.key}`, d: area }));
      if (each.key !== "allowed") svg.append(pattern(each.key), s("path", { d: area, fill: `url(#hatch-${each.key})` }));
      svg.append(s("path", { class: `edge ${each.key}`, d: edge(this.points, each.key, upper) }));
    }
    for (const each of lines) {
      const path = this.points.map((point) => `${x(point.at).toFixed(1)},${y(point[each.key] ?? 0).toFixed(1)}`);
      svg.append(s("path", { class: `edge dashed ${each.key}`, d: edge(this.points, each.key, path) }));
    }
    this.#drawChanges(svg, x);
    svg.append(s("line", { class: "cross", id: "cross", y1: TOP_PX, y2: HEIGHT_PX - BOTTOM_PX, visibility: "hidden" }));
    replace(this.plot, svg);
  }

  /** The changes in the time of the chart, the last step included: its point is at its start. */
  #shownChanges() {
    const first = this.points[0].at;
    const last = this.points[this.points.length - 1].at;
    const step = this.points[1].at - first;
    return this.changes.filter((each) => each.at >= first && each.at < last + step);
  }

  /** Changes that are close to each other, and their place. @param {(at: number) => number} x @returns {{ at: number, changes: Change[] }[]} */
  #marks(x) {
    const last = this.points[this.points.length - 1].at;
    /** @type {{ at: number, changes: Change[] }[]} */
    const marks = [];
    for (const change of this.#shownChanges()) {
      const at = x(Math.min(change.at, last));
      const previous = marks.at(-1);
      if (previous && at - previous.at < MARK_PX) previous.changes.push(change);
      else marks.push({ at, changes: [change] });
    }
    return marks;
  }

  /** @param {SVGElement} svg @param {(at: number) => number} x */
  #drawChanges(svg, x) {
    for (const { at, changes } of this.#marks(x)) {
      const number = changes.length > 1 ? s("text", { class: "change-count", x: at, y: 9, "text-anchor": "middle" }, String(changes.length)) : null;
      const mark = number
        ? s("rect", { class: "change-mark", x: at - 8, y: 0, width: 16, height: 12, rx: 3 }, s("title", null, namesOf(changes).join("\n")))
        : s("path", { class: "change-mark", d: `M${at - 5},3L${at + 5},3L${at},12Z` }, s("title", null, namesOf(changes).join("\n")));
      svg.append(s("line", { class: "change-line", x1: at, x2: at, y1: 12, y2: HEIGHT_PX - BOTTOM_PX }), mark);
      if (number) svg.append(number);
    }
  }

  #summary() {
    const last = this.points[this.points.length - 1];
    const values = this.series.map((each) => `${each.label} ${count(last[each.key] ?? 0)}`);
    return `${this.title}, ${this.points.length} points; the latest: ${values.join(", ")}. ${plural(this.#shownChanges().length, "change")}.`;
  }

  /** @param {PointerEvent} event */
  #point(event) {
    if (this.points.length < 2) return;
    const { x, width } = this.#scales();
    const box = this.plot.getBoundingClientRect();
    const at = event.clientX - box.left;
    const nearest = this.points.reduce((best, point) => (Math.abs(x(point.at) - at) < Math.abs(x(best.at) - at) ? point : best));
    const line = this.plot.querySelector("#cross");
    line?.setAttribute("x1", String(x(nearest.at)));
    line?.setAttribute("x2", String(x(nearest.at)));
    line?.setAttribute("visibility", "visible");
    const values = this.series.map((each) => h("div", null, swatch(each.key), `${each.label}: `, h("b", null, count(nearest[each.key] ?? 0))));
    const mark = this.#marks(x).find((each) => Math.abs(each.at - x(nearest.at)) < MARK_PX / 2);
    const changes = mark ? namesOf(mark.changes).map((name) => h("div", { class: "change-name" }, `▼ ${name}`)) : [];
    replace(this.tip, h("div", { class: "muted" }, dateTime(nearest.at)), values, changes);
    this.tip.hidden = false;
    this.tip.classList.toggle("left", x(nearest.at) > width / 2);
    this.tip.style.left = `${x(nearest.at)}px`;
  }

  #unpoint() {
    this.tip.hidden = true;
    this.plot.querySelector("#cross")?.setAttribute("visibility", "hidden");
  }
}

/** @param {string} label */
const titled = (label) => label.charAt(0).toUpperCase() + label.slice(1);

/** What changes did, the latest of many. @param {Change[]} changes */
function namesOf(changes) {
  const named = changes.slice(-MAX_NAMED).map((each) => `${each.action}, version ${each.version}`);
  const more = changes.length - named.length;
  return more > 0 ? [`${plural(more, "earlier change")}`, ...named] : named;
}

/** The upper edge of an area, interrupted where the area is empty. @param {Point[]} points @param {string} key @param {string[]} upper */
function edge(points, key, upper) {
  const filled = points.map((point) => (point[key] ?? 0) > 0);
  const near = (/** @type {number} */ at) => filled[at - 1] || filled[at] || filled[at + 1];
  return upper.map((at, number) => (near(number) ? `${number > 0 && near(number - 1) ? "L" : "M"}${at}` : "")).join("");
}

/** @param {string} key */
function pattern(key) {
  const turn = key === "banned" ? 135 : 45;
  return s("defs", null, s("pattern", { id: `hatch-${key}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` },
    s("line", { class: `hatch ${key}`, x1: 0, y1: 0, x2: 0, y2: 6 })));
}

/** @param {string} key */
function swatch(key) {
  return s("svg", { class: `swatch ${key}`, width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" },
    key === "shadow_denied" ? s("path", { class: `edge dashed ${key}`, d: "M0,6H12" }) : s("rect", { class: `area ${key}`, width: 12, height: 12, rx: 2 }),
    key === "denied" ? s("path", { class: `hatch ${key}`, d: "M0,8L8,0M4,12L12,4" }) : null,
    key === "banned" ? s("path", { class: `hatch ${key}`, d: "M4,0L12,8M0,4L8,12" }) : null);
}

function changeSwatch() {
  return s("svg", { class: "swatch", width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, s("path", { class: "change-mark", d: "M1,1L11,1L6,10Z" }));
}

/**
 * The last minute of a rule: a line of all requests, and bars of the denied ones.
 * @param {[denied: number, allowed: number][]} pairs
 */
export function sparkline(pairs) {
  const width = 100;
  const height = 22;
  const max = Math.max(1, ...pairs.map(([denied, allowed]) => denied + allowed));
  const x = (/** @type {number} */ number) => (number / Math.max(1, pairs.length - 1)) * (width - 2) + 1;
  const y = (/** @type {number} */ value) => height - 2 - (value / max) * (height - 4);
  const line = pairs.map(([denied, allowed], number) => `${x(number).toFixed(1)},${y(denied + allowed).toFixed(1)}`);
  const bars = pairs.flatMap(([denied], number) => (denied ? [`M${x(number).toFixed(1)},${height - 1}V${y(denied).toFixed(1)}`] : []));
  const sums = pairs.reduce(([a, b], [denied, allowed]) => [a + denied, b + allowed], [0, 0]);
  const label = `last minute: ${count(sums[1])} passed, ${count(sums[0])} limited`;
  return s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    s("title", null, label),
    s("path", { class: "spark-bars", d: bars.join("") }),
    line.length > 1 ? s("path", { class: "spark-line", d: `M${line.join("L")}` }) : null);
}

/**
 * How much of a limit is used: a bar for each tenth of the requests, in order.
 * @param {number[]} deciles the largest share of the limit that the first tenth of the requests uses, the first two, …
 */
export function decileStrip(deciles) {
  const width = 50;
  const height = 16;
  const step = width / deciles.length;
  const level = (/** @type {number} */ share) => (share >= 1 ? "full" : share >= 0.8 ? "near" : "");
  const bars = deciles.map((share, number) => {
    const size = Math.max(1, Math.min(1, share) * height);
    return s("rect", { class: `bar-part ${level(share)}`, x: number * step, y: height - size, width: step - 1, height: size });
  });
  return s("svg", { class: "strip", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    s("rect", { class: "bar-back", width: width - 1, height }), bars);
}

/**
 * A bar with its value as text beside it.
 * @param {number} part from 0 to 1
 * @param {string} label
 */
export function bar(part, label) {
  const share = Math.max(0, Math.min(1, part));
  const level = share >= 1 ? "full" : share >= 0.8 ? "near" : "";
  return h("span", { class: "bar" },
    s("svg", { class: "bar-svg", width: 72, height: 8, viewBox: "0 0 72 8", "aria-hidden": "true" },
      s("rect", { class: "bar-back", width: 72, height: 8, rx: 2 }), s("rect", { class: `bar-part ${level}`, width: 72 * share, height: 8, rx: 2 })),
    h("span", null, label));
}
