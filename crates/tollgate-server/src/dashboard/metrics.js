// The metrics page (OpenMetrics text) as values.

import { get } from "./api.js";

/** @typedef {Map<string, { labels: Record<string, string>, value: number }[]>} Metrics */

const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)/;
const LABEL = /([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"/g;

/** @param {string} text @returns {Metrics} */
function metrics(text) {
  /** @type {Metrics} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, "$1")]));
    const samples = found.get(match[1]) ?? [];
    samples.push({ labels, value: Number(match[3]) });
    found.set(match[1], samples);
  }
  return found;
}

const FRESH_MS = 1_500;
let loadedAt = 0;
/** @type {Promise<Metrics>} */
let loaded = Promise.resolve(new Map());

/** The metrics of the node; parts of a page that ask at the same time share one call. */
export function loadMetrics() {
  if (Date.now() - loadedAt > FRESH_MS) {
    loadedAt = Date.now();
    loaded = get("/metrics").then(metrics);
  }
  return loaded;
}

/** The value of a metric without labels. @param {Metrics} found @param {string} name */
export const gauge = (found, name) => found.get(name)?.[0]?.value ?? 0;
