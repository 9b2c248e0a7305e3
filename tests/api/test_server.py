"""The socket that the API listens on."""

import asyncio
import socket

import httpx
import pytest
from starlette.requests import Request

from codehub.api.dependencies import address_of
from codehub.api.server import listen_on, serve
from tests.api.memory_api import MemoryApi


def test_no_answer_waits_until_its_beginning_is_acknowledged() -> None:
    """Head and body are two writes: with Nagle's algorithm on, each keep-alive answer would take 40 ms."""
    with (
        listen_on("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("trusted", "believed"),
    [(None, "127.0.0.1"), ("10.0.0.7", "127.0.0.1"), ("10.0.0.7, 127.0.0.1", "203.0.113.9")],
)
async def test_only_a_proxy_that_was_named_says_who_asks(api: MemoryApi, trusted: str | None, believed: str) -> None:
    """Workspaces run on this machine too: what they forward for must not count as somebody else's sign-in tries."""

    @api.app.get("/asking")
    async def asking(request: Request) -> str:
        return address_of(request)

    up, listening = asyncio.Event(), listen_on("127.0.0.1", 0)
    serving = asyncio.ensure_future(serve(api.app, listening, up.set, trusted_proxies=trusted))
    try:
        async with asyncio.timeout(10):
            await up.wait()
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/asking"
            answer = await client.get(url, headers={"X-Forwarded-For": "203.0.113.9"})
        assert answer.json() == believed
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
