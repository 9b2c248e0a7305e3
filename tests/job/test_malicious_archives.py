"""Archives that would write outside the home, fill the disk or the memory: refused, and nothing is left of them."""

import os
from pathlib import Path

import pytest

from codehub.job.errors import ExitCode
from codehub.job.tar_format import REGULAR, Member, encode
from tests.job.harness import JobHarness, operation
from tests.job.malicious_archives import directory, extended, file, hard_link, of_kind, publish, record, sparse, symlink
from tests.job.trees import snapshot

HOSTILE: dict[str, tuple[list[bytes], str]] = {
    "absolute name": ([file(b"/tmp/codehub-pwned")], "would be outside the home"),
    "absolute name in an extended header": (
        [extended(record(b"path", b"/tmp/codehub-pwned"), file(b"x"))],
        "would be outside the home",
    ),
    "dot dot": ([file(b"../pwned")], "would be outside the home"),
    "dot dot inside": ([directory(b"a"), file(b"a/../../pwned")], "would be outside the home"),
    "dot dot at the end": ([directory(b"a"), directory(b"a/..")], "would be outside the home"),
    "dot dot in a sparse name": ([sparse(b"../pwned", b"0\n", b"", 5)], "would be outside the home"),
    "dot component": ([file(b"a/./b")], "is no proper name"),
    "empty component": ([directory(b"a"), file(b"a//b")], "is no proper name"),
    "zero byte in a name": ([extended(record(b"path", b"a\x00b"), file(b"x"))], "is no proper name"),
    "write through a symlink": ([symlink(b"a", b"/tmp"), file(b"a/codehub-pwned")], "comes without its directory"),
    "write through a relative symlink": ([symlink(b"a", b".."), file(b"a/pwned")], "comes without its directory"),
    "directory over a symlink": ([symlink(b"a", b"/tmp"), directory(b"a"), file(b"a/codehub-pwned")], "comes twice"),
    "file over a symlink": ([symlink(b"a", b"/tmp/codehub-pwned"), file(b"a")], "comes twice"),
    "symlink over a directory": ([directory(b"a"), symlink(b"a", b"/tmp"), file(b"a/codehub-pwned")], "comes twice"),
    "symlink deep inside": (
        [directory(b"a"), symlink(b"a/b", b"/tmp"), file(b"a/b/codehub-pwned")],
        "comes without its directory",
    ),
    "hard link outside, absolute": ([hard_link(b"a", b"/etc/passwd")], "would be outside the home"),
    "hard link outside, relative": ([hard_link(b"a", b"../secret")], "would be outside the home"),
    "hard link through a symlink": ([symlink(b"s", b".."), hard_link(b"a", b"s/secret")], "is a hard link to outside"),
    "hard link to a directory": ([directory(b"d"), hard_link(b"a", b"d")], "which is no file of it"),
    "hard link to nothing": ([hard_link(b"a", b"missing")], "which is no file of it"),
    "character device": ([of_kind(b"null", b"3")], " device"),
    "block device": ([of_kind(b"disk", b"4")], " device"),
    "unknown type": ([of_kind(b"x", b"7")], "of an unknown type"),
    "GNU long name": ([of_kind(b"././@LongLink", b"L")], "of an unknown type"),
    "global header": ([of_kind(b"x", b"g")], "of an unknown type"),
    "old sparse format": ([of_kind(b"x", b"S")], "of an unknown type"),
    "same name twice": ([file(b"a"), file(b"a")], "comes twice"),
    "the home twice": ([directory(b""), directory(b"")], "the home itself"),
    "the home as a symlink": ([symlink(b"", b"/tmp")], "the home itself"),
    "member without its directory": ([file(b"a/b")], "comes without its directory"),
    "directory taken up again": ([directory(b"a"), directory(b"b"), file(b"a/late")], "comes without its directory"),
    "reserved name": ([file(b".codehub-restored-" + operation(1).encode())], "is a reserved name"),
    "reserved symlink": ([symlink(b".codehub-restoring-" + operation(1).encode(), b"x")], "is a reserved name"),
    "reserved directory": ([directory(b".codehub-restore-" + operation(1).encode())], "is a reserved name"),
    "content behind a symlink": (
        [extended(record(b"size", b"512"), symlink(b"a", b"b") + bytes(512))],
        "content that can have none",
    ),
    "huge extended header": ([extended(b"", b"", size=1 << 32)], "an extended header of 4294967296 bytes"),
    "extended header that lies": ([extended(b"99 path=x\n", file(b"x"))], "cannot be read"),
    "extended header with no length": ([extended(b" path=x\n", file(b"x"))], "cannot be read"),
    "negative size": ([extended(record(b"size", b"-1"), file(b"x"))], "a number that is none"),
    "owner out of range": ([extended(record(b"uid", b"4294967295"), file(b"x"))], "an owner that is none"),
    "size beyond the largest": ([extended(record(b"size", b"%d" % 2**63), file(b"x"))], "a number that is none"),
    "size of twenty digits": ([extended(record(b"size", b"1" * 20), file(b"x"))], "a number that is none"),
    "time after the last": ([extended(record(b"mtime", b"%d" % 2**63), file(b"x"))], "a time that is none"),
    "time before the first": ([extended(record(b"mtime", b"-%d.5" % 2**63), file(b"x"))], "a time that is none"),
    "path without end": ([extended(record(b"path", b"x" * (5 << 20)), file(b"x"))], "is too long a name"),
    "crowd of records": (
        [extended(b"".join(record(b"%d" % number, b"") for number in range(20_000)), file(b"x"))],
        "more than 16384 records",
    ),
    "unknown record": (
        [extended(record(b"SCHILY.dev", b"1") + record(b"mtime", b"1"), file(b"x"))],
        "this job does not write",
    ),
    "attribute of the host": (
        [extended(record(b"SCHILY.xattr.security.selinux", b"x"), file(b"x"))],
        "an attribute a home cannot have",
    ),
    "wrong checksum": ([b"x" + file(b"a")[1:]], "wrong checksum"),
    "sparse map that overlaps": ([sparse(b"a", b"2\n0\n512\n256\n512\n", bytes(1024), 4096)], "does not fit it"),
    "sparse map beyond its file": ([sparse(b"a", b"1\n4096\n512\n", bytes(512), 4096)], "does not fit it"),
    "sparse map with more than its data": ([sparse(b"a", b"1\n0\n1024\n", bytes(512), 4096)], "does not fit its data"),
    "sparse map without end": ([sparse(b"a", b"9" * 512, b"", 4096)], "something else than numbers"),
    "sparse map of a billion pieces": ([sparse(b"a", b"1000000000\n", b"", 4096)], "1000000000 pieces"),
    "old sparse records": ([extended(record(b"GNU.sparse.map", b"0,1"), file(b"x"))], "does not write"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(harness: JobHarness, name: str) -> None:
    secret = harness.restored.parent / "secret"
    secret.write_text("not yours")
    outside = _outside(harness)
    parts, why = HOSTILE[name]
    publish(harness, parts)
    restored = harness.restore()
    assert restored.code == ExitCode.REFUSED_MEMBER, restored
    assert restored.message.startswith("archive refused: ")
    assert why in restored.message
    assert _outside(harness) == outside
    assert os.listdir(harness.restored) == [], "nothing of it stays"
    assert secret.stat().st_nlink == 1


def _outside(harness: JobHarness) -> list[str]:
    near = [str(path) for path in harness.restored.parent.rglob("*") if "archives" not in path.parts]
    return sorted(near + [str(path) for path in Path("/tmp").glob("codehub-pwned*")])


def test_symlinks_may_point_anywhere(harness: JobHarness) -> None:
    publish(harness, [symlink(b"a", b"/etc/passwd"), symlink(b"b", b"../../.."), symlink(b"c", b"a")])
    assert harness.restore().code == ExitCode.DONE
    assert {path: entry.content for path, entry in snapshot(harness.restored).items() if path} == {
        b"a": "/etc/passwd",
        b"b": "../../..",
        b"c": "a",
    }


def test_a_bomb_is_stopped_at_the_limit(harness: JobHarness) -> None:
    """7 GB of zeros in a few hundred kilobytes, from a `.meta` that claims it is small."""
    header = encode(Member(b"bomb", REGULAR, 0o644, 0, 0, 0, size=7 << 30))
    zeros = bytes(1 << 20)
    publish(harness, [file(b"small"), header, *(zeros for _ in range(64))], content_bytes=1)
    restored = harness.restore(max_bytes=8 << 20)
    assert restored.code == ExitCode.REFUSED_MEMBER
    assert "8388608" in restored.message
    assert os.listdir(harness.restored) == []


def test_a_bomb_of_members_is_stopped_too(harness: JobHarness) -> None:
    publish(harness, (file(b"%d" % number, b"") for number in range(3000)))
    assert harness.restore(max_bytes=1 << 20).code == ExitCode.REFUSED_MEMBER
    assert os.listdir(harness.restored) == []


def test_an_archive_known_to_be_too_large_is_not_even_read(harness: JobHarness) -> None:
    publish(harness, [file(b"a")], content_bytes=1 << 40)
    restored = harness.restore(max_bytes=1 << 20)
    assert (restored.code, restored.events) == (ExitCode.REFUSED_MEMBER, [])


def test_holes_do_not_count_against_the_limit(harness: JobHarness) -> None:
    with (harness.home / "sparse").open("wb") as sparse_file:
        sparse_file.truncate(1 << 30)
    harness.archive()
    assert harness.restore(max_bytes=1 << 20).code == ExitCode.DONE


def test_an_archive_that_goes_on_after_its_end_is_refused(harness: JobHarness) -> None:
    publish(harness, [file(b"a")], end=bytes(1024) + file(b"b"))
    assert harness.restore().code == ExitCode.REFUSED_MEMBER


def test_an_archive_without_an_end_is_not_believed(harness: JobHarness) -> None:
    """Its checksum is right, so reading it again cannot help."""
    publish(harness, [file(b"a")], end=b"")
    assert harness.restore().code == ExitCode.REFUSED_MEMBER
    assert os.listdir(harness.restored) == []
