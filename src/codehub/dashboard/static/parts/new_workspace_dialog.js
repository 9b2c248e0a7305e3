/** A new workspace: a name is enough. A link may have filled in the rest. */

import { get, post } from "../core/api.js";
import { element, text } from "../core/element.js";
import { t } from "../core/language.js";
import { dialog, field, form, input, select } from "./dialog.js";
import { icon } from "./icons.js";
import { toast } from "./toasts.js";
import { ttlSelect, ttlValue } from "./ttl_select.js";

/** @param {{name?: string, git_url?: string, git_ref?: string}} [first] what the form shows at first */
export async function createDialog(app, first = {}) {
  const { items: templates } = await get("templates");
  const key = crypto.randomUUID();
  await dialog(t("create.title"), (close) =>
    form({
      label: t("create.do"),
      fields: [
        field(t("field.name"), input("name", { required: true, maxlength: 100, "data-first": "", placeholder: "my-project", value: first.name })),
        templates.length > 1 && templateField(templates),
        field(t("field.git"), input("git_url", { maxlength: 1000, inputmode: "url", placeholder: "https://github.com/…", value: first.git_url }), t("field.git.hint")),
        field(t("field.ref"), input("git_ref", { maxlength: 255, placeholder: "main", value: first.git_ref }), t("field.ref.hint")),
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
        first.git_url && element("p", { class: "form-warning" }, icon("warning"), element("span", {}, t("create.from_link"))),
      ],
      send: async (values) => {
        const body = {
          name: values.name,
          description: values.description,
          template: values.template ?? templates[0]?.name ?? "default",
          standby_ttl_seconds: ttlValue(values.standby_ttl_seconds),
          archive_ttl_seconds: ttlValue(values.archive_ttl_seconds),
          git_url: values.git_url || null,
          git_ref: values.git_ref || null,
        };
        await create(app, body, key, close);
      },
    }),
  );
}

async function create(app, body, key, close) {
  const made = await app.actions.creating(post("workspaces", { ...body, asleep_if_full: true }, { "Idempotency-Key": key }));
  app.store.put(made);
  if (made.desired_state !== "RUNNING") {
    const start = [[t("action.start"), () => app.actions.perform("start", made)]];
    toast(t("create.asleep", { name: made.name }), { lasts: 20_000, actions: start });
  }
  close();
  app.created(made);
}

/** Names alone in the list, which is narrow; what the chosen one is for stands below it, whole. */
function templateField(templates) {
  const chosen = templates.some(({ name }) => name === "default") ? "default" : templates[0].name;
  const control = select("template", templates.map(({ name }) => [name, name]), chosen);
  const about = element("p", { class: "field-hint", "aria-live": "polite" });
  const tell = () => text(about, templates.find(({ name }) => name === control.value)?.description ?? "");
  control.addEventListener("change", tell);
  tell();
  const node = field(t("field.template"), control);
  control.after(about);
  return node;
}
