"""An image that is not there yet, from a registry of the test's own: its progress is told, and a registry that says no
is told from one that is broken or away, which is waited for.
"""

import asyncio
import gzip
import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from aiohttp import web

from codehub.adapters.docker import DockerRuntime, Engine
from codehub.domain.errors import BackendError, ErrorReason
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, Pulling
from tests.docker_engine import DockerTestbed, sweep
from tests.eventually import eventually
from tests.real_services import free_port

pytestmark = pytest.mark.system

MIB = 1 << 20
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
HELD_AT, WHOLE = 3, 8
STEP = MIB // 8
"""The engine tells of each percent that comes, but not ten times a second: so some more come, one after another."""


class Registry:
    """One image, under every name, whose layer is held up until it is released; of some names it says no, of some it
    cannot say until it is `whole`."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.whole = False
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w") as packed:
            member = tarfile.TarInfo("random")
            member.size = WHOLE * MIB
            packed.addfile(member, io.BytesIO(secrets.token_bytes(member.size)))
        plain = held.getvalue()
        self._layer = gzip.compress(plain, 1)
        root = {"type": "layers", "diff_ids": [digest(plain)]}
        config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/nothing"]}, "rootfs": root}
        self._config = json.dumps(config).encode()
        layers = [self._part("application/vnd.docker.image.rootfs.diff.tar.gzip", self._layer)]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers}
        manifest["config"] = self._part("application/vnd.docker.container.image.v1+json", self._config)
        self._manifest = json.dumps(manifest).encode()

    @staticmethod
    def _part(kind: str, content: bytes) -> dict[str, object]:
        return {"mediaType": kind, "size": len(content), "digest": digest(content)}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        _, _, rest = request.path.partition("/v2/")
        name, _, what = rest.partition("/")
        if name in SAYS_NO:
            status, code = SAYS_NO[name]
            return web.json_response({"errors": [{"code": code, "message": code.lower()}]}, status=status)
        if name in CANNOT_SAY and not self.whole:
            return await CANNOT_SAY[name](request)
        if what.startswith("manifests/"):
            digested = {"Docker-Content-Digest": digest(self._manifest)}
            return web.Response(body=self._manifest, content_type=MANIFEST, headers=digested)
        if what == f"blobs/{digest(self._config)}":
            return web.Response(body=self._config)
        return await self._slowly(request) if what.startswith("blobs/") else web.Response()

    async def _slowly(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": str(len(self._layer))})
        await answer.prepare(request)
        held, end = HELD_AT * MIB, HELD_AT * MIB + MIB // 2
        await answer.write(self._layer[:held])
        for start in range(held, end, STEP):
            await asyncio.sleep(0.3)
            await answer.write(self._layer[start : start + STEP])
        await self.released.wait()
        await answer.write(self._layer[end:])
        return answer


SAYS_NO = {
    "unknown": (404, "MANIFEST_UNKNOWN"),
    "nameless": (404, "NAME_UNKNOWN"),
    "private": (401, "UNAUTHORIZED"),
    "denied": (403, "DENIED"),
}


def says(status: int, code: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"errors": [{"code": code, "message": code.lower()}]}, status=status)

    return answer


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def error_page(_: web.Request) -> web.StreamResponse:
    """Of a proxy before it."""
    return web.Response(status=404, text="<html><h1>404 page not found</h1></html>", content_type="text/html")


async def cut_short(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": MANIFEST})
    await answer.prepare(request)
    await answer.write(b"{")
    return await hangs_up(request)


CANNOT_SAY = {
    "overloaded": says(429, "TOOMANYREQUESTS"),
    "broken": says(503, "UNAVAILABLE"),
    "failing": says(500, "UNKNOWN"),
    "gateway": says(502, "UNKNOWN"),
    "silent": hangs_up,
    "behind": error_page,
    "short": cut_short,
}


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@asynccontextmanager
async def served(registry: Registry) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", registry.answer)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking_for(testbed: DockerTestbed, engine: Engine) -> AsyncIterator[tuple[DockerRuntime, ContainerSpec]]:
    site = testbed.site()
    runtime, key = testbed.runtime(engine, site), uuid4()
    await runtime.create_volume(key, volume_name(key, 1))
    try:
        yield runtime, ContainerSpec(key, volume_name(key, 1), "")
    finally:
        await runtime.close()
        await sweep(engine, site.install_id)


async def started(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    """Asked for again and again, as a controller does."""
    while isinstance(await runtime.start_container(spec), Pulling):
        await asyncio.sleep(0.05)


async def test_how_far_it_is_is_told_until_it_has_come(docker_testbed: DockerTestbed, engine: Engine) -> None:
    registry = Registry()
    async with served(registry) as address, asking_for(docker_testbed, engine) as (runtime, nothing):
        image = f"{address}/slow:latest"
        spec = ContainerSpec(nothing.workspace_id, nothing.volume, image)
        assert await runtime.start_container(spec) == Pulling(f"pulling {image}")

        async def it_is_held_up() -> bool:
            told = Pulling(f"pulling {image}: {HELD_AT} of {WHOLE} MiB", HELD_AT * MIB, WHOLE * MIB)
            return await runtime.start_container(spec) == told

        await eventually(it_is_held_up)
        registry.released.set()
        await started(runtime, spec)
        assert await engine.has_image(image)
        assert set(await runtime.containers()) == {spec.workspace_id}
        await runtime.remove_container(spec.workspace_id)
        await (await engine.docker()).images.delete(image, force=True)


@pytest.mark.parametrize("name", sorted(SAYS_NO))
async def test_a_registry_that_says_no(name: str, docker_testbed: DockerTestbed, engine: Engine) -> None:
    async with served(Registry()) as address, asking_for(docker_testbed, engine) as (runtime, nothing):
        where = f"{address}/{name}:1"
        spec = ContainerSpec(nothing.workspace_id, nothing.volume, where)
        with pytest.raises(BackendError) as failed:
            await started(runtime, spec)
        assert failed.value.reason is ErrorReason.IMAGE_PULL_FAILED, failed.value
        assert where in str(failed.value)


@pytest.mark.parametrize("name", sorted(CANNOT_SAY))
async def test_a_registry_that_cannot_say_is_waited_for_and_asked_again(
    name: str, docker_testbed: DockerTestbed, engine: Engine
) -> None:
    """It is no failure of the workspace's, and when the registry is whole again the workspace starts."""
    registry = Registry()
    async with served(registry) as address, asking_for(docker_testbed, engine) as (runtime, nothing):
        image = f"{address}/{name}:1"
        spec = ContainerSpec(nothing.workspace_id, nothing.volume, image)

        async def it_waits() -> bool:
            told = await runtime.start_container(spec)
            assert isinstance(told, Pulling)
            return told.detail.startswith(f"image {image!r} cannot be pulled now: ") and told.detail.endswith("again")

        await eventually(it_waits)
        registry.whole = True
        registry.released.set()
        await started(runtime, spec)
        assert set(await runtime.containers()) == {spec.workspace_id}
        await runtime.remove_container(spec.workspace_id)
        await (await engine.docker()).images.delete(image, force=True)


@pytest.mark.parametrize("where", ["127.0.0.1:{port}/away:1", "registry.invalid/away:1"], ids=["refused", "no name"])
async def test_a_registry_that_is_not_there_is_waited_for(
    where: str, docker_testbed: DockerTestbed, engine: Engine
) -> None:
    async with asking_for(docker_testbed, engine) as (runtime, nothing):
        spec = ContainerSpec(nothing.workspace_id, nothing.volume, where.format(port=free_port()))

        async def it_waits() -> bool:
            told = await runtime.start_container(spec)
            assert isinstance(told, Pulling)
            return "cannot be pulled now" in told.detail

        await eventually(it_waits)
