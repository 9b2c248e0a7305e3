/** What a workspace is doing and why, in words. */

import assert from "node:assert/strict";
import test from "node:test";

import { describe } from "../../src/codehub/dashboard/static/core/status_text.js";
import { englishStates } from "../../src/codehub/dashboard/static/core/state_labels.js";
import { allows, isSettled, tone, stepsBetween } from "../../src/codehub/dashboard/static/core/workspace_state.js";
import { OPERATIONS, PHASES, TRANSITIONS } from "../../src/codehub/dashboard/static/core/states.js";
import { RemainingTime } from "../../src/codehub/dashboard/static/core/remaining_time.js";
import EN from "../../src/codehub/dashboard/static/translations/en.js";

const WORDS = { ...englishStates(), ...EN };
const t = (key, values = {}) => {
  assert.ok(key in WORDS, `no words for ${key}`);
  return WORDS[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
};
const NOW = Date.parse("2026-03-01T14:10:00Z");
const told = (ws, more = {}) => describe(ws, { t, language: "en", now: NOW, ...more });
const workspace = (fields) => ({ id: "1", phase: "RUNNING", desired_state: "RUNNING", operation: "NONE", is_at_rest: true, progress: null, error: null, ...fields });
const life = (fields) => ({ blocked_by: [], stops_at: null, becomes: null, stop_reason: null, last_activity_at: null, ...fields });

test("when it stops, and since when nobody used it", () => {
  const lifecycle = life({ stops_at: "2026-03-01T14:18:00Z", becomes: "STANDBY", stop_reason: "idle", last_activity_at: "2026-03-01T14:02:00Z" });
  assert.deepEqual(told(workspace(), { lifecycle }), { label: "Running", detail: "Stops in 8 min: no activity since 14:02.", fraction: undefined });
});

test("what keeps it up", () => {
  const lease = life({ blocked_by: [{ kind: "lease", until: "2026-03-01T16:00:00Z", message: "" }], stops_at: "2026-03-01T16:00:00Z" });
  assert.equal(told(workspace(), { lifecycle: lease }).detail, "Kept running until 16:00.");
  const never = life({ blocked_by: [{ kind: "never", until: null, message: "" }] });
  assert.equal(told(workspace(), { lifecycle: never }).detail, "Runs until you stop it.");
});

test("how far it is, and how long it takes", () => {
  const progress = { bytes: 1.2e9, total_bytes: 3.4e9, files: 21_380, step: "upload" };
  const ws = workspace({ phase: "STANDBY", desired_state: "ARCHIVED", operation: "ARCHIVING", progress });
  const said = told(ws, { left: 40 });
  assert.equal(said.label, "Archiving…");
  assert.equal(said.detail, "1.2 of 3.4 GB · 21,380 files · 40 sec left");
  assert.ok(Math.abs(said.fraction - 0.353) < 0.001);
});

test("an image that is pulled has a bar, too", () => {
  const pulling = (step, bytes, total_bytes) => workspace({ phase: "STANDBY", operation: "STARTING", progress: { bytes, total_bytes, files: 0, step } });
  const far = told(pulling("pulling registry.example.com:5000/ide:1: 300 of 400 MiB", 3e8, 4e8), { left: 8 });
  assert.equal(far.detail, "pulling registry.example.com:5000/ide:1 · 300 of 400 MB · 8 sec left");
  assert.equal(far.fraction, 0.75);
  const begun = told(pulling("pulling ide:1", 0, 0));
  assert.deepEqual([begun.detail, begun.fraction], ["pulling ide:1", null]);
  assert.equal(told(pulling("started", 0, 0)).detail, "");
});

test("stopping, then starting: a wish that changed meanwhile", () => {
  assert.equal(told(workspace({ operation: "STOPPING" })).detail, "then back to: Running");
  const leaving = workspace({ phase: "RUNNING", desired_state: "DELETED", operation: "STOPPING" });
  assert.equal(told(leaving).detail, "then deleting");
});

test("a failed try is said while it is tried again", () => {
  const ws = workspace({ phase: "STANDBY", operation: "STARTING", error: { message: "disk full", reason: "ActionFailed" } });
  assert.equal(told(ws).detail, "Trying again: disk full");
  assert.equal(told(ws, { language: "ko-KR" }).detail, "Trying again: A backend refused or failed the action.");
});

test("every state of the table has words", () => {
  for (const phase of Object.keys(PHASES)) {
    for (const wish of ["DELETED", "PENDING", "ARCHIVED", "STANDBY", "RUNNING"]) {
      for (const operation of ["NONE", ...Object.keys(OPERATIONS)]) {
        for (const is_at_rest of [true, false]) {
          const ws = workspace({ phase, desired_state: wish, operation, is_at_rest });
          assert.ok(told(ws).label, `${phase} ${wish} ${operation}`);
          assert.ok(tone(ws));
        }
      }
    }
  }
});

test("the way to any wish ends there, or nowhere from an error", () => {
  for (const { phase } of TRANSITIONS) {
    for (const wish of ["DELETED", "ARCHIVED", "STANDBY", "RUNNING"]) {
      const steps = stepsBetween(phase, wish);
      if (phase !== "ERROR" && phase !== wish) assert.equal(steps.at(-1).leadsTo, wish, `${phase} → ${wish}`);
    }
  }
  assert.deepEqual(stepsBetween("RUNNING", "DELETED").map((step) => step.operation), ["STOPPING", "ARCHIVING", "DELETING"]);
});

test("what is wished already is not offered, and what is under way can be taken back", () => {
  assert.ok(!allows("start", workspace()));
  assert.ok(allows("stop", workspace()));
  assert.ok(allows("start", workspace({ desired_state: "STANDBY", operation: "STOPPING" })));
  assert.ok(allows("archive", workspace({ phase: "ARCHIVED", desired_state: "RUNNING", operation: "RESTORING" })));
  assert.ok(!allows("archive", workspace({ phase: "PENDING", desired_state: "PENDING" })));
  assert.ok(allows("delete", workspace({ phase: "ERROR" })));
  assert.ok(!allows("stop", workspace({ phase: "DELETED", desired_state: "DELETED" })));
});

test("a restore that has yet to begin is told, though the phase is as wished", () => {
  const pending = workspace({ phase: "STANDBY", desired_state: "STANDBY", is_at_rest: false });
  assert.ok(isSettled(workspace()) && !isSettled(pending));
  assert.deepEqual(told(pending), { label: "Asleep", detail: WORDS["doing.soon"], fraction: null });
  assert.equal(tone(pending), "busy");
  assert.ok(!isSettled(workspace({ phase: "ERROR" })));
});

test("the pace is told once there is one, and begins anew with another operation", () => {
  const pace = new RemainingTime();
  const at = (bytes, operation = "a") => ({ id: "1", op_id: operation, progress: { bytes, total_bytes: 1_000 } });
  assert.equal(pace.left(at(100), 0), null);
  assert.equal(pace.left(at(200), 1_000), null);
  assert.equal(pace.left(at(300), 2_000), 7);
  assert.equal(pace.left(at(50, "b"), 3_000), null);
  assert.equal(pace.left({ id: "1", op_id: "b", progress: null }, 4_000), null);
});

test("one that was evicted says so until it runs again", () => {
  const evicted = "its node is drained";
  for (const fields of [{}, { phase: "STANDBY", is_at_rest: false }, { phase: "STANDBY", operation: "STARTING", is_at_rest: false }]) {
    assert.match(told(workspace({ ...fields, evicted })).detail, /needed its place/);
  }
});
