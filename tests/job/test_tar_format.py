"""An archive is no private format: ordinary tools read it, with everything in it."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from codehub.job.compress import decompressed
from codehub.job.tar_format import REGULAR, Member, Pieces, encode, encode_map
from codehub.job.tar_reader import TarReader
from tests.job.harness import JobHarness
from tests.job.trees import ROOT, assert_same, make_nasty_tree, snapshot


def plain_tar(harness: JobHarness, target: Path) -> Path:
    make_nasty_tree(harness.home)
    harness.archive()
    target.write_bytes(b"".join(decompressed([harness.object.read_bytes()])))
    return target


def test_python_tarfile_lists_it(harness: JobHarness, tmp_path: Path) -> None:
    with tarfile.open(plain_tar(harness, tmp_path / "home.tar"), errors="surrogateescape") as archive:
        names = {name.encode(errors="surrogateescape") for name in archive.getnames()}
        by_name = {member.name: member for member in archive}
    assert {b"" if name == b"." else name for name in names} == set(harness.tree_of_home())
    assert by_name["holes/1 GiB of nothing"].size == 1 << 30


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
def test_gnu_tar_restores_it(harness: JobHarness, tmp_path: Path) -> None:
    archive = plain_tar(harness, tmp_path / "home.tar")
    if not ROOT:  # GNU tar cannot set an ordinary user's attributes on a read-only file
        subprocess.run(["tar", "-tf", archive], capture_output=True, check=True)
        return
    keep = ["--same-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--delay-directory-restore"]
    done = subprocess.run(["tar", "-C", harness.restored, *keep, "-xf", archive], capture_output=True, check=True)
    assert b"Cannot" not in done.stderr
    assert_same(harness.tree_of_home(), snapshot(harness.restored))


@pytest.mark.parametrize("length", [1, 8, 85, 86, 87, 88, 89, 90, 91, 92, 93, 900, 985, 990, 995, 9990])
def test_records_count_their_own_length(length: int) -> None:
    member = Member(b"x", REGULAR, 0o644, 1, 2, 3, xattrs=(("user.a", b"v" * length),))
    assert list(TarReader([encode(member) + bytes(1024)])) == [member]


@pytest.mark.parametrize(
    "member",
    [
        Member(b"x", REGULAR, 0o644, 2**31, 2**32 - 2, -1),
        Member(b"x", REGULAR, 0o7777, 0, 0, 2**63),
        Member("é".encode(), REGULAR, 0o644, 0, 0, 10**18 + 1),
        Member(b"\xff" * 200, REGULAR, 0o644, 0, 0, -(10**18)),
        Member(b"x", REGULAR, 0o644, 0, 0, (2**63 - 1) * 10**9 + 999_999_999),
        Member(b"x", REGULAR, 0o644, 0, 0, -(2**63) * 10**9),
    ],
)
def test_numbers_too_large_for_a_header_are_kept(member: Member) -> None:
    assert list(TarReader([encode(member) + bytes(1024)])) == [member]


def test_a_file_too_large_for_a_header_is_kept() -> None:
    member = Member(b"x", REGULAR, 0o644, 0, 0, 0, size=2**40)
    assert next(iter(TarReader([encode(member)]))) == member


@pytest.mark.parametrize("size", [1 << 60, 2**63 - 1])
def test_the_largest_sparse_file_is_kept(size: int) -> None:
    pieces = Pieces()
    pieces.add(size - 512, 512)
    sparse_map = encode_map(pieces, size)
    member = Member(b"x", REGULAR, 0o644, 0, 0, 0, size=len(sparse_map) + 512, real_size=size)
    reader = TarReader([encode(member) + sparse_map + bytes(512 + 1024)])
    assert [(found, list(reader.sparse_map(found))) for found in reader] == [(member, [(size - 512, 512)])]
