"""A leader that is killed between the making and the starting of a helper container: the next one sweeps it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from codehub.domain.naming import INSTALL_LABEL, job_name
from codehub.domain.workspace import Desired, Operation, Phase
from tests.docker_engine import DockerTestbed
from tests.eventually import eventually
from tests.system.deployment import TIMEOUT_SECONDS
from tests.system.docker_site import DockerDeployment, docker_deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

SOCKET = "/var/run/docker.sock"
SWEPT_SECONDS = 150
"""Twice what a leader takes to be sure."""


@pytest.fixture
async def site(
    docker_testbed: DockerTestbed, logged_database: str, fresh_redis: str
) -> AsyncIterator[DockerDeployment]:
    async with docker_deployed(logged_database, fresh_redis) as site:
        yield site


class Relay:
    """The engine's socket at another place, until a container of `name` has been made and is to be started: then
    `strike` is called, and nothing passes any more."""

    def __init__(self, name: str, strike: Callable[[], object]) -> None:
        self._made = f"/containers/create?name={name}".encode()
        self._strike = strike
        self._armed = False
        self.struck = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(SOCKET)
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._pump(reader, inner_writer)),
                    asyncio.ensure_future(self._pump(inner_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        inner_writer.close()
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while some := await reader.read(1 << 16):
            self._armed = self._armed or self._made in some
            if self._armed and some.startswith(b"POST ") and b"/start HTTP" in some:
                self._strike()
                self.struck.set()
                return
            writer.write(some)
            await writer.drain()


@asynccontextmanager
async def killed_at(site: DockerDeployment, name: str) -> AsyncIterator[Relay]:
    """A coordinator that is killed as soon as it has made the container of that name."""
    place = Path(site.directory, "relay.sock")
    relay = Relay(name, lambda: site.coordinators[-1].end(signal.SIGKILL))
    async with await asyncio.start_unix_server(relay.serve, place):
        site.start("alpha", DOCKER_HOST=f"unix://{place}")
        yield relay


def containers(site: DockerDeployment, name: str, state: str) -> list[str]:
    install = f"label={INSTALL_LABEL}={site.runtime.site.install_id}"
    listed = site.docker("ps", "--all", "--filter", install, "--filter", f"name={name}", "--format", "{{.State}}")
    return [found for found in listed.splitlines() if found == state]


async def test_a_job_that_was_made_and_not_started_is_swept_when_nobody_wants_it_any_more(
    site: DockerDeployment,
) -> None:
    first = site.start("alpha")
    key = await site.create(Desired.STANDBY)
    await site.settled(key, Phase.STANDBY)
    first.end()
    async with killed_at(site, job_name(key)) as relay:
        await site.want(key, Desired.ARCHIVED)
        await asyncio.wait_for(relay.struck.wait(), TIMEOUT_SECONDS)
    assert containers(site, job_name(key), "created") == ["created"]
    assert (await site.row(key)).operation is Operation.ARCHIVING
    await site.want(key, Desired.STANDBY)
    site.start("beta")
    await site.settled(key, Phase.STANDBY)

    async def it_is_swept() -> bool:
        return containers(site, job_name(key), "created") == []

    await eventually(it_is_swept, SWEPT_SECONDS)
    await site.brought_to(key, Desired.ARCHIVED)


async def test_a_monitor_that_was_made_and_not_started_is_replaced(site: DockerDeployment) -> None:
    name = site.runtime.isolation.monitor_name
    async with killed_at(site, name) as relay:
        await asyncio.wait_for(relay.struck.wait(), TIMEOUT_SECONDS)
    assert containers(site, name, "created") == ["created"]
    site.start("beta")
    key = await site.create(Desired.RUNNING)
    await site.settled(key, Phase.RUNNING)
    assert (containers(site, name, "created"), containers(site, name, "running")) == ([], ["running"])
