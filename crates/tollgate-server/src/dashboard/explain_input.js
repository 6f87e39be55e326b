// What `tollgate explain` accepts, as the body of `/v1/explain`: a ticket, a denied response, a request.

const EXPECTED = "expected a ticket, a denied response, or a request such as POST /login --ip 203.0.113.7";
/** Words, which quotes may join. */
const WORD = /(?:"[^"]*"|'[^']*'|[^\s"'])+/g;
const TEXTS = new Map([["host", "host"], ["ip", "ip"], ["user", "user"], ["email", "email"], ["mac", "mac"], ["api-key", "api_key"]]);
const PAIRS = new Map([["header", "headers"], ["attribute", "attributes"]]);

/** @param {string} text @returns {{ ticket: string } | { request: Record<string, any> }} */
export function explainBody(text) {
  const trimmed = text.trim().replace(/^(?:tollgate\s+)?explain\s+/, "");
  if (/^[{["]/.test(trimmed)) return ofJson(trimmed);
  if (!/\s/.test(trimmed) && !/^[/-]/.test(trimmed)) return { ticket: trimmed };
  return { request: ofArguments(trimmed) };
}

/** @param {string} text */
function ofJson(text) {
  /** @type {any} */
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`this is not complete JSON: ${EXPECTED}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(EXPECTED);
  const ticket = value.ticket ?? value.instance;
  return typeof ticket === "string" ? { ticket } : { request: value.request ?? value };
}

/** `[METHOD ]PATH` and options. @param {string} text */
function ofArguments(text) {
  const words = (text.match(WORD) ?? []).map((word) => word.replace(/"([^"]*)"|'([^']*)'/g, "$1$2"));
  /** @type {Record<string, any>} */
  const request = {};
  /** @type {string[]} */
  const target = [];
  while (words.length) {
    const word = /** @type {string} */ (words.shift());
    if (!word.startsWith("--")) {
      target.push(...word.split(/\s+/).filter(Boolean));
      continue;
    }
    const [, name, given] = /^--([^=]*)(?:=(.*))?$/s.exec(word) ?? [];
    const value = given ?? words.shift();
    if (value === undefined) throw new Error(`--${name} has no value: ${EXPECTED}`);
    addOption(request, name, value);
  }
  if (target.length > 2) throw new Error(`'${target[2]}' is unexpected: ${EXPECTED}`);
  if (target.length === 1 && !target[0].startsWith("/")) throw new Error(`'${target[0]}' has no path after it: ${EXPECTED}`);
  const path = target.pop();
  return { ...(target.length ? { method: target[0] } : {}), ...(path === undefined ? {} : { path }), ...request };
}

/** @param {Record<string, any>} request @param {string} name @param {string} value */
function addOption(request, name, value) {
  const field = TEXTS.get(name);
  const map = PAIRS.get(name);
  if (field) {
    request[field] = value;
  } else if (map) {
    const [, key, text] = /^([^=]*)=(.*)$/s.exec(value) ?? [];
    if (key === undefined) throw new Error(`--${name} is NAME=VALUE, not '${value}'`);
    request[map] = { ...request[map], [key]: text };
  } else if (name === "cost") {
    if (!/^\d+$/.test(value)) throw new Error(`--cost is a number, not '${value}'`);
    request.cost = Number(value);
  } else {
    throw new Error(`--${name} is not an option of a request: use ${[...TEXTS.keys(), ...PAIRS.keys(), "cost"].map((each) => `--${each}`).join(", ")}`);
  }
}
