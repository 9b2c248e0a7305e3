"""What `.codehubignore` leaves out: gitignore's meaning, in bounded steps, and nothing at all when it is in doubt."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codehub.job.ignore import LARGEST_FILE, fits, parse_ignore
from tests.job.harness import JobHarness
from tests.job.trees import assert_same


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    return JobHarness(tmp_path)


def ignored(patterns: str, path: str) -> bool:
    """A path that ends with a slash is a directory."""
    return parse_ignore(patterns.encode()).matches(os.fsencode(path.rstrip("/")), is_directory=path.endswith("/"))


# ── a file in doubt ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ((b"#" * (LARGEST_FILE - 2) + b"\n*.o\n"), "it is longer than 1048576 bytes"),
        (b"*\n# caf\xe9\n", "it is not UTF-8 text"),
        (b"*\n![[:thesis:]]*\r\n", "what shall be kept by “![[:thesis:]]*” cannot be understood"),
        (b"![t\n*\n", "what shall be kept by “![t” cannot be understood"),
    ],
    ids=["cut after the star", "not UTF-8", "unknown class taken back", "open bracket taken back"],
)
def test_a_file_that_is_not_understood_leaves_out_nothing(harness: JobHarness, content: bytes, why: str) -> None:
    (harness.home / ".codehubignore").write_bytes(content)
    (harness.home / "thesis").write_text("years of work")
    before = harness.tree_of_home()
    archived = harness.archive()
    harness.restore()
    assert_same(before, harness.tree_restored())
    assert archived.warnings == [f".codehubignore: {why}, so nothing is left out"]


def test_a_file_of_the_largest_size_is_read_to_its_end(harness: JobHarness) -> None:
    (harness.home / ".codehubignore").write_bytes(b"#" * (LARGEST_FILE - 4) + b"\n*.o")
    (harness.home / "a.o").write_text("x")
    assert harness.archive().warnings == []
    harness.restore()
    assert sorted(harness.tree_restored()) == [b"", b".codehubignore"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_file_is_named(harness: JobHarness, kind: str) -> None:
    path = harness.home / ".codehubignore"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("elsewhere")
    [warning] = [text for text in harness.archive().warnings if text.startswith(".codehubignore:")]
    assert warning.endswith("so nothing is left out")


@pytest.mark.parametrize("line", ["!", "a\\", "[a", "[[:vowel:]]", "[[::]]", "[[:alpha:]", "[[:alpha", "[a\\"])
def test_a_line_that_is_no_pattern_is_named_and_the_others_hold(line: str) -> None:
    ignore = parse_ignore(f"{line}\n*.o\n".encode())
    assert ignore.warnings == [f"not a pattern: {line}"]
    assert ignore.matches(b"x.o", is_directory=False)
    assert not ignore.matches(b"a", is_directory=False)


# ── what patterns mean ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("patterns", "left_out", "kept"),
    [
        ("foo", ["foo", "foo/", "a/foo", "a/b/foo/"], ["food", "afoo"]),
        ("foo/", ["foo/", "a/foo/"], ["foo", "a/foo"]),
        ("/foo", ["foo", "foo/"], ["a/foo"]),
        ("a/foo", ["a/foo"], ["b/a/foo", "foo"]),
        ("/a/foo/", ["a/foo/"], ["a/foo", "b/a/foo/"]),
        ("*.o", ["a.o", ".o", "b/c.o"], ["a.oo", "o"]),
        ("a*b*c", ["abc", "axbxc", "abcbc"], ["ab", "acb"]),
        ("a?c", ["abc", "aéc"], ["ac", "abbc"]),
        ("*", ["a", "a/b", "a/"], []),
        ("**", ["a", "a/b", "a/"], []),
        ("/*", ["a", "a/"], ["a/b"]),
        ("*/", ["a/", "a/b/"], ["a", "a/b"]),
        ("/**", ["a", "a/b", "a/"], []),
        ("**/foo", ["foo", "a/foo", "a/b/foo"], ["a/fo"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "x/a/b", "a/xb"]),
        ("a/**/**/b", ["a/b", "a/x/b"], ["ab"]),
        ("a/**", ["a/b", "a/b/c", "a/b/"], ["a", "a/", "b"]),
        ("a/**/", ["a/b/", "a/b/c/"], ["a/", "a/b"]),
        ("a**c", ["abc", "ac"], ["a/c"]),
        ("[abc]", ["a", "c"], ["d", "ab"]),
        ("[a-c]x", ["ax", "bx"], ["dx"]),
        ("[!a-c]", ["d", "-"], ["b"]),
        ("[^a]", ["b"], ["a"]),
        ("[]-]", ["]", "-"], ["a"]),
        ("[!]a-]", ["b"], ["]", "a", "-"]),
        ("[\\]a]", ["]", "a"], ["\\"]),
        ("[c-a]", ["c"], ["a", "b"]),
        ("[[:digit:]]*.csv", ["1.csv", "9a.csv"], ["a.csv", "\u0661.csv", ":.csv"]),
        ("[![:alnum:]_]", ["-", "é"], ["a", "Z", "0", "_"]),
        ("x[[:space:][:punct:]]", ["x ", "x\t", "x~", "x["], ["xa", "x\v", "x\f"]),
        ("[[:digit:]-z]", ["5", "-", "z"], ["a", ":"]),
        ("[[:ab]", ["[", ":", "b"], ["c", "]"]),
        ("[[:]", ["[", ":"], ["]"]),
        ("[a-[:digit:]]", ["a]", ":]", "d]"], ["5", "a"]),
        ("data/*\n!data/[[:digit:]]*.csv", ["data/a"], ["data/1.csv"]),
        ("\\#a", ["#a"], ["a", "\\#a"]),
        ("\\!a", ["!a"], ["a"]),
        ("#a", [], ["#a", "a"]),
        ("a\\*", ["a*"], ["ab"]),
        ("a  ", ["a"], ["a  "]),
        ("a\\  ", ["a "], ["a"]),
        ("a\r", ["a"], []),
        ("\ufeffa", ["a"], []),
        ("/", [], ["a", "a/"]),
        ("//", [], ["a", "a/"]),
        ("a//b", [], ["a/b"]),
        ("*.log\n!kept.log", ["a.log"], ["kept.log"]),
        ("!kept.log\n*.log", ["kept.log"], []),
        ("*\n!a/", ["a", "a/b"], ["a/"]),
        ("a?b", [b"a\xffb".decode(errors="surrogateescape")], []),
    ],
)
def test_a_pattern_means_what_it_means_to_git(patterns: str, left_out: list[str], kept: list[str]) -> None:
    assert [path for path in left_out if not ignored(patterns, path)] == []
    assert [path for path in kept if ignored(patterns, path)] == []


CLASSES = ["alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "xdigit"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("pattern", [f"x[[:{name}:]]" for name in CLASSES] + ["x[![:punct:][:digit:]a-f-]"])
def test_a_class_holds_the_letters_it_holds_for_git(tmp_path: Path, pattern: str) -> None:
    names = [f"x{chr(code)}" for code in range(1, 128) if chr(code) != "/"]
    for name in names:
        (tmp_path / name).touch()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    listing = ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--ignored", "-x", pattern]
    found = subprocess.run(listing, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")[:-1]
    assert sorted(name for name in names if ignored(pattern, name)) == sorted(found)


def reference(pattern: str, path: str) -> bool:
    """Letter by letter, all ways tried: right by inspection, and slow. Its patterns are anchored and without `[`."""
    if not pattern:
        return not path
    if pattern == "/**":
        return path.startswith("/") and len(path) > 1
    if pattern.startswith("/**/"):
        deeper = path.find("/", 1)
        return reference(pattern[3:], path) or (path[:1] == "/" and deeper > 0 and reference(pattern, path[deeper:]))
    if pattern[0] == "*":
        return reference(pattern[1:], path) or (path[:1] not in {"", "/"} and reference(pattern, path[1:]))
    letter = path[:1] not in {"", "/"} if pattern[0] == "?" else path[:1] == pattern[0]
    return letter and reference(pattern[1:], path[1:])


SEGMENTS = st.text("ab*?", min_size=1, max_size=5).filter(lambda text: text != "**")
PATTERNS = st.lists(st.one_of(st.just("**"), SEGMENTS), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
PATHS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map("/".join)


@settings(max_examples=1500, deadline=None)
@given(PATTERNS, PATHS)
def test_it_matches_as_trying_all_ways_does(pattern: str, path: str) -> None:
    assert ignored(pattern, path) == reference(pattern, "/" + path)


# ── patterns that want to take for ever ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*b*", "a" * 250),
        ("*" * 5000 + "b*", "a" * 250),
        ("*a" * 5000 + "*", "a" * 250),
        ("*[ab]?" * 60 + "c*", "ab" * 120),
        ("**/a/" * 40 + "b/*", "a/" * 400 + "a"),
        ("**/*a*a*b/" * 20 + "x", "a" * 60 + ("/" + "a" * 60) * 30 + "/x"),
    ],
)
def test_no_pattern_takes_for_ever(pattern: str, path: str) -> None:
    assert not ignored(pattern, path)


def test_the_steps_are_at_most_the_product_of_the_lengths() -> None:
    steps = 0

    def same(wanted: str, letter: str) -> bool:
        nonlocal steps
        steps += 1
        return wanted == letter

    pattern = [... if letter == "*" else letter for letter in "*a" * 20 + "*b*"]
    assert not fits(pattern, "a" * 200, same)
    assert steps <= len(pattern) * 200
