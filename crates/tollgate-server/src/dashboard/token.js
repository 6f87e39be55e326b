// The question for a token.

import { field, h } from "./dom.js";
import { openDialog } from "./dialog.js";

/**
 * @param {string | null} why the last one was refused
 * @returns {Promise<string | null>}
 */
export function askToken(why) {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, name: "token" });
  const body = h("div", null,
    h("p", null, why === null ? "This node needs a token." : `This node needs a token; the last one was refused: ${why}.`),
    field("Token", input, "It stays in the memory of this page: it is asked for again after a reload."),
    h("p", { class: "hint" }, "Tokens are lines ROLE TOKEN NAME of tokens_file; the role read is enough to look."),
  );
  return new Promise((resolve) => {
    openDialog("Sign in", body, {
      action: "Sign in",
      cancel: "Not now",
      onaction: () => {
        const value = input.value.trim();
        // What a header cannot carry is no token: fetch would throw.
        if (!/^[\x21-\x7e]+$/.test(value)) throw new Error("a token has no spaces and only ASCII characters");
        resolve(value);
      },
      oncancel: () => resolve(null),
    });
  });
}
