"""What an orchestrator asks is answered, whoever else is connected and says nothing; and ending waits for nobody."""

import asyncio
import socket
import threading
from contextlib import AsyncExitStack
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from codehub.cli import serve
from codehub.cli.serve import ProcessStatus, serving_status
from codehub.coordinator.process import CoordinatorReadiness

ANYWHERE = "127.0.0.1:0"
TIMEOUT_SECONDS = 20


def fine() -> ProcessStatus:
    return ProcessStatus(ready=True, details={"well": True})


def asked(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


async def test_each_question_has_its_answer() -> None:
    ready = True
    async with serving_status(ANYWHERE, lambda: ProcessStatus(ready, {"ready": ready}), CollectorRegistry()) as port:

        async def answers(*paths: str) -> list[tuple[int, str]]:
            return [await asyncio.to_thread(asked, port, path) for path in paths]

        assert await answers("healthz", "readyz") == [(200, '{"ready": true}\n')] * 2
        ready = False
        assert await answers("healthz", "readyz") == [(200, '{"ready": false}\n'), (503, '{"ready": false}\n')]
        assert [status for status, _ in await answers("metrics", "", "nothing")] == [200, 404, 404]


async def test_whoever_says_nothing_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve._Handler, "timeout", 10 * TIMEOUT_SECONDS)  # not even before they are given up
    async with (
        AsyncExitStack() as silent_ones,
        asyncio.timeout(TIMEOUT_SECONDS),
        serving_status(ANYWHERE, fine, CollectorRegistry()) as port,
    ):
        for _ in range(3):
            silent_ones.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
        for path in ("healthz", "readyz", "metrics"):
            assert (await asyncio.to_thread(asked, port, path))[0] == 200


async def test_ending_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ending, others_go_on, really = threading.Event(), threading.Event(), serve._Server.shutdown
    seen = []

    def shutdown(server: serve._Server) -> None:
        ending.set()
        seen.append(others_go_on.wait(TIMEOUT_SECONDS))
        really(server)

    async def go_on() -> None:
        await asyncio.to_thread(ending.wait, TIMEOUT_SECONDS)
        others_go_on.set()

    monkeypatch.setattr(serve._Server, "shutdown", shutdown)
    going_on = asyncio.create_task(go_on())
    async with serving_status(ANYWHERE, fine, CollectorRegistry()):
        pass
    await going_on
    assert seen == [True]
    assert "codehub-status" not in [thread.name for thread in threading.enumerate()]


async def test_a_silent_connection_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve._Handler, "timeout", 0.05)
    async with serving_status(ANYWHERE, fine, CollectorRegistry()) as port:
        with socket.create_connection(("127.0.0.1", port or 0), timeout=TIMEOUT_SECONDS) as silent:
            assert await asyncio.to_thread(silent.recv, 1) == b"", "hung up"
    assert capfd.readouterr().err == ""


async def test_without_an_address_nothing_is_served() -> None:
    async with serving_status(None, fine, CollectorRegistry()) as port:
        assert port is None


@pytest.mark.parametrize(
    ("leads", "age", "ready"),
    [(False, None, True), (True, None, False), (True, 59.0, True), (True, 61.0, False)],
)
def test_a_leader_is_ready_while_it_sees(leads: bool, age: float | None, ready: bool) -> None:
    assert CoordinatorReadiness(leads, 1, age, 0).is_ready is ready
