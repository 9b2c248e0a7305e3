"""A container dies and another person's gets its address: nothing that was meant for the first reaches the second.

The front door here never hears that anything has changed: what it knows of each workspace is what it knew at first.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from codehub.adapters.docker import DockerRuntime, DockerSite, Engine, payloads
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.agent.handshake import HELLO_BYTES, KEY_BYTES
from codehub.domain.naming import volume_name
from codehub.ports.runtime import AgentPort, ContainerSpec, Endpoint, Resources
from codehub.proxy.access.verdicts import Forward
from tests.agent.running_agent import a_server, an_agent
from tests.docker_engine import DockerTestbed, engine_here, sweep
from tests.eventually import eventually
from tests.proxy.deployment import deployed
from tests.proxy.harness import ProxyHarness

SENDERS = 4
REMEMBERED = 4
"""Of how many containers that have gone the addresses are still asked."""
STALE = 8
"""How many requests in the name of those that have gone are made while each runs."""


@asynccontextmanager
async def one_address(engine: Engine, site: DockerSite) -> AsyncIterator[None]:
    """A network that has room for a single container: each that starts there gets the address of the one before."""
    docker = await engine.docker()
    subnet = f"10.{random.randrange(100, 250)}.{random.randrange(250)}.{4 * random.randrange(60)}/30"
    network = payloads.network(site) | {"IPAM": {"Config": [{"Subnet": subnet}]}}
    made = await docker.networks.create(network)
    try:
        yield
    finally:
        await sweep(engine, site.install_id)
        await made.delete()


class Crowd:
    """Asks for every workspace by its name, over and over, whether it is there or not."""

    def __init__(self, proxy: ProxyHarness) -> None:
        self._proxy = proxy
        self.known: list[UUID] = []
        self.statuses: Counter[tuple[UUID, int]] = Counter()

    def learn(self, key: UUID, endpoint: Endpoint) -> None:
        self._proxy.authorizer.verdicts[f"/for/{key}".encode()] = lambda: Forward(endpoint)
        self.known = [*self.known, key][-1 - REMEMBERED :]

    def stale(self) -> int:
        """How many requests were made so far for those that have gone."""
        return sum(self.statuses[key, 502] for key in self.known[:-1])

    async def asked_enough(self, key: UUID, before: int) -> bool:
        """Ask for the one that runs, and for those that have gone."""
        others = len(self.known) > 1
        return self.statuses[key, 200] > 0 and (not others or self.stale() >= before + STALE)

    async def send(self) -> None:
        while True:
            for key in self.known:
                self.statuses[key, await self._status(key)] += 1
            await asyncio.sleep(0)

    async def _status(self, key: UUID) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy.port)
        try:
            writer.write(f"GET /for/{key} HTTP/1.1\r\nHost: workspace\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
        return int(answer.split(b" ")[1])


async def has_logged(runtime: DockerRuntime, key: UUID) -> bool:
    """Whether a request of its own is written down: the engine has the line a moment after the answer."""
    return f"/for/{key} " in await runtime.logs(key, 10_000)


async def live(runtime: DockerRuntime, crowd: Crowd) -> tuple[str, list[str]]:
    """One workspace's life: its address, and the names in which it was asked for something."""
    key = uuid4()
    await runtime.create_volume(key, volume_name(key, 1))
    before = crowd.stale()
    await runtime.start_container(ContainerSpec(key, volume_name(key, 1), "", {}, Resources(memory_bytes=64 << 20)))
    await eventually(lambda: runtime.answers(key), 60)
    endpoint = await runtime.endpoint(key)
    assert endpoint is not None
    assert endpoint.host is not None
    crowd.learn(key, endpoint)
    await eventually(lambda: crowd.asked_enough(key, before), 60)
    await eventually(lambda: has_logged(runtime, key), 60)
    lines = (await runtime.logs(key, 10_000)).splitlines()
    names = [line.split("/for/")[1].split(" ")[0] for line in lines if "/for/" in line]
    assert str(key) in names, "its own requests are written down"
    await runtime.remove_container(key)
    return endpoint.host, sorted(set(names) - {str(key)})


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exchanges", [8, pytest.param(50, marks=pytest.mark.long)])
async def test_containers_exchange_one_address_and_no_request_reaches_another_s(
    docker_testbed: DockerTestbed, exchanges: int
) -> None:
    engine = engine_here()
    site = docker_testbed.site()
    site = replace(site, network=site.install_id)
    runtime = DockerRuntime(engine, site, isolation=NetworkIsolation(engine, site, ours=False), grace_seconds=1)
    try:
        async with one_address(engine, site), ProxyHarness(Endpoint(host="127.0.0.1", port=1)) as proxy:
            crowd = Crowd(proxy)
            senders = [asyncio.create_task(crowd.send()) for _ in range(SENDERS)]
            try:
                lives = [await live(runtime, crowd) for _ in range(exchanges + 1)]
            finally:
                for sender in senders:
                    sender.cancel()
                await asyncio.gather(*senders, return_exceptions=True)
    finally:
        await runtime.close()
        await engine.close()
    assert len({address for address, _ in lives}) == 1, "each had the address of the one before"
    assert [names for _, names in lives if names] == []
    # 504: connecting took too long, as it may where nobody has the address.
    assert {200, 502} <= {status for _, status in crowd.statuses} <= {200, 502, 504}


async def test_fifty_starts_exchange_one_address_and_no_request_reaches_another_s() -> None:
    """As on the engine, many times faster: an agent's address is free for a moment, and then the next one's."""
    async with ProxyHarness(Endpoint(host="127.0.0.1", port=1)) as proxy:
        crowd = Crowd(proxy)
        senders = [asyncio.create_task(crowd.send()) for _ in range(SENDERS)]
        address, anonymous_share = ("127.0.0.9", 0), []
        try:
            for _ in range(51):
                key, seen = uuid4(), list[str]()
                async with named_server(seen) as port, an_agent(*address) as agent:
                    address = agent.address
                    before = crowd.stale()
                    crowd.learn(key, Endpoint(host=address[0], port=address[1], inside=AgentPort(port, agent.key)))
                    await eventually(lambda: crowd.asked_enough(key, before))  # noqa: B023 - awaited here
                anonymous_share += [name for name in seen if name != str(key)]
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
    assert anonymous_share == []
    assert {status for _, status in crowd.statuses} == {200, 502}


@asynccontextmanager
async def named_server(seen: list[str]) -> AsyncIterator[int]:
    """A server that writes down in whose name each request comes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head.split(b"/for/")[1].split(b" ")[0].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with a_server(answer) as port:
        yield port


async def test_whoever_has_the_address_by_then_gets_a_random_number_and_nothing_of_the_request() -> None:
    heard = bytearray()

    async def takes_what_comes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A server that says something that looks like an agent's answer, and writes down what it is told."""
        while data := await reader.read(1 << 16):
            heard.extend(data)
            writer.write(bytes(64))

    async with a_server(takes_what_comes) as port:
        stale = Endpoint(host="127.0.0.1", port=port, inside=AgentPort(8080, bytes(KEY_BYTES)))
        async with ProxyHarness(stale) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"POST /secret HTTP/1.1\r\nHost: workspace\r\nContent-Length: 8\r\n\r\npassword")
            assert (await reader.readline()).startswith(b"HTTP/1.1 502")
            writer.close()
    assert len(heard) == HELLO_BYTES
    assert b"secret" not in heard
    assert b"password" not in heard


def test_a_key_is_shown_nowhere() -> None:
    key = bytes(range(KEY_BYTES))
    endpoint = Endpoint(host="10.0.0.2", port=1, inside=AgentPort(8080, key))
    assert repr(key) not in repr(endpoint)
    assert key.hex() not in repr(Forward(endpoint))


@pytest.mark.parametrize("still_its_own", [True, False])
async def test_a_container_without_an_agent_is_looked_at_again_before_anything_passes(still_its_own: bool) -> None:
    """The container was started by a version that had no agent, and runs on."""
    seen: list[str] = []

    async def confirm() -> bool:
        assert seen == [], "nothing has passed"
        return still_its_own

    async with named_server(seen) as port:
        older = Endpoint(host="127.0.0.1", port=port, instance="c-1")
        async with ProxyHarness(older, forward=Forward(older, confirm=confirm)) as proxy:
            crowd = Crowd(proxy)
            crowd.known = [key := uuid4()]
            assert await crowd._status(key) == (200 if still_its_own else 502)
    assert seen == ([str(key)] if still_its_own else [])


@pytest.mark.parametrize("engine_answers", [True, False])
async def test_a_proxy_without_events_asks_the_engine_whose_address_it_is(engine_answers: bool) -> None:
    async with deployed() as deployment:
        owner = await deployment.person()
        workspace = await deployment.workspace(owner)
        container = deployment.runtime.state.containers[workspace.id]
        container.ide = deployment.ide.endpoint._replace(instance="c-1")
        deployment.ide.answer = lambda _: b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
        assert (await deployment.get(workspace, "/", owner)).status_code == 200
        before = deployment.ide.connections
        if engine_answers:
            container.ide = deployment.ide.endpoint._replace(instance="c-2")
        else:
            deployment.outages.away = ("runtime",)
        requests = len(deployment.ide.seen)
        assert (await deployment.get(workspace, "/", owner)).status_code == 502
        assert deployment.ide.connections == before + 1
        assert len(deployment.ide.seen) == requests
