/** Two languages with the same words, for every state there is and every key the pages ask for. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

import { englishStates } from "../../src/codehub/dashboard/static/core/state_labels.js";
import { AUDIT, KINDS, REFUSALS, SCOPES, THINGS, WAIVABLE } from "../../src/codehub/dashboard/static/core/states.js";
import EN from "../../src/codehub/dashboard/static/translations/en.js";
import KO from "../../src/codehub/dashboard/static/translations/ko.js";

const STATIC = new URL("../../src/codehub/dashboard/static/", import.meta.url);
const ENGLISH = { ...englishStates(), ...EN };
const ONLY_KOREAN = /^(problem|wrong|refusal)\./; // the server's own sentences are English

const sources = readdirSync(STATIC, { recursive: true })
  .filter((name) => name.endsWith(".js") && !name.startsWith("translations"))
  .map((name) => readFileSync(new URL(name, STATIC), "utf8"))
  .join("\n");

test("both languages have the same keys", () => {
  const korean = Object.keys(KO).filter((key) => !ONLY_KOREAN.test(key) || key in ENGLISH);
  assert.deepEqual(korean.sort(), Object.keys(ENGLISH).sort());
});

test("nothing is left empty, and the same values go into both", () => {
  const holes = (text) => [...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name).sort();
  for (const [key, text] of Object.entries(ENGLISH)) {
    assert.ok(text.trim() && KO[key].trim(), key);
    assert.deepEqual(holes(KO[key]), holes(text), key);
  }
});

test("English does not repeat what the generated states say", () => {
  assert.deepEqual(Object.keys(EN).filter((key) => key in englishStates()), []);
});

test("every key that the pages name is there", () => {
  const named = [...sources.matchAll(/\bt\(\s*"([^"]+)"/g)].map(([, key]) => key);
  assert.ok(named.length > 150);
  assert.deepEqual([...new Set(named)].filter((key) => !(key in ENGLISH)), []);
});

test("every key that the pages put together is there", () => {
  const endings = {
    "ledger.": KINDS,
    "scope.": SCOPES,
    "waive.": WAIVABLE,
    "did.": Object.keys(AUDIT),
    "thing.": THINGS,
    "garbage.existing.": THINGS,
    "done.": ["start", "stop", "archive", "delete"],
    "tab.": ["overview", "history", "points", "logs", "settings"],
    "admin.": ["overview", "workspaces", "errors", "users", "templates", "garbage", "audit"],
    "filter.": ["all", "running", "busy", "asleep", "empty", "archived", "error", "deleted"],
    "sort.": ["created", "used", "name", "state"],
    "status.": ["yes", "no", "unknown"],
    "news.": ["idle", "lease_ended", "max_lifetime", "wish"],
    "idle.never.": ["RUNNING", "STANDBY"],
  };
  for (const [start, names] of Object.entries(endings)) for (const name of names) assert.ok(`${start}${name}` in ENGLISH, start + name);
});

test("whoever reads no English is told why a sweep is refused", () => {
  assert.deepEqual(Object.keys(KO).filter((key) => key.startsWith("refusal.")).sort(), REFUSALS.map((check) => `refusal.${check}`).sort());
});

test("no key is left that nobody asks for", () => {
  const asked = (key) => {
    if (sources.includes(`"${key}"`)) return true;
    const parts = key.split(".");
    return parts.some((_, place) => place > 0 && sources.includes(`\`${parts.slice(0, place).join(".")}.\${`));
  };
  assert.deepEqual(Object.keys(EN).filter((key) => !asked(key)), []);
});
