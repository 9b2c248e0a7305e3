/** The pages about the installation, for those who run it. */

import { element } from "../../core/element.js";
import { t } from "../../core/language.js";
import { workspacesPage } from "../workspaces.js";
import { isAdmin } from "../../parts/shell.js";
import { auditSection } from "./audit.js";
import { errorsSection } from "./errors.js";
import { garbageSection } from "./garbage_collection.js";
import { overviewSection } from "./overview.js";
import { templatesSection } from "./templates.js";
import { usersSection } from "./users.js";

const SECTIONS = {
  overview: overviewSection,
  workspaces: (app) => workspacesPage(app, { everybody: true }),
  errors: errorsSection,
  users: usersSection,
  templates: templatesSection,
  garbage: garbageSection,
  audit: auditSection,
};

export async function adminPage(app, name = "overview") {
  if (!isAdmin(app)) throw Object.assign(new Error(t("admin.only")), { status: 403 });
  const chosen = name in SECTIONS ? name : "overview";
  app.stream.watchEverybody(true);
  const section = await SECTIONS[chosen](app);
  const node = element("div", { class: "admin" }, tabs(chosen), section.node);
  return { title: section.title ?? t(`admin.${chosen}`), node, dispose: section.dispose };
}

function tabs(chosen) {
  return element(
    "nav",
    { class: "tabs admin-tabs", "aria-label": t("nav.admin") },
    Object.keys(SECTIONS).map((name) =>
      element("a", { class: "tab", href: name === "overview" ? "/admin" : `/admin/${name}`, "aria-current": name === chosen ? "page" : null }, t(`admin.${name}`)),
    ),
  );
}
