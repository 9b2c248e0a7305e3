"""Floods of what is small: each piece is cheap to send, so none of them may be dear to read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from codehub.proxy.access.verdicts import Tap, UpstreamFailure
from codehub.proxy.http.upstream import MOST_INTERIM
from codehub.proxy.presence.tap import AppPresence, IdePresence
from codehub.proxy.websocket.frames import MOST_FRAMES, FrameReader
from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import ProxyHarness, get, status

HINT = b"HTTP/1.1 103 X\r\n\r\n"
EMPTY = {"from upstream": b"\x82\x00", "from client": b"\x82\x80abcd", "pings": b"\x89\x00"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def workspace() -> AsyncIterator[FakeWorkspace]:
    async with FakeWorkspace() as opened:
        yield opened


@pytest.mark.parametrize("count", [MOST_INTERIM + 1, 15_000])
async def test_a_flood_of_interim_answers_is_garbage(workspace: FakeWorkspace, count: int) -> None:
    workspace.answer = lambda _: HINT * count + OK
    async with ProxyHarness(workspace.endpoint) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        head = await raw.head()
        while status(head) == 103:
            head = await raw.head()
        assert status(head) == 502
        assert proxy.authorizer.failures == [UpstreamFailure.GARBAGE]
        raw.close()


class Watched(FrameReader):
    """A reader that counts the frames whose headers it has read."""

    __slots__ = ("frames",)

    def __init__(self, unreadable: Callable[[], None]) -> None:
        super().__init__(unreadable)
        self.frames = 0

    def _start(self, first: int, length: int, key: bytes, at: int) -> int:
        self.frames += 1
        return super()._start(first, length, key, at)


@pytest.mark.parametrize("size", [1 << 18, 1 << 12], ids=["large reads", "small reads"])
@pytest.mark.parametrize("frame", EMPTY)
def test_empty_frames_are_read_up_to_a_bound_whatever_the_reads(frame: str, size: int) -> None:
    told: list[bool] = []
    reader = Watched(lambda: told.append(True))
    flood = EMPTY[frame] * ((1 << 20) // len(EMPTY[frame]))
    for at in range(0, len(flood), size):
        reader.read(flood[at : at + size])
    assert reader.frames <= 2 * MOST_FRAMES
    assert reader.broken
    assert told
    assert not reader.at_boundary


def test_frames_that_come_in_their_time_are_read_for_ever() -> None:
    now = [0.0]
    reader = FrameReader(lambda: pytest.fail("these are frames"), lambda: now[0])
    for _ in range(50):
        now[0] += 1.0
        reader.read(EMPTY["from upstream"] * (MOST_FRAMES - 1))
    assert not reader.broken
    assert reader.at_boundary


@pytest.mark.parametrize(
    "presence",
    [lambda seen: IdePresence(seen, rest=0.0), AppPresence, lambda seen: AppPresence(seen, output=True)],
    ids=["IDE", "app", "another IDE"],
)
def test_a_flood_from_a_client_counts_as_somebody_at_work(presence: Callable[[Callable[[], None]], Tap]) -> None:
    """What cannot be read counts: a workspace is rather kept than stopped under somebody."""
    seen: list[bool] = []
    tap = presence(lambda: seen.append(True))
    for _ in range(3):
        tap.from_client(EMPTY["from client"] * MOST_FRAMES * 2)
    before = len(seen)
    tap.from_client(b"anything")
    assert len(seen) == before + 1
