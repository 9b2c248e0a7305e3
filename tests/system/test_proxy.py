"""The proxy as it runs, while its own processes and those behind it die, renew and misbehave."""

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

import psutil
import pytest
import pytest_asyncio

from codehub.adapters.postgres.schema import migrate
from codehub.bootstrap.proxy import proxy_parts
from codehub.domain.identity import Role
from codehub.domain.workspace import Phase
from codehub.proxy.app import ProxyApp
from codehub.proxy.http.limits import ProxyLimits
from tests.eventually import eventually
from tests.real_services import ServiceLoop, free_port, temporary_database
from tests.system.proxy_deployment import ProxyDeployment, ProxyProcess, Visit, proxy_deployment
from tests.system.websockets import TIMEOUT_SECONDS, Browser, Connection, Cut, NotUpgraded, WebSocket

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

PAGE = "text/html,application/xhtml+xml,*/*;q=0.8"
GOING_AWAY, SIGNED_OUT, RESTARTING = 1001, 1008, 1012
SECONDS = 30.0
"""Enough for a loaded machine, and less than the minute after which everybody is looked at again."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(postgres_url: str, redis_url: str, service_loop: ServiceLoop) -> AsyncIterator[ProxyDeployment]:
    """One site for all, as starting it is most of the work: each test has people and workspaces of its own."""
    with temporary_database(postgres_url, service_loop) as url:
        await migrate(url)
        quick = {"ACTIVITY_FLUSH_INTERVAL": "1", "COORDINATOR_TTL_INTERVAL": "1"}
        async with proxy_deployment(url, redis_url, **quick) as opened:
            yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(deployment: ProxyDeployment) -> ProxyProcess:
    """Started as most systems start it: with few descriptors, unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        return await deployment.open(workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def served_by(worker: psutil.Process, socket: WebSocket) -> bool:
    ours = socket.network.writer.get_extra_info("sockname")[1]
    return any(getattr(connection.raddr, "port", 0) == ours for connection in worker.net_connections("tcp"))


async def one_visit(deployment: ProxyDeployment, proxy: ProxyProcess) -> Visit:
    ann = await deployment.person()
    return await deployment.visit(ann, await deployment.running(ann), proxy)


# ── our own processes ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_workers_take_all_the_descriptors_that_they_may(proxy: ProxyProcess) -> None:
    async def all_of_both() -> bool:
        limits = [worker.rlimit(psutil.RLIMIT_NOFILE) for worker in proxy.workers]
        return [soft == hard for soft, hard in limits] == [True, True]

    await eventually(all_of_both, TIMEOUT_SECONDS)  # requests are served as soon as one of them listens


async def test_the_status_address_says_whether_anybody_serves(proxy: ProxyProcess) -> None:
    async def asked(path: str) -> tuple[int, bytes]:
        network = await Connection.open(proxy.status_port)
        try:
            network.send("status", path, {"Connection": "close"})
            status, _ = await network.head()
            return status, await network.reader.read()
        finally:
            network.close()

    assert (await asked("/healthz"))[0] == 200
    status, said = await asked("/readyz")
    assert status == 200
    assert json.loads(said)["workers"] >= 1
    assert (await asked("/nothing"))[0] == 404


async def test_a_status_address_that_is_taken_is_named(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    taken = f"127.0.0.1:{proxy.status_port}"
    addresses = {"CODEHUB_PROXY_ADDRESS": f"127.0.0.1:{free_port()}", "CODEHUB_PROXY_STATUS_ADDRESS": taken}
    second = deployment.site._start("proxy", **addresses)
    assert await asyncio.to_thread(second.process.wait, TIMEOUT_SECONDS) != 0
    said = second.log.read_text()
    assert f"CODEHUB_PROXY_STATUS_ADDRESS={taken}" in said
    assert "Traceback" not in said


async def served_while_paused(visit: Visit, paused: psutil.Process, by: psutil.Process) -> list[WebSocket]:
    """Workers share one line of visitors, and any of them may take whoever is next: so the other one stands still."""
    paused.suspend()
    try:
        sockets = [await visit.socket() for _ in range(8)]
    finally:
        paused.resume()
    assert all(served_by(by, socket) for socket in sockets)
    return sockets


async def test_a_killed_worker_is_replaced_and_leaves_nothing_behind(
    deployment: ProxyDeployment, proxy: ProxyProcess
) -> None:
    visit = await one_visit(deployment, proxy)
    handles = proxy.supervisor.num_fds()
    victim, other = proxy.workers
    lost = await served_while_paused(visit, other, victim)
    kept = await served_while_paused(visit, victim, other)

    async def counts(sockets: int) -> bool:
        return (await proxy.metrics())["codehub_proxy_sockets"] == sockets

    await eventually(lambda: counts(16), TIMEOUT_SECONDS)
    victim.kill()
    assert {await socket.ended() for socket in lost} == {None}
    assert all([await socket.echoed(b"still here") for socket in kept])

    answers = await asyncio.gather(*(visit.get(f"/{number}") for number in range(20)))
    assert {answer.status for answer in answers} == {200}

    async def is_replaced() -> bool:
        return len(proxy.workers) == 2 and other in proxy.workers and victim not in proxy.workers

    await eventually(is_replaced, TIMEOUT_SECONDS)
    (successor,) = (worker for worker in proxy.workers if worker != other)
    again = await served_while_paused(visit, other, successor)
    assert all([await socket.echoed(b"back again") for socket in again])
    for socket in (*kept, *again):
        socket.close()
    await eventually(lambda: counts(0), TIMEOUT_SECONDS)

    async def nothing_is_left() -> bool:  # the connection that asked for the metrics ends in a thread of its own
        return proxy.supervisor.num_fds() <= handles

    await eventually(nothing_is_left, TIMEOUT_SECONDS)


async def test_renewal_under_load_fails_no_request(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    visit = await one_visit(deployment, proxy)
    before = {worker.pid for worker in proxy.workers}
    sockets = [await visit.socket() for _ in range(6)]
    assert all([await socket.echoed(b"hello") for socket in sockets])
    seen: list[int] = []
    over = asyncio.Event()

    async def browse(browser: Browser) -> None:
        while not over.is_set():
            seen.append((await browser.get(f"/file-{len(seen)}")).status)
            await asyncio.sleep(0.02)

    browsing = [asyncio.ensure_future(browse(visit.browser())) for _ in range(6)]
    proxy.send(signal.SIGHUP)
    codes = await asyncio.gather(*(socket.ended() for socket in sockets))

    async def is_renewed() -> bool:
        return len(proxy.workers) == 2 and not before & {worker.pid for worker in proxy.workers}

    await eventually(is_renewed, TIMEOUT_SECONDS)
    await eventually(lambda: len(seen) > 20, TIMEOUT_SECONDS)
    over.set()
    await asyncio.gather(*browsing)
    assert codes == [RESTARTING] * 6
    assert set(seen) == {200}


async def test_one_door_ends_well_while_the_other_serves(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    first, second = await deployment.open(), proxy
    visit = await one_visit(deployment, first)
    there = Visit(second, visit.workspace, visit.cookie)
    socket, elsewhere = await visit.socket(), await there.socket()
    download = await Connection.open(first.port)
    download.send(visit.host, "/big/30000000", visit.headers)
    status, headers = await download.head()
    assert (status, headers["content-length"]) == (200, "30000000")
    first.send(signal.SIGTERM)
    workers = first.workers

    async def takes_no_more() -> bool:
        try:
            (await Connection.open(first.port)).close()
        except OSError:
            return True
        return False

    got = len(await download.reader.readexactly(1_000_000))
    assert got + len(await download.reader.readexactly(29_000_000)) == 30_000_000
    download.close()
    assert await socket.ended() == RESTARTING
    assert await asyncio.to_thread(first.process.process.wait, TIMEOUT_SECONDS) == 0
    await eventually(takes_no_more, TIMEOUT_SECONDS)
    assert not any(worker.is_running() for worker in workers)
    assert await elsewhere.echoed(b"not my worker")
    assert (await there.get("/")).status == 200


# ── what is behind it ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_that_stops_cuts_what_is_under_way(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    visit = await one_visit(deployment, proxy)
    counted, dripping, socket = (
        await Connection.open(proxy.port),
        await Connection.open(proxy.port),
        await visit.socket(),
    )
    counted.send(visit.host, "/big/1000000000", visit.headers)
    dripping.send(visit.host, "/drip", visit.headers)
    assert (await counted.head())[0] == (await dripping.head())[0] == 200
    await dripping.reader.readexactly(10)
    await deployment.stop(visit.workspace)
    await deployment.settled(visit.workspace.id, Phase.STANDBY)
    assert await socket.ended() in (GOING_AWAY, None)
    assert await rest_of(counted) < 1_000_000_000
    dripped = bytearray()
    await rest_of(dripping, dripped)
    assert b"\r\n0\r\n" not in dripped, "it looks whole, and is not"
    waiting = await visit.get("/", Accept=PAGE, Sec_Fetch_Mode="navigate", Sec_Fetch_Site="none")
    assert (waiting.status, b"<html" in waiting.body) == (200, True)
    with pytest.raises(NotUpgraded, match="503"):
        await WebSocket.open(proxy.port, visit.host, visit.headers)
    assert (await deployment.row(visit.workspace.id)).phase is Phase.STANDBY


async def rest_of(network: Connection, into: bytearray | None = None) -> int:
    size = 0
    try:
        while data := await asyncio.wait_for(network.reader.read(1 << 16), TIMEOUT_SECONDS):
            size += len(data)
            if into is not None:
                into += data
    except ConnectionError:
        pass
    network.close()
    return size


@pytest.mark.parametrize(
    ("path", "status", "code", "limits"),
    [
        ("/garbage", 502, "garbage", ProxyLimits(tick=0.05)),
        ("/early", 502, "closed_early", ProxyLimits(tick=0.05)),
        ("/silent", 504, "too_slow", ProxyLimits(response_seconds=0.3, tick=0.05)),
    ],
    ids=["garbage", "early", "silent"],
)
async def test_what_answers_badly_is_explained(
    path: str, status: int, code: str, limits: ProxyLimits, deployment: ProxyDeployment
) -> None:
    """In this process, as no workspace is waited for as briefly as the silent one is here."""
    ann = await deployment.person()
    workspace = await deployment.running(ann)
    _, token = await deployment.token(ann)
    front = ProxyApp(proxy_parts(deployment.site.services), limits)
    running = asyncio.ensure_future(front.run())
    port = await front.server.listen("127.0.0.1", 0)
    try:
        for accept, kind in ((PAGE, "text/html"), ("application/json", "application/problem+json")):
            network = await Connection.open(port)
            network.send(f"{workspace.slug}.localhost", path, {"Authorization": f"Bearer {token}", "Accept": accept})
            answer = await network.answer()
            network.close()
            assert answer.status == status
            assert answer.headers["content-type"].startswith(kind)
            if kind != "text/html":
                assert json.loads(answer.body)["code"] == code
    finally:
        await front.server.drain(0.0, 0.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_half_an_answer_is_told_from_a_whole_one(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    visit = await one_visit(deployment, proxy)
    with pytest.raises(Cut) as cut:
        await visit.get("/half")
    assert cut.value.got == b"ten bytes."
    assert (await visit.get("/whole")).body == b"/whole"


# ── whoever may no longer be here ─────────────────────────────────────────────────────────────────────────────────────


async def test_those_who_may_no_longer_are_shown_out(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    ann = await deployment.person()
    root, eve, other_admin = [await deployment.person(Role.ADMIN) for _ in range(3)]
    workspace = await deployment.running(ann)
    token_id, token = await deployment.token(ann)
    stays = await deployment.visit(await deployment.again(ann), workspace, proxy)
    signs_out = await deployment.visit(ann, workspace, proxy)
    loses_role = await deployment.visit(root, workspace, proxy)
    is_disabled = await deployment.visit(eve, workspace, proxy)
    bearer, people = {"Authorization": f"Bearer {token}"}, deployment.people

    bystander = await stays.socket()
    by_token = await WebSocket.open(proxy.port, signs_out.host, bearer)
    by_visit = {visit.cookie: await visit.socket() for visit in (signs_out, loses_role, is_disabled)}
    tries: list[tuple[WebSocket, Callable[[], Awaitable[object]]]] = [
        (by_token, lambda: deployment.tokens.revoke(ann.caller, token_id)),
        (by_visit[signs_out.cookie], lambda: deployment.sign_out(ann)),
        (
            by_visit[loses_role.cookie],
            lambda: deployment.people.set_role(other_admin.caller, root.caller.user.id, Role.USER),
        ),
        (by_visit[is_disabled.cookie], lambda: people.disable(other_admin.caller, eve.caller.user.id)),
    ]
    for socket, end in tries:
        assert await socket.echoed(b"before")
        await end()
        async with asyncio.timeout(SECONDS):
            assert await socket.ended() == SIGNED_OUT
    for visit, status in ((signs_out, 401), (loses_role, 404), (is_disabled, 401)):
        assert (await visit.get("/", Accept="application/json")).status == status
    assert (await proxy.ask(signs_out.host, "/", **bearer)).status == 401
    assert await bystander.echoed(b"still mine")


# ── what it tells ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_activity_reaches_the_row_and_survives_a_killed_worker(
    deployment: ProxyDeployment, proxy: ProxyProcess
) -> None:
    visit = await one_visit(deployment, proxy)

    async def is_newer_than(before: datetime | None) -> bool:
        at = (await deployment.row(visit.workspace.id)).last_access_at
        return at is not None and (before is None or at > before)

    async def flushed_at_least() -> datetime:
        """The row or Redis has it: one of the two always does."""
        waiting = (await deployment.site.services.redis.activity().read()).get(visit.workspace.id)
        written = (await deployment.row(visit.workspace.id)).last_access_at
        assert written is not None
        return max(written, waiting or written)

    at_first = (await deployment.row(visit.workspace.id)).last_access_at
    assert (await visit.get("/work")).status == 200
    await eventually(lambda: is_newer_than(at_first), TIMEOUT_SECONDS)

    socket = await visit.socket()
    before = (await deployment.row(visit.workspace.id)).last_access_at
    assert await socket.echoed(b"\x01" + bytes(11) + b"\x05typed")  # as a workbench sends it
    await eventually(lambda: is_newer_than(before), TIMEOUT_SECONDS)

    for worker in proxy.workers:
        worker.kill()
    assert await socket.ended() is None
    at_last = await flushed_at_least()
    assert (await visit.get("/after")).status == 200
    await eventually(lambda: is_newer_than(at_last), TIMEOUT_SECONDS)


async def test_metrics_count_by_route(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    visit = await one_visit(deployment, proxy)
    before = await proxy.metrics()

    async def grew(route: str, status: str, by: int) -> bool:
        name = f'codehub_proxy_requests_total{{route="{route}",status="{status}"}}'
        return (await proxy.metrics()).get(name, 0.0) - before.get(name, 0.0) >= by

    for _ in range(5):
        assert (await visit.get("/counted")).status == 200
    assert (await proxy.ask(f"localhost:{proxy.port}", "/api/v1/session")).status == 502
    assert (await proxy.ask(visit.host, "/")).status == 401
    await eventually(lambda: grew("ide", "2xx", 5), TIMEOUT_SECONDS)
    await eventually(lambda: grew("api", "5xx", 1), TIMEOUT_SECONDS)
    await eventually(lambda: grew("front_door", "4xx", 1), TIMEOUT_SECONDS)


async def test_log_lines_have_ids_and_no_secret(deployment: ProxyDeployment, proxy: ProxyProcess) -> None:
    ann = await deployment.person()
    visit = await deployment.visit(ann, await deployment.running(ann), proxy)
    _, token = await deployment.token(ann)
    assert (await visit.get("/file?ticket=told-nobody&x=1", X_Request_Id="trace-1")).status == 200
    assert (await proxy.ask(visit.host, "/by-token?key=told-nobody", Authorization=f"Bearer {token}")).status == 200
    lines = proxy.process.log.read_text().splitlines()
    requests = [json.loads(line) for line in lines if '"event": "request"' in line]
    [ours] = [line for line in requests if line["request_id"] == "trace-1"]
    assert (ours["workspace"], ours["user"]) == (str(visit.workspace.id), str(ann.caller.user.id))
    assert (ours["method"], ours["path"], ours["status"], ours["route"]) == ("GET", "/file", 200, "ide")
    assert (ours["host"], ours["peer"]) == (visit.host, "127.0.0.1")
    assert all(line["request_id"] for line in requests)
    secrets = ("told-nobody", token, ann.session, visit.cookie.partition("=")[2])
    assert [line for line in lines if any(secret in line for secret in secrets)] == []
    assert [line for line in requests if "?" in line["path"]] == []
