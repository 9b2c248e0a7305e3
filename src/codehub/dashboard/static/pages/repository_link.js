/**
 * Where a link with a repository leads (/new?git=URL&ref=REF): to the workspaces that have it, or to the form for a new one,
 * filled in. Nothing is made or started without a click, for anybody may have written the link.
 */

import { get } from "../core/api.js";
import { element } from "../core/element.js";
import { t } from "../core/language.js";
import { repositoryKey, repositoryName } from "../core/repository.js";
import { card } from "../parts/card.js";
import { createDialog } from "../parts/new_workspace_dialog.js";
import { icon } from "../parts/icons.js";
import { complain } from "../parts/toasts.js";

export async function repositoryLinkPage(app) {
  const query = new URLSearchParams(location.search);
  const wanted = { git_url: query.get("git")?.trim() ?? "", git_ref: query.get("ref")?.trim() ?? "" };
  const found = wanted.git_url ? (await all()).filter((ws) => has(ws, wanted)) : [];
  for (const ws of found) app.store.put(ws);
  const create = () => createDialog(app, { ...wanted, name: freeName(wanted.git_url, app.store.values()) }).catch(complain);
  const known = new Map(found.map((ws) => [ws.id, ws]));
  const cards = found.map((ws) => card(app, ws.id, (id) => app.store.get(id) ?? known.get(id)));
  const stop = app.store.listen(() => cards.forEach((each) => each.update()));
  if (!found.length) queueMicrotask(create);
  return { title: t("create.title"), node: page(wanted, cards, create), dispose: stop };
}

async function all() {
  const found = [];
  for (let cursor = ""; cursor !== null; ) {
    const { items, next_cursor } = await get(`workspaces?limit=200${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    found.push(...items);
    cursor = next_cursor;
  }
  return found;
}

function has(ws, { git_url, git_ref }) {
  return ws.git_url !== null && repositoryKey(ws.git_url) === repositoryKey(git_url) && (!git_ref || (ws.git_ref ?? "") === git_ref);
}

/** The repository's own name, or that with a number, if a workspace is called so already. */
function freeName(url, workspaces) {
  const name = repositoryName(url);
  const taken = new Set(workspaces.map((ws) => ws.name.toLowerCase()));
  let free = name;
  for (let number = 2; taken.has(free.toLowerCase()); number += 1) free = `${name}-${number}`;
  return free;
}

function page({ git_url, git_ref }, cards, create) {
  const about = git_ref ? `${git_url} (${git_ref})` : git_url;
  const button = element("button", { type: "button", class: "button primary big", on: { click: create } }, icon("plus"), t("create.open"));
  const text = cards.length ? t("new.there") : t("new.nothing");
  return element(
    "div",
    { class: "page" },
    element("header", { class: "page-head" }, element("div", {}, element("h1", {}, t("new.title")), element("p", { class: "muted" }, about)), button),
    element("p", {}, text),
    element("div", { class: "cards" }, cards.map(({ node }) => node)),
  );
}
