// The questions for a ban, for an import of bans, and for an entry of the allow list.

import { button, field, h, replace, select } from "./dom.js";
import { call } from "./api.js";
import { notice, openDialog } from "./dialog.js";

const MAX_IMPORT_BYTES = 16 << 20;

/** @param {string} key @param {() => void} done */
export function askBan(key, done) {
  const keyInput = h("input", { name: "key", value: key, required: true, placeholder: "ip:203.0.113.9", autocomplete: "off", spellcheck: "false" });
  let duration = "1h";
  const durations = select([["10m", "10 minutes"], ["1h", "1 hour"], ["24h", "1 day"], ["7d", "7 days"], ["30d", "30 days"]], duration, (value) => { duration = value; }, { name: "for" });
  const reason = h("input", { name: "reason", maxlength: "1000", placeholder: "scraping", autocomplete: "off" });
  openDialog("Ban a key", h("div", null, field("Key", keyInput, "name:value; several parts are joined by +"), field("For", durations), field("Reason", reason)), {
    action: "Ban", danger: true,
    onaction: async () => {
      await call("POST", "/v1/bans", { body: { key: keyInput.value.trim(), for: duration, reason: reason.value.trim() || undefined } });
      notice(`${keyInput.value.trim()} is banned`);
      done();
    },
  });
}

/** @param {() => void} done */
export function askImport(done) {
  const text = h("textarea", { name: "bans", rows: "10", spellcheck: "false", placeholder: "ip:203.0.113.9 24h scraping\nuser:evil" });
  const file = h("input", { type: "file", onchange: async () => {
    const chosen = file.files?.[0];
    if (!chosen) return;
    if (chosen.size > MAX_IMPORT_BYTES) return replace(preview, "The file is longer than 16 MiB: use tollgate ban import.");
    text.value = await chosen.text();
  } });
  const preview = h("p", { class: "muted", role: "status" });
  const send = (/** @type {string} */ query) => call("POST", `/v1/bans/import${query}`, { body: text.value, type: "text/plain" });
  const check = button("Check", async () => {
    try {
      const { body } = await send("?dry_run=true");
      replace(preview, `✓ ${body.created} new, ${body.changed} changed, ${body.unchanged} unchanged`);
    } catch (why) {
      replace(preview, `✗ ${why instanceof Error ? why.message : why}`);
    }
  });
  openDialog("Import bans", h("div", null, field("A key per line, with a duration and a reason", text, "Without a duration a ban is permanent."), field("From a file", file), h("div", { class: "buttons" }, check), preview), {
    action: "Import", wide: true,
    onaction: async () => {
      const { body } = await send("");
      notice(`${body.created} bans added, ${body.changed} changed`);
      done();
    },
  });
}

/** @param {() => void} done */
export function askAllow(done) {
  const key = h("input", { name: "key", required: true, placeholder: "ip:10.0.0.0/8", autocomplete: "off", spellcheck: "false" });
  const note = h("input", { name: "note", maxlength: "1000", autocomplete: "off" });
  openDialog("Allow a key", h("div", null, field("Key", key, "It is never limited and never banned."), field("Note", note)), {
    action: "Allow",
    onaction: async () => {
      await call("POST", "/v1/allow", { body: { key: key.value.trim(), note: note.value.trim() || undefined } });
      notice(`${key.value.trim()} is on the allow list`);
      done();
    },
  });
}
