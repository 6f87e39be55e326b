// Reverting a change, after a look at what that does.

import { button, h } from "./dom.js";
import { call } from "./api.js";
import { changeLines } from "./diff.js";
import { attempt, notice, openDialog } from "./dialog.js";
import { needs } from "./session.js";

/**
 * @param {any} change an entry of the audit log
 * @param {() => void} done
 */
export function rollbackButton(change, done) {
  const path = `/v1/audit/${encodeURIComponent(change.version)}/rollback`;
  const open = () => attempt(async () => {
    const { body } = await call("POST", `${path}?dry_run=true`);
    const planned = body.changes.map((/** @type {any} */ each) => h("div", null, h("p", null, `${each.what} ${each.name}`), changeLines(each.before, each.after)));
    openDialog(`Revert change ${change.version}?`, h("div", null, h("p", null, "This is what changes:"), planned), {
      action: "Revert", wide: true,
      onaction: async () => {
        const { body } = await call("POST", path);
        notice(`change ${change.version} was reverted by ${body.changes[0]?.version ?? "a new change"}`);
        done();
      },
    });
  });
  return needs(button("Revert…", () => void open(), { class: "quiet", "aria-label": `Revert change ${change.version}` }), "admin");
}
