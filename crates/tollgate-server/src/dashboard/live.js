// The stream of seconds (`/v1/live`), read with fetch: an EventSource cannot send a token.

import { endpoint, headers, heard, onToken, requireToken } from "./api.js";

/**
 * @typedef {object} Decision
 * @property {string} id
 * @property {number} at
 * @property {boolean} allowed
 * @property {string} reason
 * @property {string | null} rule
 * @property {string | null} key
 * @property {string | null} limit
 * @property {number | null} used of the limit
 * @property {number | null} cost
 */
/**
 * @typedef {object} Second
 * @property {number} at
 * @property {number} allowed
 * @property {number} denied
 * @property {number} banned
 * @property {number} shadow_denied
 * @property {number} clients_limited
 * @property {number} near_limit
 * @property {{ p50_us: number | null, p99_us: number | null } | null} latency
 * @property {{ rule: string, allowed: number, denied: number, shadow_denied: number }[]} rules
 * @property {Decision[]} decisions
 * @property {string} enforce
 * @property {string} status
 */

const MAX_SECONDS = 600;
const MAX_DECISIONS = 2_000;
const SILENCE_MS = 15_000;
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 10_000;
const MISSING_PAUSE_MS = 30_000;
const MAX_LINE_CHARS = 1 << 20;
/** A browser opens six connections to a node: a hidden tab that keeps one could leave none for the others. */
const HIDDEN_MS = 10_000;

/** @type {"connecting" | "open" | "waiting" | "missing" | "refused"} */
let state = "connecting";
/** @type {Second[]} */
const seconds = [];
/** @type {Decision[]} */
const decisions = [];
/** @type {Set<(second: Second | null) => void>} */
const listeners = new Set();
let lastId = "";
let refusal = "";
let pause = FIRST_PAUSE_MS;
/** @type {AbortController | null} */
let connection = null;
/** @type {(() => void) | null} */
let wake = null;

export const live = {
  get state() {
    return state;
  },
  /** The latest seconds, oldest first. */
  seconds,
  /** The latest decisions, newest first. */
  decisions,
  /**
   * Called with each second, and with null when the state of the connection changes.
   * @param {(second: Second | null) => void} listener
   * @returns {() => void} ends it
   */
  subscribe(listener) {
    listeners.add(listener);
    return () => void listeners.delete(listener);
  },
};

/** @param {typeof state} next */
function become(next) {
  if (state === next) return;
  state = next;
  listeners.forEach((listener) => listener(null));
}

/** Reads the stream for as long as the page is open. */
export async function follow() {
  for (;;) {
    await visible();
    const outcome = await connect().catch(() => "lost");
    if (outcome === "refused") {
      become("refused");
      if (await requireToken(refusal)) continue;
      await sleep(MISSING_PAUSE_MS);
    } else if (outcome === "missing") {
      become("missing");
      await sleep(MISSING_PAUSE_MS);
    } else {
      become("waiting");
      await sleep(pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, MAX_PAUSE_MS);
    }
  }
}

onToken(() => {
  connection?.abort();
  wake?.();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) setTimeout(() => document.hidden && connection?.abort(), HIDDEN_MS);
  else wake?.();
});

/** @returns {Promise<void>} */
function visible() {
  return document.hidden ? sleep(HIDDEN_MS).then(visible) : Promise.resolve();
}

/** @param {number} ms @returns {Promise<void>} */
function sleep(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

/** One connection, until it ends. @returns {Promise<"lost" | "refused" | "missing">} */
async function connect() {
  connection = new AbortController();
  const { signal } = connection;
  const abort = () => connection?.abort();
  let silence = setTimeout(abort, SILENCE_MS);
  try {
    /** @type {Record<string, string>} */
    const sent = { accept: "text/event-stream" };
    if (lastId) sent["last-event-id"] = lastId;
    const response = await fetch(endpoint("/v1/live"), { headers: headers(sent), signal, cache: "no-store", credentials: "omit" });
    if (response.status === 401) {
      refusal = (await response.json().catch(() => null))?.detail ?? "the live stream needs one";
      return "refused";
    }
    if (response.status === 404) return "missing";
    if (!response.ok || !response.body) return "lost";
    become("open");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser(receive);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "lost";
      pause = FIRST_PAUSE_MS;
      clearTimeout(silence);
      silence = setTimeout(abort, SILENCE_MS);
      heard();
      parser.push(value);
    }
  } finally {
    clearTimeout(silence);
  }
}

/** The format of server-sent events, as far as this stream uses it: `id`, `event` and `data` of one line. */
class EventParser {
  /** @param {(id: string, event: string, data: string) => void} emit */
  constructor(emit) {
    this.emit = emit;
    this.rest = "";
    this.id = "";
    this.event = "";
    this.data = "";
  }

  /** @param {string} text */
  push(text) {
    const lines = (this.rest + text).split(/\r?\n/);
    this.rest = lines.pop() ?? "";
    if (this.rest.length > MAX_LINE_CHARS) throw new Error("a line of the stream is too long");
    lines.forEach((line) => this.line(line));
  }

  /** @param {string} line */
  line(line) {
    if (line === "") {
      if (this.data) this.emit(this.id, this.event, this.data);
      this.event = "";
      this.data = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon <= 0) return; // a comment keeps the connection open
    const value = line.slice(colon + 1).replace(/^ /, "");
    const name = line.slice(0, colon);
    if (name === "id") this.id = value;
    else if (name === "event") this.event = value;
    else if (name === "data") this.data += value;
  }
}

/** @param {string} id @param {string} event @param {string} data */
function receive(id, event, data) {
  if (id) lastId = id;
  if (event !== "second") return;
  /** @type {Second} */
  const second = JSON.parse(data);
  const last = seconds.at(-1);
  if (last && second.at <= last.at) return; // replayed after a reconnect
  seconds.push(second);
  if (seconds.length > MAX_SECONDS) seconds.splice(0, seconds.length - MAX_SECONDS);
  decisions.unshift(...(second.decisions ?? []));
  if (decisions.length > MAX_DECISIONS) decisions.length = MAX_DECISIONS;
  listeners.forEach((listener) => listener(second));
}
