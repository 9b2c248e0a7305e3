"""An image that is not there yet, from a registry of the test's own: its progress is told, and a registry that says no
is told from one that is broken or away.
"""

import asyncio
import gzip
import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from aiohttp import web

from codehub.adapters.docker import DockerRuntime, Engine
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, Pulling
from tests.api.real_site import free_port
from tests.contracts.patience import eventually
from tests.docker_engine import DockerHouse, sweep

pytestmark = pytest.mark.system

MIB = 1 << 20
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
HELD_AT, WHOLE = 3, 8


class Registry:
    """One image, `slow`, whose layer is held up until it is released; of others it says no, or fails."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
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
        if name in REFUSALS:
            status, code = REFUSALS[name]
            return web.json_response({"errors": [{"code": code, "message": code.lower()}]}, status=status)
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
        await asyncio.sleep(0.5)  # the engine does not tell every byte: the next ones make it tell
        await answer.write(self._layer[held:end])
        await self.released.wait()
        await answer.write(self._layer[end:])
        return answer


REFUSALS = {
    "unknown": (404, "MANIFEST_UNKNOWN"),
    "private": (401, "UNAUTHORIZED"),
    "broken": (503, "UNAVAILABLE"),
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
async def asking_for(house: DockerHouse, engine: Engine) -> AsyncIterator[tuple[DockerRuntime, ContainerSpec]]:
    site = house.site()
    runtime, key = house.runtime(engine, site), uuid4()
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


async def test_how_far_it_is_is_told_until_it_has_come(docker_house: DockerHouse, engine: Engine) -> None:
    registry = Registry()
    async with served(registry) as address, asking_for(docker_house, engine) as (runtime, nothing):
        image = f"{address}/slow:latest"
        spec = ContainerSpec(nothing.workspace_id, nothing.volume, image)
        assert await runtime.start_container(spec) == Pulling(f"pulling {image}")

        async def it_is_held_up() -> bool:
            told = Pulling(f"pulling {image}: {HELD_AT} of {WHOLE} MiB", HELD_AT * MIB, WHOLE * MIB)
            return await runtime.start_container(spec) == told

        await eventually(it_is_held_up, 30)
        registry.released.set()
        await started(runtime, spec)
        assert await engine.has_image(image)
        assert set(await runtime.containers()) == {spec.workspace_id}
        await runtime.remove_container(spec.workspace_id)
        await (await engine.docker()).images.delete(image, force=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("unknown", "ImagePullFailed"), ("private", "ImagePullFailed"), ("broken", "Unreachable"), ("", "Unreachable")],
    ids=["unknown", "private", "broken", "away"],
)
async def test_a_registry_that_says_no_and_one_that_cannot_say(
    name: str, reason: str, docker_house: DockerHouse, engine: Engine
) -> None:
    async with served(Registry()) as address, asking_for(docker_house, engine) as (runtime, nothing):
        where = f"{address}/{name}:1" if name else f"127.0.0.1:{free_port()}/away:1"
        spec = ContainerSpec(nothing.workspace_id, nothing.volume, where)
        with pytest.raises(BackendError) as failed:
            await started(runtime, spec)
        assert failed.value.reason is ErrorReason(reason), failed.value
        assert isinstance(failed.value, Unreachable) is (reason == "Unreachable")
        assert where in str(failed.value)
