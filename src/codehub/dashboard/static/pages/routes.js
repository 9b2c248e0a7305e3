/** All addresses of the dashboard. The server gives the same page for all of them. */

import { accountPage } from "./account.js";
import { repositoryLinkPage } from "./repository_link.js";
import { workspacePage } from "./workspace.js";
import { workspacesPage } from "./workspaces.js";
import { adminPage } from "./admin/admin.js";

const ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";

export const ROUTES = [
  { pattern: /^\/$/, open: (_match, app) => workspacesPage(app) },
  { pattern: /^\/new$/, open: (_match, app) => repositoryLinkPage(app) },
  { pattern: new RegExp(`^/workspaces/(?<id>${ID})(/(?<tab>[a-z]+))?$`), open: ({ id, tab }, app) => workspacePage(app, id, tab) },
  { pattern: /^\/account$/, open: (_match, app) => accountPage(app) },
  { pattern: /^\/admin(\/(?<section>[a-z]+))?$/, open: ({ section }, app) => adminPage(app, section) },
];
