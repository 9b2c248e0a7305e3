/** The public API, as anybody's program would call it. Errors are problems with a stable code (RFC 9457). */

import { noteServerTime } from "./clock.js";

const ROOT = "/api/v1";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `HTTP ${status}`);
    this.status = status;
    this.code = body.code || "unknown";
    this.fields = body.errors || [];
    this.holders = body.holders || [];
  }
}

let signedOut = () => {};
let proofNeeded = async () => false;

/** Sets what is done when nobody is signed in any more. */
export function onSignedOut(act) {
  signedOut = act;
}

/** Sets how to ask for proof that it is still the same person; that answers whether the proof was given. */
export function onProofNeeded(ask) {
  proofNeeded = ask;
}

/**
 * What changes accounts or makes tokens is asked for once more after the person has proved that it is still them.
 * @returns {Promise<any>} the answer's JSON, or null if it has none
 */
export async function call(method, path, body, headers = {}) {
  try {
    return await called(method, path, body, headers);
  } catch (problem) {
    if (problem.code !== "proof_needed" || !(await proofNeeded())) throw problem;
    return called(method, path, body, headers);
  }
}

async function called(method, path, body, headers) {
  const asked = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin" };
  if (method !== "GET") {
    asked.headers["Content-Type"] = "application/json";
    asked.body = JSON.stringify(body ?? {});
  }
  const answer = await answered(path, asked);
  if (answer.status === 401) signedOut();
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, told);
  return told;
}

async function answered(path, asked) {
  try {
    const answer = await fetch(path.startsWith("/") ? path : `${ROOT}/${path}`, asked);
    noteServerTime(answer.headers.get("date"));
    return answer;
  } catch {
    throw new Problem(0, { code: "offline", detail: "The server does not answer." });
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body, headers) => call("POST", path, body, headers);
export const patch = (path, body) => call("PATCH", path, body);
export const put = (path, body) => call("PUT", path, body);
export const remove = (path) => call("DELETE", path);

/** @param {Object<string, any>} values without those that are null, undefined, false or empty */
export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}
