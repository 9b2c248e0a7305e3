"""A wrong answer is not a wrong object: what the coordinator and the API read from a store over a connection that
changes it once is read again before anybody hears that an archive is lost or damaged."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from codehub.adapters.object_store.archives import ObjectArchives
from codehub.adapters.object_store.contents import ObjectContents
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.judge import ArchiveState
from tests.contracts.s3 import BUCKET, credentials, rclone
from tests.contracts.test_contents import read
from tests.faulty_proxy import ChangingProxy, changing
from tests.job.harness import JobHarness
from tests.job.test_outages import ANSWERS, flipped, wrong

pytestmark = pytest.mark.system

SEEN_BY_A_LOOK = [name for name in ANSWERS if "archive" not in name or name == "no archive"]
LARGE = random.Random(1).randbytes(3 << 20)


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[ChangingProxy]:
    with (
        rclone(tmp_path / "s3") as endpoint,
        changing(int(endpoint.rpartition(":")[2])) as (port, proxy),
        credentials(f"http://127.0.0.1:{port}"),
    ):
        yield proxy


@pytest.fixture
def harness(tmp_path: Path, liar: ChangingProxy) -> JobHarness:
    harness = JobHarness(tmp_path)
    harness.store_url = f"s3://{BUCKET}"
    (harness.home / "folder").mkdir()
    (harness.home / "folder" / "large").write_bytes(LARGE)
    assert harness.archive().code == 0
    return harness


@pytest.mark.parametrize("answer", SEEN_BY_A_LOOK)
async def test_a_look_believes_bad_news_only_when_it_is_heard_twice(
    harness: JobHarness, liar: ChangingProxy, answer: str
) -> None:
    with closing(ObjectArchives(harness.store_url, "")) as archives:
        liar.change = wrong(*ANSWERS[answer], times=1)
        assert await archives.look(harness.key) is ArchiveState.READABLE
        liar.change = wrong(*ANSWERS[answer], times=1000)
        expected = ArchiveState.NOT_FOUND if answer.startswith("no ") else ArchiveState.CORRUPTED
        assert await archives.look(harness.key) is expected


async def test_a_look_that_is_answered_differently_each_time_knows_nothing(
    harness: JobHarness, liar: ChangingProxy
) -> None:
    lengths = iter(range(1, 1000))
    shorter = wrong("HEAD", "home.tar.zst", lambda a: a._replace(length=a.length - next(lengths)), times=1000)
    liar.change = shorter
    with closing(ObjectArchives(harness.store_url, "")) as archives, pytest.raises(Unreachable):
        await archives.look(harness.key)


@pytest.mark.parametrize("answer", ANSWERS)
async def test_browsing_reads_again_before_it_says_that_an_archive_is_damaged(
    harness: JobHarness, liar: ChangingProxy, answer: str
) -> None:
    with closing(ObjectContents(harness.store_url)) as contents:
        liar.change = wrong(*ANSWERS[answer], times=1)
        try:
            listing = await contents.tree(harness.key, "folder")
        except Unreachable:  # read right the second time, and the person is asked to try again
            listing = await contents.tree(harness.key, "folder")
        assert [entry.name for entry in listing.entries] == ["large"]
        liar.change = wrong(*ANSWERS[answer], times=1)
        assert await read(contents, harness.key, "folder/large") == LARGE, "a download goes on where it was"


async def test_a_whole_archive_that_came_wrong_once_is_not_called_damaged(
    harness: JobHarness, liar: ChangingProxy
) -> None:
    with closing(ObjectContents(harness.store_url)) as contents:
        liar.change = wrong("GET", "home.tar.zst", flipped, times=1)
        with pytest.raises(Unreachable):
            await original(contents, harness.key)
        assert len(await original(contents, harness.key)) > 0
        liar.change = wrong("GET", "home.tar.zst", flipped, times=1000)
        with pytest.raises(BackendError) as damage:
            await original(contents, harness.key)
        assert damage.value.reason is ErrorReason.ARCHIVE_CORRUPTED


async def original(contents: ObjectContents, key: str) -> bytes:
    async with contents.original(key) as content:
        return b"".join([chunk async for chunk in content.chunks])
