/** What a workspace uses, in words: what is not known is left out, and never 0. */

import assert from "node:assert/strict";
import test from "node:test";

import { lastHour, percent, percentText, usageTexts } from "../../src/codehub/dashboard/static/core/usage_text.js";
import EN from "../../src/codehub/dashboard/static/translations/en.js";
import KO from "../../src/codehub/dashboard/static/translations/ko.js";

const words = (texts) => (key, values = {}) => texts[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
const said = (usage, texts = EN, language = "en") => usageTexts(usage, { t: words(texts), language }).join(" · ");
const unknown = { cpu: null, cpu_limit: null, memory_bytes: null, memory_limit_bytes: null, disk: null };
const all = { cpu: 0.24, cpu_limit: 2, memory_bytes: 480e6, memory_limit_bytes: 2e9, disk: { used_bytes: 1.2e9, limit_bytes: 10e9 } };

test("all that is known", () => {
  assert.equal(said(all), "CPU 12% · memory 480 MB of 2 GB · disk 1.2 GB of 10 GB");
  assert.equal(said(all, KO, "ko"), "CPU 12% · 메모리 480 MB / 2 GB · 디스크 1.2 GB / 10 GB");
});

test("what is not known is left out, and 0 is not", () => {
  assert.equal(said(unknown), "");
  assert.equal(said({ ...unknown, cpu: 0, memory_bytes: 0 }), "CPU 0% · memory 0 B");
  assert.equal(said({ ...unknown, disk: { used_bytes: null, limit_bytes: 10e9 } }), "");
  assert.equal(said({ ...unknown, disk: { used_bytes: 5e6, limit_bytes: null } }), "disk 5 MB");
});

test("CPU is a share of what it may use", () => {
  assert.equal(percent({ cpu: 1, cpu_limit: 4 }), 25);
  assert.equal(percent({ cpu: 1.5, cpu_limit: null }), 150);
  assert.equal(percent({ cpu: null, cpu_limit: 4 }), null);
  assert.equal(percentText(0.4, "en"), "0.4%");
  assert.equal(percentText(40.4, "en"), "40%");
});

test("an hour has a point for each minute, and gaps where nothing is known", () => {
  const now = Date.parse("2026-03-01T14:10:30Z");
  const samples = [
    { at: "2026-03-01T13:00:00Z", value: 9 },
    { at: "2026-03-01T13:11:10Z", value: 1 },
    { at: "2026-03-01T14:07:59Z", value: 0 },
    { at: "2026-03-01T14:09:01Z", value: null },
    { at: "2026-03-01T14:10:02Z", value: 3 },
  ];
  const points = lastHour(samples, (sample) => sample.value, now);
  assert.equal(points.length, 60);
  assert.deepEqual(points[0], { at: "2026-03-01T13:11:00.000Z", value: 1 });
  assert.deepEqual(points.slice(1, 3).map(({ value }) => value), [1, null]);
  assert.deepEqual(points.slice(-5).map(({ value }) => value), [null, 0, 0, null, 3]);
  assert.equal(points.filter(({ value }) => value !== null).length, 5);
});

test("no sample, one, and samples that come rarely", () => {
  const now = Date.parse("2026-03-01T14:10:30Z");
  const known = (samples) => lastHour(samples, () => 1, now).filter(({ value }) => value === 1).length;
  assert.equal(known([]), 0);
  assert.equal(known([{ at: "2026-03-01T14:10:02Z" }]), 1);
  assert.equal(known([{ at: "2026-03-01T14:00:00Z" }, { at: "2026-03-01T14:05:00Z" }, { at: "2026-03-01T14:10:00Z" }]), 11);
});
