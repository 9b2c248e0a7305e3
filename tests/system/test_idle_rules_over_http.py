"""Each rule of idle workspaces, leases and warnings, asked for and observed through the public API on real parts.

Workspaces of every kind stand side by side, and time is let pass for all of them at once: who is stopped and who is
not, what `lifecycle` foretold, what the owner's stream warned of, and what the ledger says of who did it and why.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codehub.adapters.embedded import embedded_redis
from tests.api.real_api import CODEHUB
from tests.eventually import eventually
from tests.real_services import ServiceLoop, temporary_database
from tests.system.remote import TIMEOUT_SECONDS, Json, Remote, RemoteInstallation, remote_installation

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

FLUSH, DRAIN = 1, 1
STANDBY_TTL = FLUSH + DRAIN + 60
ARCHIVE_TTL = STANDBY_TTL + 1
LIFETIME = 7200
HOUR = 3600
LONG_AGO = 600
OWN_TTL = {"came up lately": 500, "used lately": 500, "longer": 2000, "never": 0}
OWN_TTL |= dict.fromkeys(("active", "woken", "extended", "unreadable"), 100)
LAST_WARNING = 20
"""Seconds before the stop of a workspace with a TTL of 100: enough for a slow machine to look, and to come."""
SETTINGS = {
    "ACTIVITY_FLUSH_INTERVAL": str(FLUSH),
    "COORDINATOR_TTL_INTERVAL": str(DRAIN),
    "TTL_STANDBY_SECONDS": str(STANDBY_TTL),
    "TTL_ARCHIVE_SECONDS": str(ARCHIVE_TTL),
    "MAX_LIFETIME_SECONDS": str(LIFETIME),
}

RUNNING = {
    "idle": "nobody came since",
    "came up lately": "the standby TTL counts from the later of last access and phase change",
    "used lately": "as above",
    "longer": "its own TTL holds before the installation's",
    "never": "a TTL of 0 never stops it, the maximum lifetime does",
    "leased": "a lease holds it, until somebody asks for a stop",
    "active": "what the front door reports to Redis counts",
    "woken": "a wish to run in the last moment wins",
    "extended": "and so does a lease",
    "unreadable": "while activity cannot be read, nobody is stopped",
    "old": "the maximum lifetime bounds leases and activity",
}
STANDBY = {
    "asleep": "the archive TTL counts from the phase change alone",
    "asleep for ever": "a TTL of 0 never archives it",
    "asleep, leased": "a lease holds this TTL too",
    "starting": "an operation is under way",
}
"""Each workspace stands for a rule."""
LEASED = {"leased", "old", "asleep, leased"}
SOON_DUE = ("idle", "active", "woken", "extended", "unreadable")
TTL_LATER: dict[str, dict[str, int | None]] = {name: {"standby_ttl_seconds": OWN_TTL.get(name)} for name in SOON_DUE}
TTL_LATER |= {name: {"archive_ttl_seconds": None} for name in ("asleep", "starting")}
"""Given when time has passed, so that nobody is warned while others are still arriving. None: the installation's."""


class OwnRedis:
    """To be ended and started again where it was."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: Any = None
        self.url = ""

    async def start(self) -> None:
        self._running = embedded_redis(self._directory)
        self.url = (await self._running.__aenter__()).url

    async def end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.__aexit__(None, None, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis() -> AsyncIterator[OwnRedis]:
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as directory:
        server = OwnRedis(Path(directory))
        await server.start()
        try:
            yield server
        finally:
            await server.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(postgres_url: str, redis: OwnRedis, service_loop: ServiceLoop) -> AsyncIterator[RemoteInstallation]:
    with temporary_database(postgres_url, service_loop) as url:
        async with remote_installation(url, redis.url, **SETTINGS) as opened:
            yield opened


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def obstacles(told: Json) -> list[str]:
    return [each["kind"] for each in told["blocked_by"]]


async def idle_end(ws: Remote, since: str, ttl: int) -> datetime:
    """One flush later than its TTL: activity may be that late in reaching us."""
    return moment((await ws.shown())[since]) + timedelta(seconds=ttl + FLUSH)


async def one_kind(hub: RemoteInstallation, name: str, phase: str, alone: asyncio.Lock) -> Remote:
    """Arrived, with a TTL that cannot end before all of them are there, or with a lease."""
    standby = 0 if name in TTL_LATER or name in STANDBY else OWN_TTL.get(name)
    archive = None if name == "asleep, leased" else 0
    async with alone:  # the API would let them wait for each other, and not for ever
        made = await hub.create(name, phase, standby_ttl_seconds=standby, archive_ttl_seconds=archive)
    await made.becomes(phase)
    if name in LEASED:
        await made.keep_alive(HOUR)
    return made


async def all_kinds(hub: RemoteInstallation) -> dict[str, Remote]:
    """Arrived, each with what makes it special; no time has passed yet."""
    phases = dict.fromkeys(RUNNING, "RUNNING") | dict.fromkeys(STANDBY, "STANDBY")
    alone = asyncio.Lock()
    made = await asyncio.gather(*(one_kind(hub, name, phase, alone) for name, phase in phases.items()))
    them = dict(zip(phases, made, strict=True))
    for wish in ("RUNNING", "STANDBY"):  # used right before it fell asleep
        await them["asleep"].brought_to(wish)
    (await hub.home(them["starting"]) / "no-start").touch()
    await them["starting"].wants("RUNNING")
    await them["starting"].shows(lambda ws: ws["operation"] == "STARTING")
    return them


async def time_passes(hub: RemoteInstallation, them: dict[str, Remote]) -> None:
    since: dict[str, tuple[str, ...]] = dict.fromkeys(RUNNING, ("last_access_at", "phase_changed_at"))
    since |= dict.fromkeys(STANDBY, ("phase_changed_at",))
    since |= {"came up lately": ("last_access_at",), "used lately": ("phase_changed_at",)}
    for name, columns in since.items():
        if name == "old":
            await hub.passes(them[name], LIFETIME + 1, "phase_changed_at")
        else:
            await hub.passes(them[name], LONG_AGO, *columns)
    for name, ttl in TTL_LATER.items():
        assert (await hub.ann.patch(them[name].path, json=ttl)).status_code == 200


WARNED = {"idle", "active", "woken", "extended", "unreadable", "old", "asleep"}
STOPPED = {"idle": "idle", "unreadable": "idle", "old": "max_lifetime", "asleep": "idle"}
"""And why, in the ledger's words."""


async def test_who_is_put_to_sleep_when_and_why(hub: RemoteInstallation, redis: OwnRedis) -> None:
    them = await all_kinds(hub)
    await _is_foretold(them["used lately"])
    begun = datetime.now(UTC)
    await time_passes(hub, them)

    async def all_are_warned() -> bool:
        return all(hub.warnings(them[name]) for name in WARNED)

    await eventually(all_are_warned, TIMEOUT_SECONDS)
    assert {name for name, ws in them.items() if hub.warnings(ws)} == WARNED
    assert [each["becomes"] for each in hub.warnings(them["asleep"])] == ["ARCHIVED"]
    [last] = hub.warnings(them["unreadable"])
    assert last["becomes"] == "STANDBY"
    left = moment(last["stops_at"]) - begun
    assert left >= timedelta(seconds=LAST_WARNING), "time to read it is left, however late it came"

    await _somebody_comes(hub, them)
    await redis.end()
    await asyncio.sleep(max(0.0, (moment(last["stops_at"]) - datetime.now(UTC)).total_seconds()) + 3 * DRAIN)
    assert (await them["unreadable"].shown())["desired_state"] == "RUNNING"
    await redis.start()

    for name, why in STOPPED.items():
        shown = await them[name].becomes("ARCHIVED" if name == "asleep" else "STANDBY")
        wish = (await them[name].ledger("wish"))[-1]
        assert (wish["actor"], wish["reason"], wish["after"]) == ("ttl", why, shown["desired_state"])
    stop = (await them["idle"].lifecycle())["last_stop"]
    assert (stop["actor"], stop["reason"]) == ("ttl", "idle")
    await asyncio.sleep(3 * DRAIN)
    await _the_others_stay(them)
    await _a_wish_wins_over_a_lease(them)


async def _is_foretold(ws: Remote) -> None:
    told, ttl = await ws.lifecycle(), OWN_TTL["used lately"]
    ends = await idle_end(ws, "phase_changed_at", ttl)
    assert (moment(told["stops_at"]), told["becomes"], told["stop_reason"]) == (ends, "STANDBY", "idle")
    leads = [(ends - moment(at)).total_seconds() for at in told["warnings"]]
    assert leads == [ttl / 2, ttl / 5]
    assert (told["blocked_by"], told["why_up"]["actor"], told["why_up"]["reason"]) == ([], "ann", "created")


async def _somebody_comes(hub: RemoteInstallation, them: dict[str, Remote]) -> None:
    now = datetime.now(UTC)
    await hub.site.services.redis.activity().record({them["active"].id: now})
    assert (await them["woken"].wants("RUNNING")).status_code == 200
    await them["extended"].keep_alive(HOUR)
    await them["active"].shows(lambda ws: moment(ws["last_access_at"]) == now)


async def _the_others_stay(them: dict[str, Remote]) -> None:
    for name in RUNNING.keys() - STOPPED:
        shown = await them[name].shown()
        assert (shown["phase"], shown["desired_state"]) == ("RUNNING", "RUNNING"), name
    for name, since in (
        ("came up lately", "phase_changed_at"),
        ("used lately", "last_access_at"),
        ("active", "last_access_at"),
        ("woken", "last_access_at"),
        ("longer", "phase_changed_at"),
        ("never", "phase_changed_at"),
    ):
        ttl = OWN_TTL[name] or LIFETIME - FLUSH
        told = await them[name].lifecycle()
        assert moment(told["stops_at"]) == await idle_end(them[name], since, ttl), name
        assert told["stop_reason"] == ("max_lifetime" if name == "never" else "idle")
    for name in ("leased", "extended"):
        told = await them[name].lifecycle()
        [lease] = told["blocked_by"]
        assert (lease["kind"], lease["until"], told["stop_reason"]) == ("lease", told["stops_at"], "lease_ended"), name
    for name, kind in (("asleep for ever", "never"), ("asleep, leased", "lease"), ("starting", "operation")):
        assert (await them[name].shown())["phase"] == "STANDBY", name
        assert kind in obstacles(await them[name].lifecycle()), name
    assert (await them["asleep for ever"].lifecycle())["stops_at"] is None


async def _a_wish_wins_over_a_lease(them: dict[str, Remote]) -> None:
    leased = them["leased"]
    await leased.brought_to("STANDBY")
    stop = (await leased.lifecycle())["last_stop"]
    assert (stop["actor"], stop["reason"]) == ("ann", "asked")
    await leased.brought_to("RUNNING")
    assert obstacles(await leased.lifecycle()) == [], "a lease ends when the stop begins"
    assert (await them["extended"].keep_alive(0))["seconds"] == 0
    assert obstacles(await them["extended"].lifecycle()) == [], "0 lets go"
    longest = await them["extended"].keep_alive(30 * 24 * HOUR)
    assert (longest["seconds"], longest["capped"]) == (24 * HOUR, True)
    slept = them["asleep, leased"]
    await slept.brought_to("ARCHIVED")
    refused = await slept.http.post(f"{slept.path}/keepalive", json={"seconds": HOUR})
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_keep")


async def test_a_ttl_that_could_stop_somebody_who_types_is_refused(hub: RemoteInstallation) -> None:
    for field in ("standby_ttl_seconds", "archive_ttl_seconds"):
        refused = await hub.ann.post("/api/v1/workspaces", json={"name": "hasty", field: STANDBY_TTL - 1})
        assert refused.status_code == 422
        assert [(each["field"], str(STANDBY_TTL) in each["message"]) for each in refused.json()["errors"]] == [
            (field, True)
        ]
    ws = await hub.create("kept", "PENDING", standby_ttl_seconds=STANDBY_TTL)
    refused = await hub.ann.patch(ws.path, json={"memo": "new", "standby_ttl_seconds": STANDBY_TTL - 1})
    assert refused.status_code == 422
    shown = await ws.shown()
    assert (shown["memo"], shown["standby_ttl_seconds"]) == ("", STANDBY_TTL)
    for value in (0, None):
        assert (await hub.ann.patch(ws.path, json={"standby_ttl_seconds": value})).status_code == 200
        assert (await ws.shown())["standby_ttl_seconds"] == value
    environment = hub.site.environment() | {"TTL_STANDBY_SECONDS": str(STANDBY_TTL - 1)}

    def run(verb: str) -> subprocess.CompletedProcess[str]:
        command = [str(CODEHUB), verb]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )

    for ended in await asyncio.gather(*(asyncio.to_thread(run, verb) for verb in ("api", "coordinator"))):
        assert ended.returncode == 2
        assert f"TTL_STANDBY_SECONDS={STANDBY_TTL - 1}: must be 0 (never) or at least {STANDBY_TTL}" in ended.stderr
