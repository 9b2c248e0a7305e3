"""The event listener: database notices become messages and wakes; a gap becomes a resync; a dead bus stops no wake."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from codehub.coordinator.event_listener import EventListener
from codehub.domain.workspace import Desired
from codehub.ports.signals import Change, Channel
from tests.coordinator.harness import FAILS, HANGS, CoordinatorHarness, in_virtual_time
from tests.rows import WORKSPACE_ID, workspace

ID = str(WORKSPACE_ID)


class Listening:
    """A running listener, and everything that came of it."""

    def __init__(self, harness: CoordinatorHarness) -> None:
        self.woken: list[UUID] = []
        self.resyncs = 0
        self.heard: list[tuple[str, Mapping[str, Any]]] = []
        self._harness = harness
        self.tasks = [asyncio.create_task(self._hear(name)) for name in ("sse:ann", "sse:resync", "wake:wc")]
        dependencies = harness.dependencies
        self.listener = EventListener(
            dependencies.feed, dependencies.bus, self.woken.append, self._resync, harness.metrics
        )

    def _resync(self) -> None:
        self.resyncs += 1

    async def _hear(self, name: str) -> None:
        async for message in self._harness.dependencies.bus.subscribe(f"codehub:{name}"):
            self.heard.append((name, message))

    async def start(self) -> "asyncio.Task[None]":
        await asyncio.sleep(0)
        task = asyncio.create_task(self.listener.run())
        await asyncio.sleep(0.1)
        return task

    def tell(self, *changes: Change | None) -> None:
        for listener in self._harness.states.database.listeners:
            for change in changes:
                listener.put_nowait(change)


async def listening() -> Listening:
    it = Listening(await CoordinatorHarness.open())
    await it.start()
    it.heard.clear()
    return it


@pytest.mark.parametrize(
    ("channel", "heard", "wakes"),
    [
        (Channel.SSE, ("sse:ann", {"type": "updated", "id": ID}), False),
        (Channel.WAKE, ("wake:wc", {"type": "wake", "id": ID, "sender": ""}), True),
        (Channel.DELETED, ("sse:ann", {"type": "deleted", "id": ID}), True),
    ],
)
@in_virtual_time
async def test_each_notice_goes_to_its_channel(
    channel: Channel, heard: tuple[str, Mapping[str, Any]], wakes: bool
) -> None:
    it = await listening()
    it.tell(Change(channel, WORKSPACE_ID, "ann"))
    await asyncio.sleep(0.1)
    assert it.heard == [heard]
    assert it.woken == ([WORKSPACE_ID] if wakes else [])


@in_virtual_time
async def test_it_begins_with_a_resync_and_again_after_a_gap() -> None:
    it = Listening(await CoordinatorHarness.open())
    first = await it.start()
    assert it.heard == [("sse:resync", {"type": "resync"})]
    it.tell(None)
    await asyncio.sleep(0.1)
    assert first.done()
    await it.start()
    assert it.resyncs == 2
    assert it.heard == [("sse:resync", {"type": "resync"})] * 2


@in_virtual_time
async def test_a_dead_bus_does_not_stop_wakes() -> None:
    harness = await CoordinatorHarness.open()
    it = Listening(harness)
    await asyncio.sleep(0)
    harness.network.faults["bus"] = FAILS
    task = await it.start()
    it.tell(Change(Channel.SSE, WORKSPACE_ID, "ann"), Change(Channel.WAKE, WORKSPACE_ID, "ann"))
    await asyncio.sleep(0.1)
    assert it.woken == [WORKSPACE_ID]
    assert it.heard == []
    del harness.network.faults["bus"]
    it.tell(Change(Channel.SSE, WORKSPACE_ID, "ann"))
    await asyncio.sleep(2.0)
    assert it.heard[0] == ("sse:resync", {"type": "resync"}), "what was missed is made good first"
    assert ("sse:ann", {"type": "updated", "id": ID}) in it.heard
    assert not task.done()


@in_virtual_time
async def test_a_slow_bus_does_not_delay_wakes() -> None:
    """A silent Redis takes seconds to give up; a person who clicked start does not wait for it."""
    harness = await CoordinatorHarness.open()
    it = Listening(harness)
    await it.start()
    harness.network._timeout = 5.0
    harness.network.faults["bus"] = HANGS
    notices = [Change(Channel.SSE, UUID(int=number), "ann") for number in range(10)]
    it.tell(*notices, Change(Channel.WAKE, WORKSPACE_ID, "ann"))
    await asyncio.sleep(6.0)
    assert it.woken == [WORKSPACE_ID]


@in_virtual_time
async def test_a_wish_written_to_the_database_wakes_the_controller() -> None:
    harness = await CoordinatorHarness.open()
    it = Listening(harness)
    await it.start()
    harness.place(workspace(desired_state=Desired.RUNNING))
    await asyncio.sleep(0.1)
    assert it.woken == [WORKSPACE_ID]
    harness.change(memo="not a wish")()
    await asyncio.sleep(0.1)
    assert it.woken == [WORKSPACE_ID]
    assert ("sse:ann", {"type": "updated", "id": ID}) in it.heard
