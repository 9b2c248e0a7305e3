"""PostgreSQL or Redis are away: whoever is at work notices nothing, and whoever may no longer be here is out anyway."""

import asyncio

import pytest
from redis.asyncio import Redis

from codehub.domain.identity import Role
from codehub.usecases.revocations import AUTH_CHANNEL
from tests.eventually import eventually
from tests.system.proxy_deployment import ProxyDeployment, ProxyProcess, Visit, proxy_deployment
from tests.system.test_outages import Servers, own_servers
from tests.system.test_proxy import PAGE, SIGNED_OUT
from tests.system.websockets import TIMEOUT_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SECONDS = 30.0
"""Enough for a loaded machine, and less than the minute that is trusted as long as everything is heard."""


async def test_redis_and_then_postgresql_are_away() -> None:
    async with own_servers() as servers, proxy_deployment(servers.url("postgres"), servers.url("redis")) as deployment:
        proxy = await deployment.open()
        await redis_is_away(servers, deployment, proxy)
        await postgresql_is_away(servers, deployment, proxy)


async def redis_is_away(servers: Servers, deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    """Everybody is served, and who may no longer be in is found in the database."""
    ann = await deployment.person()
    root, odd = [await deployment.person(Role.ADMIN) for _ in range(2)]
    workspace = await deployment.running(ann)
    stays = await deployment.visit(await deployment.again(ann), workspace, proxy)
    leaves = await deployment.visit(ann, workspace, proxy)
    demoted = await deployment.visit(root, workspace, proxy)
    sockets = [await visit.socket() for visit in (stays, leaves, demoted)]
    assert (await leaves.get("/")).status == 200
    await servers.kill("redis")
    assert (await leaves.get("/")).status == 200
    assert (await stays.get("/new")).status == 200
    assert await (await stays.socket()).echoed(b"a new one")

    await deployment.sign_out(ann)
    await deployment.people.set_role(odd.caller, root.caller.user.id, Role.USER)
    await eventually(lambda: is_out(leaves), SECONDS)
    await eventually(lambda: is_out(demoted), SECONDS)
    async with asyncio.timeout(SECONDS):
        assert [await socket.ended() for socket in sockets[1:]] == [SIGNED_OUT, SIGNED_OUT]
    assert await sockets[0].echoed(b"still mine")

    await servers.start("redis")
    await eventually(lambda: changes_are_heard(servers), TIMEOUT_SECONDS)
    assert (await stays.get("/")).status == 200
    assert await sockets[0].echoed(b"mine for good")


async def changes_are_heard(servers: Servers) -> bool:
    """The proxy has subscribed to the ends of sessions and to everybody's workspaces, by what Redis says. Until then
    nothing is remembered for longer than a moment."""
    async with Redis.from_url(servers.url("redis")) as client:
        [(_, sessions)] = await client.pubsub_numsub(AUTH_CHANNEL)
        patterns = await client.pubsub_numpat()
    return bool(sessions and patterns)


async def is_out(visit: Visit) -> bool:
    return (await visit.get("/", Accept="application/json")).status in (401, 404)


async def postgresql_is_away(servers: Servers, deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    """Who was just served is served on; the others are told that we cannot look them up, and come in when we can."""
    ann = await deployment.person()
    workspace = await deployment.running(ann)
    known = await deployment.visit(ann, workspace, proxy)
    unknown = await deployment.visit(ann, workspace, proxy)
    socket = await known.socket()
    assert (await known.get("/")).status == 200
    await servers.kill("postgres")
    for path in ("/", "/again", "/and-again"):
        assert (await known.get(path)).status == 200
    assert await socket.echoed(b"still here")
    page = await unknown.get("/", Accept=PAGE)
    assert (page.status, page.headers["content-type"].partition(";")[0]) == (503, "text/html")
    problem = await unknown.get("/", Accept="application/json")
    assert (problem.status, problem.headers["content-type"]) == (503, "application/problem+json")
    assert b'"unavailable"' in problem.body
    await servers.start("postgres")

    async def comes_in() -> bool:
        return (await unknown.get("/")).status == 200

    await eventually(comes_in, TIMEOUT_SECONDS)
    assert await socket.echoed(b"all the time")
