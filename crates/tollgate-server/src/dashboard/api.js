// Calls of the admin API. The token is in this module's memory only: it is gone when the page is closed or loaded again.

import { askToken } from "./token.js";

const TIMEOUT_MS = 15_000;

/** What the API answers to a call that fails (RFC 9457). */
export class Problem extends Error {
  /** @param {number} status 0 if the node did not answer @param {any} body */
  constructor(status, body) {
    super(body?.detail ?? (status ? `the node answered ${status}` : "the node does not answer"));
    this.status = status;
    /** @type {any} */
    this.body = body ?? {};
  }

  /** Whether the node has no such call: an older version, or one without this feature. */
  get isMissing() {
    return this.status === 404 && String(this.message).startsWith("there is nothing at");
  }
}

/** @type {string | null} */
let token = null;
/** @type {Promise<boolean> | null} */
let asking = null;
let declined = false;
/** @type {Set<() => void>} */
const heardListeners = new Set();
/** @type {Set<() => void>} */
const lostListeners = new Set();
/** @type {Set<() => void>} */
const tokenListeners = new Set();

/** Called after each answer of the node. @param {() => void} listener @returns {() => void} ends it */
export function onHeard(listener) {
  heardListeners.add(listener);
  return () => void heardListeners.delete(listener);
}

/** Called when the node does not answer a call. @param {() => void} listener */
export function onLost(listener) {
  lostListeners.add(listener);
}

/** Called after the token has changed. @param {() => void} listener @returns {() => void} ends it */
export function onToken(listener) {
  tokenListeners.add(listener);
  return () => void tokenListeners.delete(listener);
}

export function heard() {
  heardListeners.forEach((listener) => listener());
}

export const hasToken = () => token !== null;

export function forgetToken() {
  token = null;
  declined = false;
  tokenListeners.forEach((listener) => listener());
}

/** The address of a call: relative to the page, which may be behind a path prefix. @param {string} path */
export const endpoint = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

/** @param {Record<string, string>} [more] @returns {Record<string, string>} */
export function headers(more) {
  return token ? { ...more, authorization: `Bearer ${token}` } : { ...more };
}

/**
 * Asks for a token, once for all calls that need one. False if the user gave none, or has declined before.
 * @param {string} refusal why the node refused the call
 */
export async function requireToken(refusal) {
  // Without a token there is nothing to say beside that one is needed.
  return declined ? false : signIn(token === null ? null : refusal);
}

/** Asks for a token. @param {string | null} why the last one was refused @returns {Promise<boolean>} */
export function signIn(why = null) {
  asking ??= askToken(why).then((given) => {
    asking = null;
    declined = given === null;
    if (given === null) return false;
    token = given;
    tokenListeners.forEach((listener) => listener());
    return true;
  });
  return asking;
}

/**
 * @typedef {object} CallOptions
 * @property {any} [body] an object is sent as JSON, a string as it is
 * @property {string} [type] the content type of a string
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {boolean} [quiet] a 401 is an error instead of a question
 */

/**
 * @param {string} method
 * @param {string} path
 * @param {CallOptions} [options]
 * @returns {Promise<{ status: number, etag: string | null, body: any }>}
 */
export async function call(method, path, options = {}) {
  for (;;) {
    const used = token;
    const response = await send(method, path, options);
    const text = await response.text().catch(() => "");
    if (response.ok) {
      heard();
      return { status: response.status, etag: response.headers.get("etag"), body: parse(response, text) };
    }
    const problem = new Problem(response.status, parse(response, text));
    if (response.status !== 401) heard();
    if (response.status !== 401 || options.quiet) throw problem;
    const changed = used !== token || (await requireToken(problem.message));
    if (!changed) throw problem;
  }
}

/** @param {string} method @param {string} path @param {CallOptions} options */
async function send(method, path, options) {
  const { body, signal } = options;
  const isText = typeof body === "string";
  const sent = headers(options.headers);
  if (body !== undefined) sent["content-type"] = isText ? (options.type ?? "application/yaml") : "application/json";
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  try {
    return await fetch(endpoint(path), {
      method,
      headers: sent,
      body: body === undefined ? undefined : isText ? body : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    lostListeners.forEach((listener) => listener());
    throw new Problem(0, null);
  }
}

/** @param {Response} response @param {string} text */
function parse(response, text) {
  if (!(response.headers.get("content-type") ?? "").includes("json")) return text;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** @param {string} path @param {CallOptions} [options] */
export const get = async (path, options) => (await call("GET", path, options)).body;

/** A path with a query; values that are null, undefined or empty are left out. @param {string} path @param {Record<string, any>} query */
export function withQuery(path, query) {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return text ? `${path}?${text}` : path;
}

/**
 * All pages of a list, handed over one by one until `more` says no.
 * @param {string} path
 * @param {Record<string, any>} query
 * @param {(page: any) => boolean} more
 * @param {AbortSignal} signal
 */
export async function pages(path, query, more, signal) {
  /** @type {string | null} */
  let after = null;
  do {
    const page = await get(withQuery(path, { limit: 1000, ...query, after }), { signal });
    if (!more(page)) return;
    after = page.next ?? null;
  } while (after !== null);
}
