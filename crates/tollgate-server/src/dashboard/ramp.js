// The ramp of a guarded apply, while it is under way.

import { button, h, replace } from "./dom.js";
import { Problem, call, get } from "./api.js";
import { count, dateTime, unix } from "./format.js";
import { attempt, notice, openDialog } from "./dialog.js";
import { needs } from "./session.js";

const REFRESH_MS = 3_000;

/**
 * A panel that is empty unless a ramp is under way.
 * @param {AbortSignal} signal ends the refreshing
 * @param {() => void} ended called when a ramp has ended
 */
export function rampPanel(signal, ended) {
  const element = h("div", null);
  let wasRunning = false;

  async function refresh() {
    try {
      const { ramp } = await get("/v1/ramp", { signal });
      const isRunning = ramp?.state === "running";
      replace(element, isRunning ? panel(ramp, () => void refresh()) : null);
      if (wasRunning && !isRunning) ended();
      wasRunning = isRunning;
    } catch (why) {
      // The list of changes below shows why nothing can be read. Without a rules database there are no ramps.
      if (why instanceof Problem && why.status === 409) clearInterval(timer);
    }
  }

  const timer = setInterval(() => void refresh(), REFRESH_MS);
  void refresh();
  signal.addEventListener("abort", () => clearInterval(timer));
  return element;
}

/** @param {any} ramp @param {() => void} done */
function panel(ramp, done) {
  const stop = () => openDialog(`Stop the ramp of change ${ramp.change}?`, h("p", null, "The whole apply is reverted, in one change."), {
    action: "Stop and revert", danger: true,
    onaction: async () => {
      await call("DELETE", "/v1/ramp");
      notice(`the ramp of change ${ramp.change} was stopped, and its apply reverted`);
      done();
    },
  });
  const finish = () => attempt(async () => {
    await call("POST", "/v1/ramp/finish");
    notice(`change ${ramp.change} is enforced as written`);
    done();
  });
  return h("section", { class: "panel", "aria-label": "Ramp" },
    h("div", { class: "panel-head" }, h("h2", null, `Change ${ramp.change} is enforced for ${ramp.percent} % of the keys`),
      h("div", { class: "buttons" },
        needs(button("Enforce now", () => void finish()), "admin"),
        needs(button("Stop and revert…", stop, { class: "danger" }), "admin"))),
    h("p", null, `${ramp.denied_percent} % denied in this step (${count(ramp.denied)} of ${count(ramp.decided)} decisions), the guard is ${ramp.guard}. Next step ${dateTime(unix(ramp.next_step))}.`),
    h("p", { class: "muted" }, `Rules: ${ramp.rules.slice(0, 20).join(", ")}${ramp.rules.length > 20 ? ` and ${ramp.rules.length - 20} more` : ""}. Started by ${ramp.who}.`));
}
