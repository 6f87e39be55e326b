// Commands to copy, with the addresses of this node.

import { endpoint, hasToken } from "./api.js";
import { lastHealth } from "./status.js";

const DEFAULT_ADMIN = "127.0.0.1:7070";
const DEFAULT_HTTP = "127.0.0.1:8080";
const TOKEN = ' -H "Authorization: Bearer $TOLLGATE_TOKEN"';
const WILDCARD = /[/](?:0\.0\.0\.0|\[::\])(?=:\d+$)/;

/** The address of the admin API: where the page came from, a path prefix included. */
const adminUrl = () => endpoint("/").replace(/\/$/, "");

/** Without the scheme that curl takes for granted. @param {string} url */
const short = (url) => url.replace(/^http:[/][/]/, "");

/** A `tollgate` command that calls the admin API. @param {string} command */
export function adminCommand(command) {
  const url = adminUrl();
  return `tollgate ${command}${short(url) === DEFAULT_ADMIN ? "" : ` --admin ${url}`}`;
}

/** A call of the admin API. @param {string} path @param {string} body */
export function adminCall(path, body) {
  return `curl${hasToken() ? TOKEN : ""} -d '${body}' ${short(adminUrl())}${path}`;
}

/** `/v1/check` and `tollgate check` of one client. @param {string} ip @returns {string[]} */
export function checkCommands(ip) {
  const body = JSON.stringify({ method: "GET", path: "/", ip });
  /** @type {{ url: string, needs_token: boolean }} */
  const { url, needs_token } = lastHealth()?.http ?? { url: DEFAULT_HTTP, needs_token: false };
  const curl = `curl${needs_token ? TOKEN : ""}`;
  if (url.startsWith("unix:")) return [`${curl} --unix-socket '${url.slice(5)}' -d '${body}' localhost/v1/check`];
  // A wildcard address is reached by the name that this page's address has.
  const reached = url.replace(WILDCARD, `/${location.hostname}`);
  const option = short(reached) === DEFAULT_HTTP ? "" : ` --http ${reached}`;
  return [`${curl} -d '${body}' ${short(reached)}/v1/check`, `tollgate check GET / --ip ${ip}${option}`];
}
