/** "Is it still you?": asked before accounts are changed or tokens made, if it has been a while. */

import { post } from "../core/api.js";
import { element } from "../core/element.js";
import { t } from "../core/language.js";
import { dialog, field, form, input } from "./dialog.js";

/** @returns {Promise<boolean>} whether it was proved; who has no password here is led to the provider and back */
export async function askForProof(session) {
  let proved = false;
  await dialog(t("proof.title"), (close) =>
    session.user.has_password
      ? form({
          label: t("proof.go_on"),
          fields: [
            element("p", { class: "dialog-text" }, t("proof.text")),
            field(t("proof.password"), input("password", { type: "password", required: true, autocomplete: "current-password", "data-first": "" })),
          ],
          send: async ({ password }) => {
            await post("session/proof", { password });
            proved = true;
            close();
          },
        })
      : [
          element("p", { class: "dialog-text" }, t("proof.provider")),
          element("footer", { class: "dialog-foot" }, element("a", { class: "button primary", href: providerAddress(), "data-first": "" }, t("proof.to_provider"))),
        ],
  );
  return proved;
}

function providerAddress() {
  return `/api/v1/session/oidc?anew=true&next=${encodeURIComponent(location.pathname + location.search)}`;
}
