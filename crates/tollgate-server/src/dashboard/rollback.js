// Reverting a change, after a look at what that does.

import { button, h } from "./dom.js";
import { call } from "./api.js";
import { changeLines } from "./diff.js";
import { attempt, notice, openDialog } from "./dialog.js";
import { needs } from "./session.js";

/**
 * @param {any} change an entry of the audit log; one of a set that is listed by itself is reverted by itself
 * @param {() => void} done
 */
export function rollbackButton(change, done) {
  const path = `/v1/audit/${encodeURIComponent(change.version)}/rollback?only=${Boolean(change.set)}`;
  const open = () => attempt(async () => {
    const { body } = await call("POST", `${path}&dry_run=true`);
    const planned = body.changes.map((/** @type {any} */ each) => h("div", null, h("p", null, `${each.what} ${each.name}`), changeLines(each.before, each.after)));
    const more = (body.created ?? 0) + (body.changed ?? 0) + (body.deleted ?? 0) - planned.length;
    if (more > 0) planned.push(h("p", { class: "muted" }, `and ${more} more`));
    openDialog(`Revert change ${change.version}?`, h("div", null, h("p", null, "This is what changes:"), planned), {
      action: "Revert", wide: true,
      onaction: async () => {
        const { body } = await call("POST", path);
        notice(`change ${change.version} was reverted by ${body.version ?? body.changes[0]?.version ?? "a new change"}`);
        done();
      },
    });
  });
  return needs(button("Revert…", () => void open(), { class: "quiet", "aria-label": `Revert change ${change.version}` }), "admin");
}
