"""Homes of a size, against what engines answer: one with project quotas, one without, one that knows no sizes, and one
that fails for a reason of its own. They are servers that speak the engine's protocol, for few machines have them all.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from codehub.adapters.docker import DockerRuntime, DockerSite, Engine
from codehub.adapters.docker.volumes import why_no_quota
from codehub.domain.errors import BackendError

KEY = UUID("11111111-2222-3333-4444-555555555555")
HOME = f"ws-{KEY}-home"
SITE = DockerSite("here", "ide:1", "codehub:1", "codehub-net")
WITHOUT_QUOTAS = (400, "quota size requested but no quota support")
TOO_OLD = (400, 'invalid option: "size"')
BROKEN = (500, "read-only file system")


@dataclass
class Speaks:
    """The engine's side. `refusal`: what it says to a size."""

    refusal: tuple[int, str] | None
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.rpartition("/v1.41")[2]
        if path == "/version":
            return said({"ApiVersion": "1.41", "Version": "20.10"})
        if path == "/volumes/create":
            return self._create(await request.json())
        name = path.removeprefix("/volumes/")
        if name not in self.volumes:
            return said({"message": "no such volume"}, status=404)
        if request.method == "DELETE":
            del self.volumes[name]
            return web.Response(status=204)
        return said(self.volumes[name])

    def _create(self, asked: dict[str, Any]) -> web.Response:
        if self.refusal is not None and "DriverOpts" in asked:
            return said({"message": self.refusal[1]}, status=self.refusal[0])
        return said(self.volumes.setdefault(asked["Name"], asked), status=201)


def said(value: object, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")


@asynccontextmanager
async def engine_that(place: Path, refusal: tuple[int, str] | None) -> AsyncIterator[tuple[Engine, Speaks]]:
    speaks = Speaks(refusal)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", speaks.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(place / "engine.sock")).start()
    engine = Engine(f"unix://{place / 'engine.sock'}")
    try:
        yield engine, speaks
    finally:
        await engine.close()
        await runner.cleanup()


async def test_where_the_engine_can_a_home_is_held_to_its_size(tmp_path: Path) -> None:
    async with engine_that(tmp_path, None) as (engine, speaks):
        await DockerRuntime(engine, SITE).create_volume(KEY, HOME, 5 << 30)
        assert speaks.volumes[HOME]["DriverOpts"] == {"size": str(5 << 30)}
        assert await why_no_quota(engine, "here") == ""
        assert set(speaks.volumes) == {HOME}, "nothing of the try is left"


@pytest.mark.parametrize("refusal", [WITHOUT_QUOTAS, TOO_OLD], ids=["without quotas", "too old"])
async def test_where_it_cannot_the_home_is_made_all_the_same_and_the_reason_is_known(
    tmp_path: Path, refusal: tuple[int, str]
) -> None:
    async with engine_that(tmp_path, refusal) as (engine, speaks):
        await DockerRuntime(engine, SITE).create_volume(KEY, HOME, 5 << 30)
        assert "DriverOpts" not in speaks.volumes[HOME]
        assert speaks.volumes[HOME]["Labels"]["codehub.workspace"] == str(KEY)
        assert await why_no_quota(engine, "here") == refusal[1]


async def test_what_has_nothing_to_do_with_sizes_is_a_failure(tmp_path: Path) -> None:
    async with engine_that(tmp_path, BROKEN) as (engine, speaks):
        with pytest.raises(BackendError, match="read-only file system"):
            await DockerRuntime(engine, SITE).create_volume(KEY, HOME, 5 << 30)
        with pytest.raises(BackendError, match="read-only file system"):
            await why_no_quota(engine, "here")
        assert speaks.volumes == {}


async def test_without_a_limit_none_is_asked_for(tmp_path: Path) -> None:
    async with engine_that(tmp_path, WITHOUT_QUOTAS) as (engine, speaks):
        await DockerRuntime(engine, SITE).create_volume(KEY, HOME)
        assert "DriverOpts" not in speaks.volumes[HOME]
