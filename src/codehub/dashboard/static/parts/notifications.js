/** What happened that this page did not ask for: said aloud, shown when it matters, and explained by the ledger. */

import { get } from "../core/api.js";
import { everySecond, now } from "../core/clock.js";
import { isSettled } from "../core/workspace_state.js";
import { bytes, duration, t } from "../core/language.js";
import { complain, say, toast } from "./toasts.js";

const NEW_MS = 60_000;

export function watchNews(app) {
  const mine = (ws) => ws?.owner === app.session.user.username;
  app.store.onChange((before, after) => {
    if (!mine(before ?? after)) return;
    announce(before, after);
    if (!app.actions.isOwn((before ?? after).id)) tell(app, before, after);
    if (!after) app.pace.forget(before.id);
  });
  app.stream.onWarning = (told) => warn(app, told, mine);
  app.stream.onNotice = notice;
}

/** To admins: a backend that has fallen silent, or answers again, and a full disk. To owners, and admins: a start without
    its secrets. What else concerns one workspace is told by itself. */
function notice({ subject, details }) {
  const backend = details?.backend;
  if (subject === "backend does not answer") {
    toast(t("notice.silent", { backend, error: details.error }), { tone: "bad", lasts: null, key: `backend:${backend}` });
  } else if (subject === "backend answers again") {
    toast(t("notice.back", { backend }), { key: `backend:${backend}` });
  } else if (subject === "secrets could not be opened") {
    const others = details.names_others ? [t("notice.secrets.others", { count: details.names_others })] : [];
    const text = t("notice.secrets", { name: details.name, names: [...details.names, ...others].join(", ") });
    toast(text, { tone: "bad", lasts: null, key: `${details.workspace}:secrets` });
  } else if (subject === "the disk that workspaces share is nearly full") {
    toast(t("notice.disk", { free: bytes(details.free_bytes) }), { tone: "bad", lasts: null, key: "disk" });
  }
}

/** Announces a change to those who cannot see the card change. */
function announce(before, after) {
  if (!after) return say(t("news.gone", { name: before.name }));
  if (before && before.phase === after.phase && isSettled(before) === isSettled(after)) return undefined;
  if (isSettled(after) || after.phase === "ERROR") say(t("news.now", { name: after.name, phase: t(`phase.${after.phase}`) }));
  return undefined;
}

function tell(app, before, after) {
  const id = (before ?? after).id;
  const look = [[t("news.look"), () => app.router.go(`/workspaces/${id}`)]];
  if (after?.phase === "ERROR" && before?.phase !== "ERROR") {
    const text = t("news.error", { name: after.name, meaning: after.error ? t(`reason.${after.error.reason}.meaning`) : "" });
    toast(text, { tone: "bad", actions: look, lasts: 20_000, key: `${id}:error` });
  } else if (!before) {
    arrived(app, after, look);
  } else if (!after) {
    const undo = [[t("undo"), () => app.actions.undo(before, before.desired_state)]];
    toast(t("news.gone", { name: before.name }), { actions: undo, key: `${id}:news` });
  } else if (after.evicted && !before.evicted) {
    toast(t("news.evicted", { name: after.name }), { actions: look, lasts: 20_000, key: `${id}:evicted` });
  } else if (before.desired_state !== after.desired_state) {
    explain(after).catch(complain);
  }
}

async function arrived(app, ws, look) {
  await app.actions.settled();
  if (app.actions.isOwn(ws.id)) return;
  const isNew = now() - Date.parse(ws.created_at) < NEW_MS;
  toast(t(isNew ? "news.created" : "news.back", { name: ws.name }), { actions: look, lasts: 6_000, key: `${ws.id}:news` });
}

/** Tells who changed the desired state, and why. */
async function explain(ws) {
  const { items } = await get(`workspaces/${ws.id}/events?limit=10`);
  const wish = items.find((entry) => entry.kind === "wish" && entry.after === ws.desired_state);
  const idle = wish && ["idle", "lease_ended", "max_lifetime"].includes(wish.reason);
  const values = { name: ws.name, phase: t(`phase.${ws.desired_state}`), actor: wish?.actor ?? "" };
  toast(t(idle ? `news.${wish.reason}` : "news.wish", values), { key: `${ws.id}:news` });
}

/** Warns before an idle stop: how long the workspace still has, and one click for more. */
function warn(app, told, mine) {
  const ws = app.store.get(told.id);
  if (!mine(ws)) return;
  const words = () => t(told.becomes === "ARCHIVED" ? "warn.archives" : "warn.stops", { name: ws.name, time: duration((Date.parse(told.stops_at) - now()) / 1_000) });
  const shown = toast(words(), {
    tone: "warn",
    lasts: null,
    key: `${ws.id}:idle`,
    actions: [
      [t("keep.hours", { count: 1 }), () => app.actions.keep(ws, 3_600)],
      [t("keep.hours", { count: 4 }), () => app.actions.keep(ws, 14_400)],
    ],
  });
  const stop = everySecond(() => {
    const fresh = app.store.get(ws.id);
    if (fresh && isSettled(fresh) && fresh.phase === ws.phase && now() < Date.parse(told.stops_at)) return shown.say(words());
    shown.close();
    return stop();
  });
}
