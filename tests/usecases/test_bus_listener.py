"""The one listener on the bus: what it hands over, and what it tells of the gaps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from codehub.adapters.memory.signals import MemoryBus
from codehub.domain.errors import Unreachable
from codehub.usecases import bus_listener
from codehub.usecases.bus_listener import BusListener, Message, workspace_in


class Recorder:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.changed = asyncio.Event()
        self.bus = MemoryBus()
        self.listener = BusListener(
            self.bus,
            "a",
            self._handle,
            subscribed=lambda: self._note("subscribed"),
            lost=lambda: self._note("lost"),
        )

    async def _handle(self, message: Message) -> None:
        if message["id"] == "fault":
            raise RuntimeError("a fault of the handler")
        self._note(message["id"])

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.changed.set()

    async def until(self, *calls: str) -> None:
        async with asyncio.timeout(5):
            while self.calls != list(calls):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def running(recorder: Recorder) -> AsyncIterator[None]:
    task = asyncio.ensure_future(recorder.listener.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_messages_are_handed_over_and_a_loss_is_told_before_it_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bus_listener, "RETRY_SECONDS", 0.01)
    recorder = Recorder()
    async with running(recorder):
        await recorder.until("subscribed")
        await recorder.bus.publish("a", {"id": "one"})
        await recorder.until("subscribed", "one")
        recorder.bus.state.sever()
        await recorder.until("subscribed", "one", "lost", "subscribed")
        assert recorder.listener.is_subscribed
        assert recorder.listener.losses == 1


async def test_one_subscription_ends_with_what_ended_it() -> None:
    recorder = Recorder()
    once = asyncio.ensure_future(recorder.listener.listen_once())
    await recorder.until("subscribed")
    recorder.bus.state.sever()
    with pytest.raises(Unreachable):
        await once
    assert not recorder.listener.is_subscribed


async def test_a_fault_of_the_handler_ends_the_listener_and_is_told_as_a_loss() -> None:
    recorder = Recorder()
    listening = asyncio.ensure_future(recorder.listener.run())
    await recorder.until("subscribed")
    await recorder.bus.publish("a", {"id": "fault"})
    with pytest.raises(RuntimeError):
        await listening
    assert recorder.calls == ["subscribed", "lost"]


@pytest.mark.parametrize("message", [{}, {"id": None}, {"id": 7}, {"id": "no uuid"}, {"id": ["x"]}], ids=str)
def test_a_message_without_an_id_is_about_no_workspace(message: Message) -> None:
    assert workspace_in(message) is None
