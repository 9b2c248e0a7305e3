/** A template's variables: what is typed is what is saved, and what is shown can be saved again. */

import assert from "node:assert/strict";
import test from "node:test";

import { environmentText, parsedEnvironment } from "../../src/codehub/dashboard/static/core/environment_variables.js";

test("one NAME=value per line; empty lines do not count", () => {
  assert.deepEqual(parsedEnvironment("A=1\n\n B =x=y \nC=\n"), { env: { A: "1", B: "x=y ", C: "" }, wrong: null });
  assert.deepEqual(parsedEnvironment(""), { env: {}, wrong: null });
});

test("a line without a value is refused, not made up", () => {
  for (const text of ["FOO", "A=1\nFOO", "=x", "A=1\nA=2", 'A="open', "MY NAME=x"]) {
    assert.notEqual(parsedEnvironment(text).wrong, null, text);
  }
  assert.equal(parsedEnvironment("A=1\n  FOO ").wrong, "FOO");
});

test("what is shown is read again as it was", () => {
  const env = { KEY: "-----BEGIN-----\nA=B\n-----END-----\n", QUOTED: '"yes"', PLAIN: "a b=c ", EMPTY: "", WINDOWS: "a\r\nb" };
  assert.deepEqual(parsedEnvironment(environmentText(env)), { env, wrong: null });
});
