"""Archives that lie, and stores that fail: what only real ones can do to the contents port."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codehub.adapters.object_store.contents import ObjectContents
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.naming import meta_key
from codehub.job.archive import empty_archive
from codehub.job.store import decode_meta, encode_meta
from tests.contracts.s3 import BUCKET, Answer, ScriptedStore, credentials, scripted
from tests.contracts.test_archives import FROZEN, NO_BUCKET
from tests.contracts.test_contents import questions, read, refusals
from tests.job.harness import KEY, JobHarness
from tests.job.malicious_archives import directory, file, hard_link, publish, sparse, symlink
from tests.job.test_malicious_archives import HOSTILE
from tests.real_services import free_port


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    return JobHarness(tmp_path)


@pytest.fixture
def contents(harness: JobHarness) -> Iterator[ObjectContents]:
    with closing(ObjectContents(harness.store_url)) as contents:
        yield contents


# ── archives that lie ────────────────────────────────────────────────────────────────────────────────────────────────

HARMLESS_UNLESS_RESTORED = {"reserved name", "reserved directory", "reserved symlink"}
FOUND_IN_THE_FILE = {name for name in HOSTILE if name.startswith("sparse map")}


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - HARMLESS_UNLESS_RESTORED - FOUND_IN_THE_FILE))
async def test_what_no_restore_would_take_is_not_listed(
    harness: JobHarness, contents: ObjectContents, name: str
) -> None:
    publish(harness, HOSTILE[name][0])
    with pytest.raises(BackendError, match="archive refused") as refusal:
        await contents.tree(harness.key, "")
    assert refusal.value.reason is ErrorReason.ACTION_FAILED
    with pytest.raises(BackendError, match="archive refused"):
        await read(contents, harness.key, "")


@pytest.mark.parametrize("name", sorted(FOUND_IN_THE_FILE))
async def test_a_sparse_map_that_lies_is_refused(harness: JobHarness, contents: ObjectContents, name: str) -> None:
    publish(harness, HOSTILE[name][0])
    with pytest.raises(BackendError, match="archive refused"):
        await read(contents, harness.key, "a")


@pytest.mark.parametrize("link", [b"z", b"a", b"d", b"missing", b"s/x"])
async def test_a_hard_link_leads_to_an_earlier_file_only(
    harness: JobHarness, contents: ObjectContents, link: bytes
) -> None:
    publish(harness, [hard_link(b"a", link), directory(b"d"), symlink(b"s", b"/etc"), file(b"z")])
    with pytest.raises(BackendError, match="which is no file of it"):
        await contents.tree(harness.key, "")


async def test_a_name_of_a_name_is_the_file(harness: JobHarness, contents: ObjectContents) -> None:
    publish(harness, [file(b"a", b"data"), hard_link(b"b", b"a"), directory(b"d"), hard_link(b"d/c", b"b")])
    assert await read(contents, harness.key, "d/c") == b"data"
    [entry] = (await contents.tree(harness.key, "d")).entries
    assert (entry.kind, entry.size) == ("file", 4)
    assert b"data" in await read(contents, harness.key, "d")


@pytest.mark.parametrize("parts", [HOSTILE["dot dot"][0], [file(b"a")]], ids=["hostile", "harmless"])
async def test_whatever_is_under_a_wrong_checksum_is_damage_not_malice(
    harness: JobHarness, contents: ObjectContents, parts: list[bytes]
) -> None:
    publish(harness, parts)
    harness.meta.write_bytes(encode_meta(replace(decode_meta(harness.meta.read_bytes()), sha256="0" * 64)))
    assert await refusals(contents, harness.key) == {ErrorReason.ARCHIVE_CORRUPTED}


async def test_an_archive_without_an_end_is_refused(harness: JobHarness, contents: ObjectContents) -> None:
    publish(harness, [file(b"a")], end=b"")
    with pytest.raises(BackendError, match="archive refused: it ends in the middle"):
        await contents.tree(harness.key, "")


async def test_a_file_of_nothing_is_given_in_full(harness: JobHarness, contents: ObjectContents) -> None:
    publish(harness, [sparse(b"a", b"1\n5000000\n0\n", b"", 5_000_000)])
    assert await read(contents, harness.key, "a") == bytes(5_000_000)


async def test_an_archive_that_was_made_again_is_read_anew(harness: JobHarness, contents: ObjectContents) -> None:
    """A job that finds its archive damaged while the volume lives makes it once more, under the same key."""
    publish(harness, [file(b"a", b"first")])
    await contents.tree(harness.key, "")
    publish(harness, [file(b"a", b"second"), file(b"b", b"more")])
    assert await read(contents, harness.key, "b") == b"more"
    assert await read(contents, harness.key, "a") == b"second"


# ── stores that fail ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_directory_that_is_not_there_is_no_answer(harness: JobHarness, contents: ObjectContents) -> None:
    publish(harness, [file(b"a")])
    harness.archives.rename(harness.archives.with_name("unmounted"))
    assert await refusals(contents, harness.key) == {ErrorReason.UNREACHABLE}
    harness.archives.with_name("unmounted").rename(harness.archives)
    assert await read(contents, harness.key, "a") == b"pwned"


async def test_an_outage_after_the_listing_is_no_answer(harness: JobHarness, contents: ObjectContents) -> None:
    publish(harness, [file(b"a")])
    await contents.tree(harness.key, "")
    harness.archives.rename(harness.archives.with_name("unmounted"))
    with pytest.raises(Unreachable):
        await read(contents, harness.key, "a")


async def test_refused_connections_are_no_answer() -> None:
    with credentials(f"http://127.0.0.1:{free_port()}"), closing(ObjectContents(f"s3://{BUCKET}")) as contents:
        assert await refusals(contents, KEY) == {ErrorReason.UNREACHABLE}


@pytest.fixture
def script() -> Iterator[tuple[ObjectContents, ScriptedStore]]:
    """An S3 that has the archive KEY, and does to it what a test says."""
    data, meta = empty_archive(datetime.now(UTC))
    with (
        scripted() as (endpoint, store),
        credentials(endpoint),
        closing(ObjectContents(f"s3://{BUCKET}", answer_seconds=2.0)) as contents,
    ):
        store.answers = {
            ("GET", meta_key(KEY)): Answer(200, encode_meta(meta)),
            ("HEAD", KEY): Answer(200, data),
            ("GET", KEY): Answer(200, data),
        }
        yield contents, store


Script = tuple[ObjectContents, ScriptedStore]


@pytest.mark.parametrize("answer", [Answer(403), Answer(404, NO_BUCKET), Answer(500)], ids=lambda a: str(a.status))
async def test_a_store_that_refuses_fails_or_is_gone_is_no_answer(script: Script, answer: Answer) -> None:
    contents, store = script
    store.answers, store.otherwise = {}, answer
    assert await refusals(contents, KEY) == {ErrorReason.UNREACHABLE}


async def test_silence_is_no_answer(script: Script) -> None:
    contents, store = script
    store.silent = True
    with pytest.raises(Unreachable, match="within 2 s"):
        await contents.tree(KEY, "")


async def test_a_cold_archive_is_named_as_such(script: Script) -> None:
    contents, store = script
    store.answers["GET", KEY] = Answer(403, FROZEN)
    assert await refusals(contents, KEY) == {ErrorReason.ARCHIVE_ACCESS_ERROR}
    with pytest.raises(BackendError, match="cold storage"):
        await contents.tree(KEY, "")


async def test_an_object_that_ends_early_on_the_wire_is_not_taken_for_whole(script: Script) -> None:
    contents, store = script
    whole = store.answers["GET", KEY]
    store.answers["GET", KEY] = Answer(200, whole.body[:-3], (("Content-Length", str(len(whole.body))),))
    for ask in questions(contents, KEY):
        with pytest.raises(BackendError):
            await ask()


def test_a_store_is_named_plainly() -> None:
    with pytest.raises(ValueError, match="file:///directory or s3://bucket"):
        ObjectContents("ftp://x")
