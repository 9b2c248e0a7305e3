/** A new workspace: a name is enough. */

import { get, post } from "../core/api.js";
import { element } from "../core/element.js";
import { t } from "../core/language.js";
import { dialog, field, form, input, select } from "./dialog.js";
import { toast } from "./toasts.js";
import { ttlSelect, ttlValue } from "./ttl.js";

export async function createDialog(app) {
  const { items: templates } = await get("templates");
  const key = crypto.randomUUID();
  await dialog(t("create.title"), (close) =>
    form({
      label: t("create.do"),
      fields: [
        field(t("field.name"), input("name", { required: true, maxlength: 100, "data-first": "", placeholder: "my-project" })),
        templates.length > 1 && field(t("field.template"), templateSelect(templates)),
        field(t("field.git"), input("git_url", { maxlength: 1000, inputmode: "url", placeholder: "https://github.com/…" }), t("field.git.hint")),
        element(
          "details",
          { class: "more" },
          element("summary", {}, t("create.more")),
          field(t("field.description"), input("description", { maxlength: 1000 })),
          element(
            "div",
            { class: "fields-pair" },
            field(t("field.standby"), ttlSelect("standby_ttl_seconds", null)),
            field(t("field.archive"), ttlSelect("archive_ttl_seconds", null)),
          ),
        ),
      ],
      send: async (values) => {
        const body = {
          name: values.name,
          description: values.description,
          template: values.template ?? templates[0]?.name ?? "default",
          standby_ttl_seconds: ttlValue(values.standby_ttl_seconds),
          archive_ttl_seconds: ttlValue(values.archive_ttl_seconds),
          git_url: values.git_url || null,
        };
        await create(app, body, key, close);
      },
    }),
  );
}

async function create(app, body, key, close) {
  let made;
  try {
    made = await post("workspaces", body, { "Idempotency-Key": key });
  } catch (problem) {
    if (problem.code !== "limit_reached") throw problem;
    // It can be made all the same; only running has to wait.
    made = await post("workspaces", { ...body, desired_state: "STANDBY" }, { "Idempotency-Key": `${key}-asleep` });
    toast(t("create.asleep", { name: made.name }), { lasts: 10_000 });
  }
  app.actions.note(made.id);
  app.store.put(made);
  close();
  app.created(made);
}

function templateSelect(templates) {
  const options = templates.map(({ name, description }) => [name, description ? `${name}: ${description}` : name]);
  const chosen = templates.some(({ name }) => name === "default") ? "default" : templates[0].name;
  return select("template", options, chosen);
}
