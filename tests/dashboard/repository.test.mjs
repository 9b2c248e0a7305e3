/** Which addresses mean the same repository, and what a README says. */

import assert from "node:assert/strict";
import test from "node:test";

import { badge, newLink, repositoryKey, repositoryName } from "../../src/codehub/dashboard/static/core/repository.js";

test("one repository by many addresses", () => {
  const same = [
    "https://git.example.com/team/shop",
    "https://GIT.example.com/team/shop.git",
    "https://git.example.com:8443/team/shop.git/",
    "ssh://git@git.example.com:22/team/shop.git",
    "git@git.example.com:team/shop.git",
    " git://git.example.com/team/shop ",
  ];
  assert.deepEqual(new Set(same.map(repositoryKey)), new Set(["git.example.com/team/shop"]));
});

test("others are others", () => {
  const others = ["https://git.example.com/team/Shop", "https://git.example.com/shop", "https://example.com/team/shop", "shop", ""];
  assert.equal(new Set(others.map(repositoryKey)).size, others.length);
});

test("an address that is none is refused before it is taken apart, which could take for ever", () => {
  const slashes = `a${"/".repeat(200_000)}\nx`;
  const hostile = [slashes, `a/${".git/".repeat(300)}`, "https://host/a\nb", "https://host/a\u0000"];
  assert.deepEqual(hostile.map(repositoryKey), hostile);
  assert.deepEqual(hostile.map(repositoryName), ["", "", "", ""]);
  assert.equal(repositoryName(`https://host/team/shop.git${"/".repeat(900)}`), "shop");
});

test("a workspace is called as its repository", () => {
  const urls = ["https://git.example.com/team/shop.git", "git@host:shop", "https://host/.github", "", "https://host/"];
  assert.deepEqual(urls.map(repositoryName), ["shop", "shop", "github", "", ""]);
});

test("a link and a badge", () => {
  const url = "https://git.example.com/a&b=c/shop";
  const link = newLink("https://hub.example.com", url, "release/1.2");
  assert.deepEqual([...new URL(link).searchParams], [["git", url], ["ref", "release/1.2"]]);
  assert.equal(newLink("https://hub", "https://h/s", null), "https://hub/new?git=https%3A%2F%2Fh%2Fs");
  assert.equal(badge("https://hub", "https://h/s"), "[![Open in CodeHub](https://hub/badge.svg)](https://hub/new?git=https%3A%2F%2Fh%2Fs)");
});
