// Values of the API as YAML, as a person writes rules. The server parses it: there is no parser here.

const PLAIN = /^[A-Za-z_/][A-Za-z0-9_ ./{}*+-]*$/;
const RATE = /^[0-9]+\/[0-9]*[a-z]+$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "y", "n"]);

/** @param {any} value @returns {string} */
function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  const isPlain = (PLAIN.test(value) && !value.endsWith(" ") && !WORDS.has(value.toLowerCase())) || RATE.test(value);
  return isPlain ? value : JSON.stringify(value);
}

/** @param {any} value */
const isScalar = (value) => value === null || typeof value !== "object";

/** @param {any} value @returns {string} */
function inline(value) {
  if (isScalar(value)) return /[{},[\]]/.test(String(value)) && typeof value === "string" ? JSON.stringify(value) : scalar(value);
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  const pairs = Object.entries(value).map(([name, each]) => `${scalar(name)}: ${inline(each)}`);
  return pairs.length ? `{ ${pairs.join(", ")} }` : "{}";
}

/** One key per line; what is inside a key is on its line, lists of objects are one line each. @param {Record<string, any>} object */
export function yaml(object) {
  const lines = Object.entries(object).flatMap(([name, value]) => {
    const isListOfObjects = Array.isArray(value) && value.some((each) => !isScalar(each));
    if (isListOfObjects) return [`${name}:`, ...value.map((each) => `  - ${inline(each)}`)];
    return [`${name}: ${isScalar(value) ? scalar(value) : inline(value)}`];
  });
  return `${lines.join("\n")}\n`;
}

/** A rule of one key per line as an item of `rules:`. @param {string} text */
export function asRules(text) {
  const lines = text.replace(/\s+$/, "").split("\n");
  return `rules:\n${lines.map((line, number) => (number === 0 ? `  - ${line}` : `    ${line}`)).join("\n")}\n`;
}
