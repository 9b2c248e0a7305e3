"""Many come and go: descriptors and memory return to where they were."""

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import time

import psutil
import pytest

from bench._proxy_load import SITES
from bench._proxy_processes import running
from codehub.proxy.http.downstream import Downstream
from codehub.proxy.websocket.relay import RelayEnd, WebSocketRelay
from tests.eventually import eventually
from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import ProxyHarness, get, in_time
from tests.proxy.test_websocket import OFFER, SWITCH, echo, upgraded


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the names are not needed


async def visit(proxy: ProxyHarness, dice: random.Random) -> None:
    """One client, in one of the ways clients come and go."""
    raw = await proxy.connect()
    way = dice.randrange(6)
    if way == 0:
        raw.write(get() * 3)
        for _ in range(3):
            await raw.answer()
    elif way == 1:
        raw.write(get()[: dice.randrange(1, 20)])
    elif way == 2:
        raw.write(get("/", "Content-Length: 1000", method="POST") + b"x" * dice.randrange(1000))
    elif way == 3:
        raw.write(get("/ws", *OFFER))
        await raw.head()
        raw.write(b"message")
        await in_time(raw.reader.readexactly(7))
    elif way == 4:
        raw.write(b"nonsense\r\n\r\n")
    if dice.random() < 0.3:
        raw.writer.transport.abort()
    raw.close()


async def test_nothing_is_left_after_churn(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET /ws"):
                writer.write(SWITCH)
                while data := await reader.read(65536):
                    writer.write(data)
                return
            if head.startswith(b"POST"):
                await reader.readexactly(1000)
            writer.write(OK)

    workspace.handler = both
    dice = random.Random(5)
    before = descriptors()
    gc.collect()
    gc.disable()  # what is left must go by itself, not at some later collection
    try:
        for _ in range(40):
            await asyncio.gather(*(visit(proxy, dice) for _ in range(25)))
        await eventually(lambda: proxy.server.connections == 0)
        await eventually(lambda: workspace.open == proxy.server.kept_connections)
        await eventually(lambda: descriptors() <= before + 2 * proxy.server.kept_connections)
        assert [
            type(each) for each in gc.get_objects() if isinstance(each, Downstream | WebSocketRelay | RelayEnd)
        ] == []
    finally:
        gc.enable()


async def test_many_sockets_at_once(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = echo
    raws = await asyncio.gather(*(upgraded(proxy) for _ in range(200)))
    assert proxy.server.connections == 200
    for raw in raws:
        raw.close()
    await eventually(lambda: proxy.server.connections == 0 and workspace.open == 0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_five_thousand_sockets_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients run in processes of their own, as in production; six waves, and memory after the last is as after the
    first ones."""
    program = [sys.executable, "-m"]
    after: list[int] = []
    with (
        running([*program, "bench._proxy_upstream"]) as upstream,
        running([*program, "bench._proxy_server", said(upstream)]) as proxy,
    ):
        told, process = json.loads(said(proxy)), psutil.Process(proxy.pid)
        port = str(told["port"])
        monkeypatch.setenv(SITES, json.dumps(told["sites"]))
        idle = process.num_fds()
        for _ in range(6):
            with running([*program, "bench._proxy_load", "idle", port, "5000", "0"]) as load:
                assert said(load) == "{}"
                assert process.num_fds() >= idle + 10_000
                load.communicate(b"\n", 60)
            while process.num_fds() > idle:  # the test's own time limit ends a leak
                time.sleep(0.1)
            after.append(process.memory_info().rss)
    print(f"RSS after each wave of 5,000 sockets: {[size // 1000 for size in after]} kB")
    assert after[-1] < after[1] * 1.1


def said(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout
    return process.stdout.readline().decode().strip()
