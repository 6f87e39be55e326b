// One rule: editing with validation while one types, its measured effect, its history.

import { button, field, fitRows, h, replace } from "./dom.js";
import { Problem, call, get, withQuery } from "./api.js";
import { changeLines, threeWay } from "./diff.js";
import { attempt, notice, openDialog } from "./dialog.js";
import { ago, dateTime, unix } from "./format.js";
import { Loaded, failed, loading, whenHeard } from "./page_state.js";
import { refusal, needs, roleNotice } from "./session.js";
import { effect } from "./simulation.js";
import { rollbackButton } from "./rollback.js";
import { ruleTraffic } from "./rule_traffic.js";
import { asRules, yaml } from "./yaml.js";

const VALIDATE_MS = 350;
const NEW_RULE = "id: new-rule\nmatch: POST /login\nkey: ip\nlimit: 5/m\nmode: shadow\n";
const HISTORY = 20;

/**
 * @param {HTMLElement} place
 * @param {string | null} id null for a new rule
 * @returns {() => void}
 */
export function editor(place, id) {
  const body = h("div", null, loading());
  const name = id ?? "New rule";
  document.title = `${name} · Rules · Tollgate`;
  replace(place, h("h1", { class: "long" }, name));
  place.append(h("p", { class: "crumbs" }, h("a", { href: "#/rules" }, "Rules"), ` / ${id ?? "new"}`), body);
  /** @type {() => void} */
  let end = () => {};
  const stopping = new AbortController();
  const open = async () => {
    end();
    try {
      const opened = id === null ? { rule: null, etag: null, source: "database" } : await read(id);
      if (stopping.signal.aborted) return;
      const form = new RuleForm(id, opened, () => void open());
      end = () => form.stop();
      replace(body, form.element);
    } catch (why) {
      replace(body, failed(why, `Rule ${id}`));
      if (why instanceof Problem && why.status === 0) whenHeard(stopping.signal, () => void open());
    }
  };
  void open();
  return () => {
    stopping.abort();
    end();
  };
}

/** The rule as it was written, and its version. @param {string} id */
async function read(id) {
  const path = `/v1/rules/${encodeURIComponent(id)}`;
  const shown = await call("GET", path);
  const written = await call("GET", `${path}?as=written`);
  return { rule: written.body.rule, etag: written.etag ?? shown.etag, source: shown.body.source };
}

class RuleForm {
  /**
   * @param {string | null} id
   * @param {{ rule: any, etag: string | null, source: string }} opened
   * @param {() => void} reopen
   */
  constructor(id, opened, reopen) {
    this.id = id;
    this.base = opened.rule;
    this.etag = opened.etag;
    this.reopen = reopen;
    this.timer = 0;
    this.turn = 0;
    const ofFile = opened.source === "file";
    const locked = ofFile || refusal("admin") !== null;
    this.text = h("textarea", { spellcheck: "false", "data-draft": locked ? null : true, value: opened.rule ? yaml(opened.rule) : NEW_RULE, oninput: () => this.#changed() });
    this.text.readOnly = locked;
    fitRows(this.text);
    this.problems = h("div", { class: "problems", role: "status" });
    this.difference = h("div");
    this.effect = h("div", null, h("p", { class: "muted" }, "Measured on the recorded sample of live traffic when the draft is valid."));
    this.conflict = h("div");
    this.apply = needs(button(id === null ? "Create" : "Apply", () => void this.#apply(), { class: "primary" }), "admin");
    this.apply.disabled = true;
    const remove = needs(button("Delete…", () => this.#delete(), { class: "danger" }), "admin");
    const revert = button("Discard draft", () => this.reopen());
    this.traffic = id === null ? null : ruleTraffic(id);
    this.history = id === null || ofFile ? null : this.#history(id); // the log is of the database
    const notice = ofFile
      ? h("p", { class: "role-notice" }, "This rule is in the configuration file: edit it there. It is read again within a second. Other limits can be tried under ", h("a", { href: "#/simulate" }, "Simulate"), ".")
      : (roleNotice("admin", "Changing rules") ?? "");
    const form = h("section", { class: "panel" },
      h("h2", null, id === null ? "New rule" : locked ? "Rule" : "Draft"), field("Rule (YAML)", this.text), this.problems,
      ofFile ? null : h("div", { class: "buttons" }, this.apply, revert, id === null ? null : remove));
    const difference = h("section", { class: "panel" }, h("h2", null, "What changes"), this.difference);
    const measured = h("section", { class: "panel" }, h("h2", null, "Measured effect"), this.effect);
    const history = this.history && h("section", { class: "panel" }, h("h2", null, "History"), this.history.element);
    const traffic = this.traffic?.element ?? null;
    const columns = locked ? [h("div", null, form), h("div", null, traffic)] : [h("div", null, form, difference), h("div", null, measured, traffic)];
    this.element = h("div", null, notice, this.conflict, h("div", { class: "columns" }, columns), history);
    if (!locked) this.#changed();
  }

  stop() {
    clearTimeout(this.timer);
    this.history?.stop();
    this.traffic?.stop();
    this.turn++;
  }

  #changed() {
    fitRows(this.text);
    clearTimeout(this.timer);
    this.apply.disabled = true;
    this.timer = setTimeout(() => void this.#validate(), VALIDATE_MS);
  }

  /** @param {string} query @param {Record<string, string>} [headers] */
  #send(query, headers) {
    const body = this.text.value;
    if (this.id === null) return call("POST", `/v1/rules${query}`, { body, headers });
    return call("PUT", `/v1/rules/${encodeURIComponent(this.id)}${query}`, { body, headers });
  }

  async #validate() {
    const turn = ++this.turn;
    replace(this.problems, h("span", { class: "muted" }, "Checking…"));
    try {
      const { body } = await this.#send("?dry_run=true");
      if (turn !== this.turn) return;
      const [change] = body.changes;
      replace(this.problems, h("span", { class: "passed" }, "✓ valid"));
      replace(this.difference, change ? changeLines(change.before, change.after) : h("p", { class: "muted" }, "Nothing: the draft equals the rule."));
      this.apply.disabled = !change || refusal("admin") !== null;
      await effect(this.effect, asRules(this.text.value), change?.after?.id ?? this.id, () => turn === this.turn);
    } catch (why) {
      if (turn !== this.turn) return;
      replace(this.problems, problemList(why));
      replace(this.difference, h("p", { class: "muted" }, "The draft is not valid."));
    }
  }

  async #apply() {
    this.apply.disabled = true;
    try {
      const condition = this.id === null ? { "if-none-match": "*" } : this.etag ? { "if-match": this.etag } : undefined;
      const { body } = await this.#send("", /** @type {Record<string, string> | undefined} */ (condition));
      notice(`rule ${body.id} is in force, version ${body.version}`);
      if (this.id === null) location.hash = `#/rules/${encodeURIComponent(body.id)}`;
      else this.reopen();
    } catch (why) {
      if (why instanceof Problem && why.status === 412 && this.id !== null) return void this.#showConflict(this.id);
      replace(this.problems, problemList(why));
      this.apply.disabled = false;
    }
  }

  /** Another edit came first: three versions, and a choice. @param {string} id */
  async #showConflict(id) {
    await attempt(async () => {
      const planned = await this.#send("?dry_run=true");
      const mine = planned.body.changes[0]?.after;
      const theirs = await read(id).catch((why) => {
        if (why instanceof Problem && why.status === 404) return null;
        throw why;
      });
      const keep = button("Keep my draft, based on the current version", () => {
        this.base = theirs?.rule ?? null;
        this.etag = theirs?.etag ?? null;
        replace(this.conflict);
        this.#changed();
      });
      const panel = h("section", { class: "panel conflict", tabindex: "-1", "aria-label": "Conflict" },
        h("h2", null, "⚠ The rule was changed since you began: nothing was written"),
        threeWay(this.base, theirs?.rule, mine ?? theirs?.rule),
        h("div", { class: "buttons" }, keep, button("Discard my draft", () => this.reopen())));
      replace(this.conflict, panel);
      panel.focus();
    });
  }

  #delete() {
    const id = /** @type {string} */ (this.id);
    openDialog(`Delete rule ${id}?`, h("p", null, "Its requests are no longer limited by it. The change can be reverted under Changes."), {
      action: "Delete", danger: true,
      onaction: async () => {
        await call("DELETE", `/v1/rules/${encodeURIComponent(id)}`, { headers: this.etag ? { "if-match": this.etag } : undefined });
        notice(`rule ${id} was deleted`);
        location.hash = "#/rules";
      },
    });
  }

  /** @param {string} id */
  #history(id) {
    const part = new Loaded("History", (signal) => get(withQuery("/v1/audit", { item: `rule:${id}`, limit: HISTORY }), { signal }), (value) => {
      const items = value.changes.map((/** @type {any} */ change) => h("li", null,
        h("div", { class: "change-head" }, h("b", null, change.version), h("span", { title: dateTime(unix(change.at)) }, ago(unix(change.at))), h("span", null, `by ${change.who}`), rollbackButton(change, this.reopen)),
        changeLines(change.before, change.after)));
      replace(part.body, items.length ? h("ol", { class: "changes" }, items) : h("p", { class: "muted" }, "No changes: the rule is as it was in the file."));
    });
    return part;
  }
}

/** @param {unknown} why */
function problemList(why) {
  const problems = why instanceof Problem ? (why.body.problems ?? []) : [];
  if (!problems.length) return h("p", { class: "error-text" }, `✗ ${why instanceof Error ? why.message : why}`);
  return h("ul", { class: "error-text" }, problems.map((/** @type {any} */ each) => h("li", null, `✗ ${each.line ? `line ${each.line}: ` : ""}${each.path ? `${each.path}: ` : ""}${each.message}`)));
}
