"""The connection to a Docker engine: where it is, which API version both know, and what its failures mean to us.

An engine that does not answer a look leaves the truth unknown; one that refuses an effect has failed it. One that broke
off while it was asked, or lost the parts that it stands on, has not answered. What somebody who was killed left on the
engine is found and removed as an orphan.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import aiohttp
import structlog
from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer
from aiodocker.multiplexed import multiplexed_result_stream
from aiodocker.volumes import DockerVolume
from aiohttp.client_exceptions import UnixClientConnectorError

from codehub.adapters.docker.payloads import AGENT, DISK, FIREWALL, JOB, PROBE, ROLE_LABEL, TRIAL, DockerSite
from codehub.domain.errors import BackendError, Unreachable
from codehub.domain.naming import INSTALL_LABEL

log = structlog.get_logger(__name__)

Payload = dict[str, Any]
T = TypeVar("T")

SOCKET = "unix:///var/run/docker.sock"
OLDEST, NEWEST = (1, 40), (1, 47)
"""API versions this is written for; within them, the engine's own."""

BAD_REQUEST, NOT_FOUND, CONFLICT = 400, 404, 409
_NO_CONNECTION = 900  # aiodocker's own
_NO_ANSWER = {_NO_CONNECTION, 502, 503, 504}
"""Statuses that are no answer: ours for no connection, and those of a proxy before the engine or of one that shuts
down."""
_LOST_ITS_PARTS = re.compile(
    r"\b(Unavailable|Canceled)\b|: unavailable|context (canceled|deadline exceeded)|transport is closing"
    r"|connection refused|broken pipe|connection reset by peer|use of closed network connection|\bEOF$"
)
"""An engine's 500 in which its own connection to containerd or to a plugin broke: nothing was decided there."""
_ITS_OWN_FAULT = 500
_BROKE_OFF = (OSError, aiohttp.ClientError, TimeoutError, json.JSONDecodeError, EOFError)
"""What a connection that broke raises, while connecting, sending or receiving; half an answer is no JSON."""
_TIMEOUT = aiohttp.ClientTimeout(total=45, sock_connect=5)
_ENDLESS = aiohttp.ClientTimeout(total=None, sock_connect=5)
_LOOK_SECONDS = 15.0
_LONGEST_MESSAGE = 500
_TOO_MANY_CPUS = re.compile(r"ange of CPUs is from 0\.01 to ([\d.]+)")
_GONE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.05
_ALL_LINES = 10_000
ORPHANED_SECONDS = 60.0
"""How long a helper stays as it is before it is an orphan: longer than the longest call to the engine."""
_LONGEST_RUN_SECONDS = 900.0
"""No helper is meant to run nearly as long."""


class Engine:
    """`host` as DOCKER_HOST names it; `certificates`: a directory with ca.pem, cert.pem and key.pem makes it TLS.
    Nothing is asked before the first call, so an engine that is down does not keep us from starting."""

    def __init__(self, host: str | None = None, certificates: Path | None = None) -> None:
        self.host = host or SOCKET
        self._certificates = certificates
        self._docker: Docker | None = None

    async def close(self) -> None:
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()

    async def docker(self) -> Docker:
        """The client, its version agreed on. Call it inside `looking` or `doing`."""
        if self._docker is None:
            self._docker = self._client()
        if self._docker.api_version == "auto":
            said = await self._docker.version()
            self._docker.api_version = agreed_version(said["ApiVersion"])
        return self._docker

    @asynccontextmanager
    async def own_client(self) -> AsyncIterator[Docker]:
        """Another connection to the engine, for what occupies one, such as the stream of events."""
        version = (await self.docker()).api_version
        client = self._client()
        client.api_version = version
        try:
            yield client
        finally:
            # A stream that broke would break the closing too, and leave the connection open.
            broken, client.events.task = client.events.task, None
            if broken is not None:
                broken.cancel()
                await asyncio.gather(broken, return_exceptions=True)
            await client.close()

    async def version(self) -> str:
        async with glancing():
            said = await (await self.docker()).version()
        return str(said["Version"])

    async def info(self) -> Mapping[str, Any]:
        async with glancing():
            found: Mapping[str, Any] = await (await self.docker()).system.info()
        return found

    async def containers(self, labels: Sequence[str], names: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """All containers with these labels, also those that have ended; with `names`, any of those."""
        filters = {"label": list(labels)} | ({"name": [f"^/{name}$" for name in names]} if names else {})
        async with glancing():
            found = await (await self.docker()).containers.list(all=1, filters=json.dumps(filters))
        keys = ("Id", "Names", "Labels", "State", "Status", "Mounts", "NetworkSettings")
        return [{key: container[key] for key in keys} for container in found]

    async def container(self, name: str) -> Mapping[str, Any] | None:
        """The full description of a container, by name or id."""
        return await self._found(lambda docker: docker.containers.container(name).show())

    async def statistics(self, key: str) -> Mapping[str, Any] | None:
        """What the container uses at this moment, without waiting for a second measurement; None if it is gone."""
        now = {"stream": "0", "one-shot": "1"}
        return await self._found(
            lambda docker: docker._query_json(f"containers/{key}/stats", params=now),  # noqa: SLF001 - it has no other way
            {NOT_FOUND, CONFLICT},
        )

    async def output(
        self, key: str, tail: int, *, stdout: bool = True, stderr: bool = True, timestamps: bool = False
    ) -> str:
        """The last lines that the container printed; empty if it is gone."""

        def look(docker: Docker) -> Awaitable[list[str]]:
            container = docker.containers.container(key)
            return container.log(stdout=stdout, stderr=stderr, tail=tail, timestamps=timestamps)

        return "".join(await self._found(look, {NOT_FOUND, CONFLICT}) or ())

    async def follow(self, key: str, tail: str, silence_seconds: float) -> AsyncGenerator[str, None]:
        """Yields what the container prints, after the last `tail` lines, until it ends. Unreachable if nothing comes
        for `silence_seconds`."""
        wanted: Mapping[str, str | int] = {"stdout": 1, "stderr": 1, "follow": 1, "tail": tail}
        with looking():
            async with self.own_client() as docker:
                # The library's own stream would leave the connection open when it is not read to its end.
                asked = docker._query(f"containers/{key}/logs", params=wanted, timeout=_ENDLESS)  # noqa: SLF001
                async with asked as response, aclosing(multiplexed_result_stream(response)) as said:
                    try:
                        while True:
                            async with asyncio.timeout(silence_seconds):
                                line = await anext(said, None)
                            if line is None:
                                return
                            yield line
                    finally:
                        response.close()

    async def end(self, key: str, grace_seconds: int = 0) -> None:
        """Ends the container, gracefully and then not, and removes it. When this returns, nothing of it runs. Gone is
        success."""
        with doing("the container cannot be removed"):
            container = (await self.docker()).containers.container(key)
            try:
                if grace_seconds:
                    await container.stop(t=grace_seconds)
                await container.delete(force=True)
            except DockerError as error:
                if error.status == CONFLICT:  # somebody else is at it
                    await self._until_gone(key)
                elif error.status != NOT_FOUND:
                    raise

    async def make(self, payload: Payload, name: str) -> DockerContainer:
        """Makes a container and does not start it. Call it inside `doing`. A limit on processors that is above what the
        machine has limits nothing, and yet the engine refuses it: then it is what there is."""
        docker = await self.docker()
        try:
            return await docker.containers.create(payload, name=name)
        except DockerError as error:
            if (there := _TOO_MANY_CPUS.search(str(error.message))) is None:
                raise
            limits = {**payload["HostConfig"], "NanoCpus": round(float(there[1]) * 1e9)}
            return await docker.containers.create({**payload, "HostConfig": limits}, name=name)

    async def run(
        self, payload: Mapping[str, Any], name: str, seconds: float, files: tuple[str, bytes] | None = None
    ) -> tuple[int, str]:
        """Runs a container to its end: its exit code and what it printed. Nothing of it is left. `files`: a directory
        of a volume of its own, and the tar that is unpacked there first. TimeoutError if it does not end in time."""
        async with self._made(payload, name) as made:
            code = await _ended(made, name, seconds, files)
            return code, await self.output(made.id, _ALL_LINES)

    async def run_for(self, payload: Mapping[str, Any], name: str, seconds: float) -> tuple[int | None, str]:
        """Runs a container to its end or for so many seconds: its exit code, None if it had not ended by then, and what
        it had printed. Nothing of it is left."""
        async with self._made(payload, name) as made:
            try:
                code = await _ended(made, name, seconds)
            except TimeoutError:
                code = None
            return code, await self.output(made.id, _ALL_LINES)

    @asynccontextmanager
    async def _made(self, payload: Mapping[str, Any], name: str) -> AsyncIterator[DockerContainer]:
        with doing(f"container {name} cannot be run"):
            made = await self.make(dict(payload), name)
        try:
            yield made
        finally:
            await asyncio.shield(self.end(made.id))

    async def _until_gone(self, key: str) -> None:
        """Waits for the container to be gone; an engine that answers, and does not get on with it, has failed."""
        until = asyncio.get_running_loop().time() + _GONE_SECONDS
        while await self.container(key) is not None:
            if asyncio.get_running_loop().time() > until:
                raise BackendError(f"the container {key} is being removed for more than {_GONE_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def volumes(self, labels: Sequence[str]) -> list[Mapping[str, Any]]:
        async with glancing():
            found = await (await self.docker()).volumes.list(filters={"label": list(labels)})
        return list(found["Volumes"] or ())

    async def delete_volume(self, name: str) -> None:
        """Deletes the volume. Call it inside `doing`."""
        await DockerVolume(await self.docker(), name).delete()

    async def volume(self, name: str) -> Mapping[str, Any] | None:
        return await self._found(lambda docker: DockerVolume(docker, name).show())

    async def has_image(self, name: str) -> bool:
        return await self.image(name) is not None

    async def image(self, name: str) -> Mapping[str, Any] | None:
        # A bad request: no image could have such a name.
        return await self._found(lambda docker: docker.images.inspect(name), {NOT_FOUND, BAD_REQUEST})

    async def _found(self, look: Callable[[Docker], Awaitable[T]], missing: Collection[int] = (NOT_FOUND,)) -> T | None:
        """What the engine tells of a thing; None if its answer has one of the statuses `missing`."""
        async with glancing():
            docker = await self.docker()
            try:
                return await look(docker)
            except DockerError as error:
                if error.status in missing:
                    return None
                raise

    def _client(self) -> Docker:
        # Not the docker command's contexts: what we use is said by our own environment alone.
        if self._certificates is None:
            return Docker(self.host, timeout=_TIMEOUT)
        address = self.host.replace("tcp://", "https://", 1)
        return Docker(address, timeout=_TIMEOUT, ssl_context=_secured(self._certificates))


def _secured(place: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(place / "ca.pem"))
        context.load_cert_chain(place / "cert.pem", place / "key.pem")
    except OSError as error:
        message = f"the certificates in {place} (ca.pem, cert.pem, key.pem) cannot be used: {error}"
        raise BackendError(message) from error
    return context


def agreed_version(offered: str) -> str:
    version = tuple(int(part) for part in offered.split("."))
    if version < OLDEST:
        needed = ".".join(str(part) for part in OLDEST)
        raise BackendError(f"the Docker engine speaks API {offered}; it must be {needed} or newer: update the engine")
    return "v" + ".".join(str(part) for part in min(version, NEWEST))


async def _ended(made: DockerContainer, name: str, seconds: float, files: tuple[str, bytes] | None = None) -> int:
    """Starts the container and waits for its end: its exit code. TimeoutError."""
    async with asyncio.timeout(seconds):
        with doing(f"container {name} cannot be run"):
            if files is not None:
                await made.put_archive(*files)
            await made.start()
            ended = await made.wait()
    return int(ended["StatusCode"])


@contextmanager
def looking() -> Iterator[None]:
    """Errors inside this block mean Unreachable: whatever goes wrong with a look, we do not know."""
    try:
        yield
    except DockerError as error:
        raise _no_answer(error) from error
    except _BROKE_OFF as error:
        raise _unreachable(error) from error


@asynccontextmanager
async def glancing() -> AsyncIterator[None]:
    """As `looking`, with a short time limit: an engine that stands still must not keep us from knowing that."""
    with looking():
        async with asyncio.timeout(_LOOK_SECONDS):
            yield


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Errors inside this block mean that the effect `what` describes could not be done."""
    try:
        yield
    except DockerError as error:
        if _gave_no_answer(error):
            raise _no_answer(error) from error
        raise BackendError(f"{what}: {_words(error)}") from error
    except _BROKE_OFF as error:
        raise _unreachable(error) from error


def _gave_no_answer(error: DockerError) -> bool:
    lost = error.status >= _ITS_OWN_FAULT and _LOST_ITS_PARTS.search(str(error.message)) is not None
    return lost or error.status in _NO_ANSWER


def _no_answer(error: DockerError) -> Unreachable:
    said: dict[str, Any] = {} if error.status == _NO_CONNECTION else {"status_code": error.status}
    return Unreachable(f"the Docker engine did not answer: {_words(error)}", **said)


def _unreachable(error: Exception) -> Unreachable:
    return Unreachable(f"the Docker engine did not answer: {str(error) or type(error).__name__}")


def _words(error: DockerError) -> str:
    """The engine's own words; of a connection that could not be made only why."""
    if isinstance(lost := error.__context__, aiohttp.ClientConnectorError) and lost.os_error.strerror:
        where = lost.path if isinstance(lost, UnixClientConnectorError) else f"{lost.host}:{lost.port}"
        return f"{where}: {lost.os_error.strerror}"
    return str(error.message).strip()[:_LONGEST_MESSAGE]


class _Helper(NamedTuple):
    kind: str
    key: str
    state: str


class Orphans:
    """The helpers that somebody who was killed made and did not start, or did not remove at their end.

    Whether one is still waited for cannot be told by the clocks, which are the engine's and ours. So each is seen
    twice: who makes a helper starts it at once and removes it at its end, within the time that any call to the engine
    may take. What stays as it is for longer than `after_seconds` is nobody's."""

    def __init__(self, engine: Engine, site: DockerSite, after_seconds: float = ORPHANED_SECONDS) -> None:
        self._engine = engine
        self._site = site
        self._after_seconds = after_seconds
        self._since: dict[_Helper, float] = {}

    async def remove(self) -> int:
        now = asyncio.get_running_loop().time()
        self._since = {helper: self._since.get(helper, now) async for helper in self._helpers()}
        old = [helper for helper, since in self._since.items() if now - since >= self._longest(helper)]
        for helper in old:
            await self._remove(helper)
            log.info("orphan_removed", kind=helper.kind, id=helper.key, state=helper.state)
        return len(old)

    def _longest(self, helper: _Helper) -> float:
        return _LONGEST_RUN_SECONDS if helper.state == "running" else self._after_seconds

    async def _helpers(self) -> AsyncIterator[_Helper]:
        ours = f"{INSTALL_LABEL}={self._site.install_id}"
        for role in (FIREWALL, PROBE, AGENT, DISK, JOB):
            for found in await self._engine.containers([ours, f"{ROLE_LABEL}={role}"]):
                # A job that was begun is its operation's, whatever became of it.
                if role != JOB or found["State"] == "created":
                    yield _Helper(role, found["Id"], found["State"])
        for found in await self._engine.volumes([ours, f"{ROLE_LABEL}={TRIAL}"]):
            yield _Helper(TRIAL, found["Name"], "")

    async def _remove(self, helper: _Helper) -> None:
        if helper.kind != TRIAL:
            await self._engine.end(helper.key)
            return
        with doing(f"volume {helper.key} cannot be removed"):
            await self._engine.delete_volume(helper.key)
