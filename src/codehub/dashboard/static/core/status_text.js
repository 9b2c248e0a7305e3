/** What a workspace is doing and why, in a few words. Pure: words and time are arguments. */

import { OPERATIONS } from "./states.js";
import { isBusy, isSettled, stepsBetween } from "./workspace_state.js";
import { bytesOf, clock, duration, number } from "./format.js";

/**
 * @param {Object} ws
 * @param {{t: Function, language: string, now: number, left?: number | null, lifecycle?: Object | null}} how
 * @returns {{label: string, detail: string, fraction: number | null | undefined}} `fraction`: undefined without a bar,
 *   null for one that only shows that something goes on.
 */
export function describe(ws, how) {
  const { t } = how;
  if (ws.phase === "DELETED") return { label: t("phase.DELETED"), detail: deleted(ws, how), fraction: undefined };
  if (isBusy(ws)) return busy(ws, how);
  if (ws.phase === "ERROR") return { label: t("phase.ERROR"), detail: failure(ws, t), fraction: undefined };
  if (!isSettled(ws)) return waiting(ws, how);
  return { label: t(`phase.${ws.phase}`), detail: settled(ws, how), fraction: undefined };
}

/** Until when a deleted workspace can be brought back: it may be later, never earlier. */
function deleted(ws, { t, language, now }) {
  if (!ws.undo_until) return t("deleted.gone");
  const seconds = (Date.parse(ws.undo_until) - now) / 1_000;
  return seconds > 0 ? t("deleted.until", { left: duration(seconds, language), time: clock(ws.undo_until, now, language) }) : t("deleted.any_time");
}

function failure(ws, t) {
  return ws.error ? t(`reason.${ws.error.reason}.meaning`) : t("phase.ERROR.meaning");
}

function busy(ws, how) {
  const { t } = how;
  const parts = [progressText(ws, how), thenText(ws, t)];
  if (ws.error) parts.unshift(retry(ws, how));
  if (ws.evicted) parts.unshift(t("doing.evicted"));
  const { progress } = ws;
  const known = Boolean(progress?.total_bytes);
  return {
    label: t("doing.now", { operation: t(`operation.${ws.operation}`) }),
    detail: parts.filter(Boolean).join(" · "),
    fraction: known ? Math.min(1, progress.bytes / progress.total_bytes) : null,
  };
}

/** A backend's own words are English; who reads another language is told what they mean. */
function retry({ error }, { t, language }) {
  return t("doing.retry", { message: language.startsWith("en") ? error.message : t(`reason.${error.reason}.meaning`) });
}

function progressText(ws, { t, language, left }) {
  const { progress } = ws;
  if (!progress) return "";
  const said = OPERATIONS[ws.operation].hasBytes ? [] : [stepText(progress.step, t)].filter(Boolean);
  if (progress.total_bytes) {
    const [done, total] = bytesOf(progress.bytes, progress.total_bytes, language);
    said.push(t("doing.bytes", { done, total }));
  }
  if (progress.files) said.push(t("doing.files", { files: number(progress.files, language) }));
  if (left !== null && left !== undefined) said.push(t("doing.left", { time: duration(left, language) }));
  return said.join(" · ");
}

/** Before it starts, an image may have to be pulled: "pulling NAME: 3 of 20 MiB", whose figures are told apart from it. */
function stepText(step, t) {
  const [, image] = /^pulling (\S+?)(?::? \d+ of \d+ MiB)?$/.exec(step) ?? [];
  if (image) return t("doing.pulling", { image });
  return step === "started" ? "" : step;
}

/** "then starting": what follows when this is done. */
function thenText(ws, t) {
  const place = stepsBetween(ws.phase, ws.desired_state).findIndex((step) => step.operation === ws.operation);
  const steps = stepsBetween(ws.phase, ws.desired_state).slice(place + 1);
  if (place < 0) return ws.desired_state === ws.phase ? t("doing.back", { phase: t(`phase.${ws.phase}`) }) : "";
  if (!steps.length) return "";
  return t("doing.then", { operation: t(`operation.${steps.at(-1).operation}`).toLowerCase() });
}

function waiting(ws, how) {
  const { t } = how;
  const [step] = stepsBetween(ws.phase, ws.desired_state);
  const operation = step ? t(`operation.${step.operation}`) : t(`phase.${ws.desired_state}`);
  const detail = ws.error ? retry(ws, how) : t(ws.evicted ? "doing.evicted" : "doing.soon");
  const label = ws.phase === ws.desired_state ? t(`phase.${ws.phase}`) : t("doing.now", { operation });
  return { label, detail, fraction: null };
}

function settled(ws, { t, language, now, lifecycle }) {
  if (ws.evicted) return t("doing.evicted");
  if (!lifecycle) return t(`phase.${ws.phase}.meaning`);
  const lease = lifecycle.blocked_by.find((obstacle) => obstacle.kind === "lease" && Date.parse(obstacle.until) > now);
  if (lease) return t("idle.kept", { time: clock(lease.until, now, language) });
  if (lifecycle.stops_at) return stopping(lifecycle, { t, language, now });
  if (lifecycle.blocked_by.some((obstacle) => obstacle.kind === "never")) return t(`idle.never.${ws.phase}`);
  return t(`phase.${ws.phase}.meaning`);
}

function stopping(lifecycle, { t, language, now }) {
  const seconds = (Date.parse(lifecycle.stops_at) - now) / 1_000;
  const since = lifecycle.last_activity_at ? clock(lifecycle.last_activity_at, now, language) : "";
  const time = duration(seconds, language);
  if (lifecycle.becomes === "ARCHIVED") return t("idle.archives", { time });
  if (lifecycle.stop_reason === "max_lifetime") return t("idle.lifetime", { time });
  return t(since ? "idle.stops" : "idle.stops.bare", { time, since });
}
