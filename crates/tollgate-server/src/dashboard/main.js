// The shell: navigation by the address's fragment, the theme, and what every page shows.

import { byId, h, replace } from "./dom.js";
import { follow } from "./live.js";
import { loadCaller, onCaller } from "./session.js";
import { watch } from "./status.js";
import { overview } from "./overview.js";
import { rules } from "./rules.js";
import { keys } from "./keys.js";
import { decisions } from "./decisions.js";
import { bans } from "./bans.js";
import { simulate } from "./simulate.js";
import { changes } from "./changes.js";
import { health } from "./health.js";

/**
 * A page puts itself into its place, and returns what ends it.
 * @typedef {(place: HTMLElement, rest: string[], query: URLSearchParams) => (() => void)} Page
 */

/** @type {[path: string, title: string, page: Page][]} */
const PAGES = [
  ["", "Overview", overview],
  ["rules", "Rules", rules],
  ["keys", "Keys", keys],
  ["decisions", "Decisions", decisions],
  ["bans", "Bans and allow", bans],
  ["simulate", "Simulate", simulate],
  ["changes", "Changes", changes],
  ["health", "Health", health],
];

/** @type {() => void} */
let endPage = () => {};
let shownRole = false;

function open() {
  const fragment = location.hash.startsWith("#/") ? location.hash.slice(2) : "";
  const [path, query = ""] = fragment.split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  const [, title, page] = PAGES.find(([each]) => each === name) ?? PAGES[0];
  endPage();
  document.title = `${title} · Tollgate`;
  for (const link of byId("nav").querySelectorAll("a")) {
    if (link.textContent === title) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const place = byId("main");
  replace(place, h("h1", null, title));
  place.dataset.page = name || "overview";
  endPage = page(place, rest, new URLSearchParams(query));
}

function showNavigation() {
  const links = PAGES.map(([path, title]) => h("li", null, h("a", { href: `#/${path}` }, title)));
  replace(byId("nav"), h("ul", null, links));
}

const THEMES = ["auto", "light", "dark"];

function showTheme() {
  let theme = localStorage.getItem("theme") ?? "auto";
  const control = byId("theme");
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    replace(control, "◐", h("span", { class: "theme-name" }, ` ${theme}`));
    control.setAttribute("aria-label", `Theme: ${theme}`);
  };
  control.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("theme", theme);
    apply();
  });
  apply();
}

document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the page
  byId("main").focus();
});
addEventListener("hashchange", () => {
  open();
  byId("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
// Controls are drawn for a role: the page is built again when it changes, but for a draft in progress.
onCaller(() => {
  if (shownRole && document.querySelector("textarea[data-draft]")) return;
  shownRole = true;
  open();
});

showNavigation();
showTheme();
watch();
void loadCaller();
void follow();
