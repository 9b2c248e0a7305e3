/** Starts the dashboard: who is signed in, the frame, the stream, and then the page that the address names. */

import { get, onProofNeeded, onSignedOut } from "./core/api.js";
import { language, clock, problemText, t } from "./core/language.js";
import { Lifecycles } from "./core/lifecycles.js";
import { RemainingTime } from "./core/remaining_time.js";
import { Router } from "./core/router.js";
import { Store } from "./core/store.js";
import { Stream } from "./core/stream.js";
import { Usages } from "./core/usages.js";
import { element } from "./core/element.js";
import { Actions } from "./parts/actions.js";
import { watchNews } from "./parts/notifications.js";
import { askForProof } from "./parts/password_confirmation.js";
import { shell } from "./parts/shell.js";
import { ROUTES } from "./pages/routes.js";

document.documentElement.lang = language;

let leaving = false;
onSignedOut(() => {
  if (leaving) return;
  leaving = true;
  location.assign(`/signin?next=${encodeURIComponent(location.pathname + location.search)}`);
});

async function begin() {
  const session = await get("session");
  onProofNeeded(() => askForProof(session));
  const store = new Store();
  const app = { session, store, stream: new Stream(store), lifecycles: new Lifecycles(), usages: new Usages(), pace: new RemainingTime(), clock };
  app.actions = new Actions(app);
  app.created = (ws) => app.router.go(`/workspaces/${ws.id}`);
  const frame = shell(app);
  app.router = new Router(ROUTES, frame.main, app);
  app.router.onOpened = frame.opened;
  document.body.append(...frame.nodes);
  watchNews(app);
  app.stream.start();
  await app.router.start();
}

begin().catch((problem) => {
  if (problem.status === 401) return;
  const again = element("button", { type: "button", class: "button primary", on: { click: () => location.reload() } }, t("failed.again"));
  const told = element("main", { class: "page empty" }, element("h1", {}, t("failed.title")), element("p", {}, problemText(problem)), again);
  document.body.append(told);
});
