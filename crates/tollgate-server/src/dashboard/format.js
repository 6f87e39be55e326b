// Numbers, durations and times as text.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** @param {number} value */
export const count = (value) => WHOLE.format(value);

/** @param {number} value @param {string} noun */
export const plural = (value, noun) => `${WHOLE.format(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A rate: with a decimal where it is small. @param {number} value */
export const rate = (value) => (value < 10 ? ONE : WHOLE).format(value);

/** For axes. @param {number} value */
export const compact = (value) => (value < 10_000 ? ONE : COMPACT).format(value);

/** @param {number} part @param {number} whole */
export const percent = (part, whole) => (whole > 0 ? `${ONE.format((100 * part) / whole)}\u00a0%` : "–");

/** @param {number} micros */
export function micros(micros) {
  if (micros < 1000) return `${ONE.format(micros)} µs`;
  return micros < 1_000_000 ? `${ONE.format(micros / 1000)} ms` : `${ONE.format(micros / 1_000_000)} s`;
}

/** @param {number} bytes */
export function bytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes > 0 ? Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10)) : 0;
  return `${ONE.format(bytes / 1024 ** power)} ${units[power]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 14 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/**
 * A time of the API as Unix seconds: it has both forms, numbers and RFC 3339.
 * @param {string | number | null | undefined} value
 */
export function unix(value) {
  if (typeof value === "number") return value;
  return value ? Date.parse(value) / 1000 : NaN;
}

/** @param {number} seconds since 1970 */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** @param {number} seconds since 1970 */
export function clockMinutes(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** @param {number} seconds since 1970 */
export function dateTime(seconds) {
  const at = new Date(seconds * 1000);
  if (Number.isNaN(at.getTime())) return "–";
  const day = at.toLocaleDateString("en-CA"); // year-month-day
  return `${day} ${at.toLocaleTimeString("en-GB")}`;
}

/** @param {number} seconds since 1970 */
export function ago(seconds) {
  const age = Date.now() / 1000 - seconds;
  return age < 1 ? "now" : `${duration(age)} ago`;
}

/** The key of a rule as text. @param {any} key */
export function keyText(key) {
  if (key === undefined || key === null) return "all together";
  return Array.isArray(key) ? key.join(" + ") : String(key);
}

/** The limits of a rule as text. @param {any} rule */
export function limitsText(rule) {
  if (rule.limits_by) return `by ${rule.limits_by.attr ?? "attribute"}`;
  if (rule.requests !== undefined) return `${rule.requests}/${rule.time}`;
  const limits = rule.limits ?? rule.limit ?? [];
  return Array.isArray(limits) ? limits.join(", ") : String(limits);
}

/** By which keys are sorted: addresses by their number, in groups of the same width. @param {string} key */
export function keyOrder(key) {
  const [, before, address, after] = /^(.*?\bip:)([0-9a-fA-F.:]+)(.*)$/.exec(key) ?? [];
  if (address === undefined) return key;
  return `${before}${addressOrder(address)}${after}`;
}

/** @param {string} address */
function addressOrder(address) {
  if (!address.includes(":")) return address.split(".").map((part) => part.padStart(3, "0")).join(".");
  const [head, tail] = address.split("::").map((half) => (half ? half.split(":") : []));
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - head.length - tail.length);
  const groups = [...head, ...Array(zeros).fill("0"), ...(tail ?? [])];
  return groups.map((group) => group.toLowerCase().padStart(4, "0")).join(":");
}
