/** Numbers, times and the list's order. */

import assert from "node:assert/strict";
import test from "node:test";

import * as format from "../../src/codehub/dashboard/static/core/format.js";
import { FILTERS, chosen, counts } from "../../src/codehub/dashboard/static/pages/selection.js";

test("sizes", () => {
  const said = [0, 999, 1_000, 1_234_567, 999_999, 99_950_000, 3.4e12].map((count) => format.bytes(count, "en"));
  assert.deepEqual(said, ["0 B", "999 B", "1 KB", "1.2 MB", "1 MB", "100 MB", "3.4 TB"]);
  assert.deepEqual(format.bytesOf(1.2e9, 3.4e9, "en"), ["1.2", "3.4 GB"]);
});

test("spans, in both languages", () => {
  const said = [-3, 0, 40, 480, 3_600, 7_500, 86_400 * 3].map((seconds) => format.duration(seconds, "en"));
  assert.deepEqual(said, ["0 sec", "0 sec", "40 sec", "8 min", "1 hr", "2 hr 5 min", "3 days"]);
  assert.equal(format.duration(480, "ko"), "8분");
});

test("how long ago", () => {
  const now = Date.parse("2026-03-01T12:00:00Z");
  assert.equal(format.ago("2026-03-01T11:59:57Z", now, "en"), "now");
  assert.equal(format.ago("2026-03-01T11:57:00Z", now, "en"), "3 minutes ago");
  assert.equal(format.ago("2026-02-28T12:00:00Z", now, "en"), "yesterday");
  assert.equal(format.ago("2026-03-01T11:57:00Z", now, "ko"), "3분 전");
});

const at = (day) => `2026-03-0${day}T12:00:00Z`;
const row = (id, fields) => ({ id, name: id, description: "", memo: "", owner: "ann", template: "default", phase: "RUNNING", desired_state: "RUNNING", operation: "NONE", created_at: at(1), last_access_at: null, deleted_at: null, ...fields });
const ALL = [
  row("b", { created_at: at(3) }),
  row("a10", { created_at: at(1), last_access_at: at(9), phase: "ARCHIVED", desired_state: "ARCHIVED", description: "The Shop" }),
  row("a2", { created_at: at(2), phase: "ERROR" }),
];
const ids = (view) => chosen(ALL, { q: "", filter: "all", sort: "created", ...view }).map((ws) => ws.id);

test("search, filter, order", () => {
  assert.deepEqual(ids({}), ["b", "a2", "a10"]);
  assert.deepEqual(ids({ sort: "name" }), ["a2", "a10", "b"]);
  assert.deepEqual(ids({ sort: "used" }), ["a10", "b", "a2"]);
  assert.deepEqual(ids({ sort: "state" }), ["a2", "b", "a10"]);
  assert.deepEqual(ids({ q: "shop the" }), ["a10"]);
  assert.deepEqual(ids({ filter: "error" }), ["a2"]);
  assert.equal(counts(ALL).all, 3);
  assert.deepEqual(Object.keys(counts(ALL)), Object.keys(FILTERS));
});
