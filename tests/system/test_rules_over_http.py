"""Each rule of retry, error and recovery, asked for and observed through the public API on real parts.

Only what happens to the world (a broken IDE, a lost volume, a damaged archive, time that passes) is done from the side.
The rules of time, idle workspaces and leases have their own file: test_idle_rules_over_http.py.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.real_services import ServiceLoop, temporary_database
from tests.system.remote import Json, Remote, RemoteInstallation, remote_installation

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

UNDO_SECONDS = 3600


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(postgres_url: str, redis_url: str, service_loop: ServiceLoop) -> AsyncIterator[RemoteInstallation]:
    """One for all: each test has workspaces of its own. The collector is always at work and gives no grace."""
    settings = {
        "COORDINATOR_GC_INTERVAL": "1",
        "GC_GRACE_SECONDS": "0",
        "GC_DELETED_RETENTION_SECONDS": str(UNDO_SECONDS),
        "RECONCILER_MAX_RETRIES": "3",
    }
    with temporary_database(postgres_url, service_loop) as url:
        async with remote_installation(url, redis_url, **settings) as opened:
            yield opened


def said(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def holders(hub: RemoteInstallation) -> set[str]:
    """Of the owner's slots."""
    return {each["id"] for each in (await hub.ann.get("/api/v1/limits")).json()["holders"]}


async def broken(hub: RemoteInstallation, name: str, gate: str = "broken") -> tuple[Remote, Path]:
    """Asleep, with an IDE that will not come up; and the file to remove to mend it."""
    ws = await hub.at(name, "STANDBY")
    told = await hub.home(ws) / gate
    told.touch()
    return ws, told


async def given_up(hub: RemoteInstallation, name: str) -> tuple[Remote, Path]:
    ws, gate = await broken(hub, name)
    assert (await ws.wants("RUNNING")).status_code == 202
    await ws.fails("RetryExceeded")
    return ws, gate


async def without_ide(hub: RemoteInstallation, *names: str) -> list[Remote]:
    """In ERROR at once, with all that they hold."""
    those = await asyncio.gather(*(hub.at(name, "STANDBY") for name in names))
    with hub.no_ide():
        for ws in those:
            assert (await ws.wants("RUNNING")).status_code == 202
        for ws in those:
            await ws.fails("ImagePullFailed")
    return those


# ── retry ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_attempts_are_counted_with_growing_pauses_until_none_is_left(hub: RemoteInstallation) -> None:
    """Attempt k fails: error.count = k. The operation and its op_id stay; nothing is in ERROR before the last."""
    ws, _ = await broken(hub, "three tries")
    await ws.wants("RUNNING")
    seen: dict[int, Json] = {}

    def is_over(shown: Json) -> bool:
        if shown["error"] is not None:
            seen.setdefault(shown["error"]["count"], shown)
        return bool(shown["phase"] == "ERROR")

    last = await ws.shows(is_over)
    assert (last["operation"], last["desired_state"]) == ("NONE", "RUNNING")
    assert last["error"] | {"reason": "RetryExceeded", "is_terminal": True, "count": 3} == last["error"]
    assert len(seen) > 1
    for count in seen.keys() - {3}:
        shown = seen[count]
        assert (shown["phase"], shown["operation"], shown["op_id"]) == ("STANDBY", "STARTING", last["op_id"])
        assert shown["conditions"]["policy.healthy"]["status"] is True
        assert shown["error"]["operation"] == "STARTING"
        assert (shown["error"]["reason"], shown["error"]["is_terminal"]) == ("ActionFailed", False)
    story = await ws.ledger("attempt_failed", "error")
    assert [(entry["kind"], entry["reason"]) for entry in story] == [
        ("attempt_failed", "ActionFailed"),
        ("attempt_failed", "ActionFailed"),
        ("error", "RetryExceeded"),
    ]
    assert {entry["op_id"] for entry in story} == {last["op_id"]}
    moments = [datetime.fromisoformat(entry["at"]) for entry in story]
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    assert pauses[0] >= 0.9, "1 s, give or take a tenth"
    assert pauses[1] >= 1.8, "2 s, give or take a tenth"


async def test_a_start_that_does_not_last_is_a_failed_attempt_and_no_loop(hub: RemoteInstallation) -> None:
    ws, _ = await broken(hub, "short-lived", "short-lived")
    await ws.wants("RUNNING")
    shown = await ws.fails("RetryExceeded")
    assert (shown["error"]["count"], shown["error"]["operation"]) == (3, "STARTING")
    runs = [entry for entry in await ws.ledger("phase") if entry["after"] == "RUNNING"]
    assert 0 < len(runs) <= 3


async def test_success_clears_the_error_and_a_phase_that_held_the_count(hub: RemoteInstallation) -> None:
    """Each operation has tries of its own, and a stop is one: the start after it begins with three, whether the phase
    before it had held for a minute or not."""

    async def tries_left(name: str, *, held: bool) -> tuple[int, int]:
        ws, gate = await broken(hub, name)
        await ws.wants("RUNNING")
        await ws.stumbles()
        gate.unlink()
        assert (await ws.becomes("RUNNING"))["error"] is None
        before = await ws.ledger("attempt_failed")
        if held:
            await hub.passes(ws, 61, "phase_changed_at")
            await hub.reads(ws, "error_count", lambda count: count == 0)
        await ws.brought_to("STANDBY")
        gate.touch()
        await ws.wants("RUNNING")
        await ws.fails("RetryExceeded")
        return len(before), len(await ws.ledger("attempt_failed", "error")) - len(before)

    hasty, patient = await asyncio.gather(tries_left("hasty", held=False), tries_left("patient", held=True))
    assert hasty[1] == patient[1] == 3


async def test_a_wish_that_changed_between_attempts_is_planned_anew(hub: RemoteInstallation) -> None:
    ws, _ = await broken(hub, "second thoughts")
    await ws.wants("RUNNING")
    begun = (await ws.stumbles())["op_id"]
    assert (await ws.wants("ARCHIVED")).status_code == 202
    shown = await ws.becomes("ARCHIVED")
    assert shown["op_id"] != begun
    assert shown["error"] is None
    ended = [(entry["before"], entry["reason"]) for entry in await ws.ledger("operation_ended")]
    assert ("STARTING", "desired_state_changed") in ended


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_error_says_what_happened_and_leaves_the_rest_true(hub: RemoteInstallation) -> None:
    ws, _ = await given_up(hub, "shape")
    shown = await ws.shown()
    error = shown["error"]
    assert set(error) == {"reason", "message", "is_terminal", "operation", "count", "context", "occurred_at"}
    assert "this IDE is broken" in error["message"]
    assert error["context"] | {"max_retries": 3, "last_reason": "ActionFailed", "action": "start"} == error["context"]
    assert "this IDE is broken" in error["context"]["last_error"]
    conditions = shown["conditions"]
    assert (conditions["policy.healthy"]["status"], conditions["policy.healthy"]["reason"]) == (False, "RetryExceeded")
    assert conditions["storage.volume_ready"]["status"] is True
    assert conditions["infra.container_ready"]["status"] is False
    blocked = await ws.lifecycle()
    assert ([each["kind"] for each in blocked["blocked_by"]], blocked["stops_at"]) == (["error"], None)
    await eventually(lambda: bool(hub.events.known.get(str(ws.id), {}).get("error") == error))
    # a container that is there holds its slot, dead or not
    assert conditions["infra.container_ready"]["reason"] == "process.Exited"
    assert str(ws.id) in await holders(hub)
    told = (await hub.root.get("/api/v1/admin/errors", params={"reason": "RetryExceeded", "limit": 200})).json()
    assert str(ws.id) in {item["id"] for item in told["items"]}
    assert all(group["meaning"] and group["what_to_do"] for group in told["reasons"])
    # conditions follow the world in ERROR too
    bring_back = await hub.lose_volume(ws)
    await ws.shows(lambda seen: seen["conditions"]["storage.volume_ready"]["status"] is False)
    bring_back()
    await ws.shows(lambda seen: seen["conditions"]["storage.volume_ready"]["status"] is True)


async def test_no_ide_is_terminal_at_once_and_holds_no_slot(hub: RemoteInstallation) -> None:
    [ws] = await without_ide(hub, "no image")
    shown = await ws.shown()
    assert (shown["error"]["count"], shown["error"]["is_terminal"], shown["desired_state"]) == (1, True, "RUNNING")
    assert str(ws.id) not in await holders(hub)
    assert (await ws.recover("retry")).status_code == 202
    await ws.becomes("RUNNING")
    assert str(ws.id) in await holders(hub)


async def test_a_deadline_that_passed_is_terminal_at_once(hub: RemoteInstallation) -> None:
    ws, gate = await broken(hub, "too slow", "no-start")
    await ws.wants("RUNNING")
    begun = (await ws.shows(lambda seen: seen["operation"] == "STARTING"))["op_id"]
    await hub.passes(ws, 301, "op_started_at")
    shown = await ws.fails("Timeout")
    assert (shown["error"]["operation"], shown["error"]["count"], shown["op_id"]) == ("STARTING", 1, begun)
    context = shown["error"]["context"]
    assert (context["operation"], context["limit_seconds"]) == ("STARTING", 300)
    assert context["elapsed_seconds"] >= 301
    gate.unlink()
    assert (await ws.recover("retry")).status_code == 202
    await ws.becomes("RUNNING")


async def test_an_archive_that_went_away_is_an_error_that_clears_itself(hub: RemoteInstallation) -> None:
    ws = await hub.archived("object away", "kept")
    archive, _ = await hub.archive(ws)
    away = archive.with_suffix(".away")
    archive.rename(away)
    await ws.wants("STANDBY")
    shown = await ws.fails("ArchiveAccessError")
    assert shown["error"]["context"] == {"archive_key": shown["archive_key"], "detail": "ArchiveNotFound"}
    assert shown["conditions"]["storage.archive_ready"]["reason"] == "ArchiveNotFound"
    away.rename(archive)
    assert (await ws.becomes("STANDBY"))["error"] is None
    assert await hub.work(ws) == "kept"
    assert await ws.ledger("recover_asked") == []


async def test_a_container_whose_volume_went_away_clears_itself_too(hub: RemoteInstallation) -> None:
    ws = await hub.at("volume away", "RUNNING")
    (await hub.home(ws) / "work").write_text("kept")
    bring_back = await hub.lose_volume(ws)
    shown = await ws.fails("ContainerWithoutVolume")
    assert shown["conditions"]["infra.container_ready"]["status"] is True
    bring_back()
    assert (await ws.becomes("RUNNING"))["error"] is None
    assert await hub.work(ws) == "kept"


async def test_a_wish_made_in_error_waits_for_the_recovery(hub: RemoteInstallation) -> None:
    [ws] = await without_ide(hub, "wish in error")
    assert (await ws.wants("ARCHIVED")).status_code == 202
    shown = await ws.shown()
    assert (shown["phase"], shown["desired_state"], shown["operation"]) == ("ERROR", "ARCHIVED", "NONE")
    assert (await ws.recover("retry")).status_code == 202
    assert (await ws.becomes("ARCHIVED"))["error"] is None


async def test_delete_works_from_error_and_keeps_the_only_copy(hub: RemoteInstallation) -> None:
    [ws] = await without_ide(hub, "delete in error")
    (await hub.home(ws) / "work").write_text("kept")
    assert (await ws.http.delete(ws.path)).status_code == 202
    await ws.shows(lambda seen: seen["phase"] == "DELETED")
    assert said(await ws.wants("RUNNING")) == (404, "not_found")
    assert (await ws.http.post(f"{ws.path}/undelete")).status_code == 202
    await ws.becomes("STANDBY")
    assert await hub.work(ws) == "kept"


# ── recovery ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def corrupted(hub: RemoteInstallation) -> Remote:
    ws = await hub.archived("bits flipped", "older", "newer")
    archive, _ = await hub.archive(ws)
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    await ws.wants("STANDBY")
    shown = await ws.fails("ArchiveCorrupted")
    assert shown["error"]["is_terminal"] is True
    return ws


async def lost(hub: RemoteInstallation) -> Remote:
    ws = await hub.archived("volume lost", "older", "newer")
    await ws.brought_to("STANDBY")
    await hub.lose_volume(ws)
    shown = await ws.fails("DataLost")
    assert (shown["error"]["count"], shown["error"]["is_terminal"]) == (0, True)
    return ws


ACTIONS = {
    "use_archive: the newest that can be read": (lost, "use_archive", None, "newer"),
    "use_archive: a chosen restore point": (lost, "use_archive", -1, "older"),
    "use_archive: another than the corrupted": (corrupted, "use_archive", -1, "older"),
    "forget_archive": (corrupted, "forget_archive", None, None),
    "empty_home": (lost, "empty_home", None, None),
}
"""How it came to ERROR, the action, the restore point by its place, and the work that is in the home afterwards."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def in_error(hub: RemoteInstallation) -> dict[tuple[str, str], Remote]:
    """One for each action and helper, brought there side by side."""
    keys = [(case, who) for case in ACTIONS for who in ("ann", "root")]
    return dict(zip(keys, await asyncio.gather(*(ACTIONS[case][0](hub) for case, _ in keys)), strict=True))


@pytest.mark.parametrize("who", ["ann", "root"], ids=["by its owner", "by an admin"])
@pytest.mark.parametrize("case", ACTIONS)
async def test_each_action_leads_out_of_error(
    hub: RemoteInstallation, in_error: dict[tuple[str, str], Remote], case: str, who: str
) -> None:
    _, action, place, work = ACTIONS[case]
    ws = in_error[case, who]
    helper = ws.of(getattr(hub, who))
    chosen = None if place is None else (await ws.restore_points())[place]["op_id"]
    assert said(await ws.of(hub.eve).recover(action, chosen)) == (404, "not_found")
    if chosen:
        assert said(await ws.http.post(f"{ws.path}/restore", json={"archive": chosen})) == (409, "in_error")
        assert said(await helper.recover("retry", chosen)) == (422, "invalid")
    assert (await helper.recover(action, chosen)).status_code == 202
    assert (await ws.becomes("STANDBY"))["error"] is None
    assert await hub.work(ws) == work
    [asked] = await ws.ledger("recover_asked")
    assert (asked["actor"], asked["after"], asked["reason"]) == (who, action, f"recover:{action}")
    assert said(await helper.recover(action, chosen)) == (409, "not_in_error")


async def test_remove_container_then_a_restore_point(hub: RemoteInstallation) -> None:
    async def out(helper: httpx.AsyncClient) -> None:
        ws = await hub.archived("container alone", "kept")
        await ws.brought_to("RUNNING")
        await hub.lose_volume(ws)
        await ws.fails("ContainerWithoutVolume")
        await ws.wants("STANDBY")
        assert (await ws.of(helper).recover("remove_container")).status_code == 202
        shown = await ws.fails("DataLost")
        assert shown["conditions"]["infra.container_ready"]["reason"] == "NoContainer"
        assert (await ws.of(helper).recover("use_archive")).status_code == 202
        await ws.becomes("STANDBY")
        assert await hub.work(ws) == "kept"

    await asyncio.gather(out(hub.ann), out(hub.root))


async def test_an_admin_recovers_many_at_once(hub: RemoteInstallation) -> None:
    two = await without_ide(hub, "one of two", "two of two")
    healthy = await hub.at("nothing wrong", "STANDBY")
    ids = [str(ws.id) for ws in two]
    body = {"action": "retry", "ids": [*ids, str(healthy.id)]}
    assert said(await hub.ann.post("/api/v1/admin/errors/recover", json=body)) == (403, "forbidden")
    answer = await hub.root.post("/api/v1/admin/errors/recover", json=body)
    outcomes = [(each["id"], each["accepted"], each["code"]) for each in answer.json()["items"]]
    assert outcomes == [(key, True, None) for key in ids] + [(str(healthy.id), False, "not_in_error")]
    for ws in two:
        await ws.becomes("RUNNING")


async def test_limits_hold_for_a_recovery(hub: RemoteInstallation) -> None:
    """A wish to run that waits in ERROR holds no slot, so it needs one to come out."""
    [ws] = await without_ide(hub, "waits for a slot")
    other = await hub.at("takes the slot", "STANDBY")
    limits = (await hub.ann.get("/api/v1/limits")).json()
    await _limit_ann(hub, limits["running"] + 1)
    try:
        await other.brought_to("RUNNING")
        refused = await ws.recover("retry")
        assert said(refused) == (429, "limit_reached")
        assert any(holder.startswith("takes the slot") for holder in refused.json()["holders"])
        await other.brought_to("STANDBY")
        assert (await ws.recover("retry")).status_code == 202
        await ws.becomes("RUNNING")
    finally:
        await _limit_ann(hub, None)


async def _limit_ann(hub: RemoteInstallation, most: int | None) -> None:
    me = (await hub.ann.get("/api/v1/session")).json()["user"]
    answer = await hub.root.patch(f"/api/v1/admin/users/{me['id']}", json={"max_running": most})
    assert answer.status_code == 200, answer.text


async def test_undelete_inside_the_window_and_gone_after_it(hub: RemoteInstallation) -> None:
    ws = await hub.archived("deleted", "kept")
    await ws.http.delete(ws.path)
    await ws.shows(lambda seen: seen["phase"] == "DELETED")
    assert said(await ws.of(hub.eve).http.post(f"{ws.path}/undelete")) == (404, "not_found")
    assert (await ws.http.post(f"{ws.path}/undelete")).status_code == 202
    await ws.becomes("ARCHIVED")
    assert said(await ws.http.post(f"{ws.path}/undelete")) == (409, "not_deleted")
    await ws.brought_to("STANDBY")
    assert await hub.work(ws) == "kept"
    await ws.http.delete(ws.path)
    await ws.shows(lambda seen: seen["phase"] == "DELETED")
    await hub.passes(ws, UNDO_SECONDS + 1, "deleted_at")

    await hub.reads(ws, "purged_at", lambda at: at is not None)
    assert said(await ws.http.post(f"{ws.path}/undelete")) == (410, "purged")


# ── wishes during an operation, and the one that gives the home up ───────────────────────────────────────────────────


async def test_a_wish_during_an_operation_waits_for_its_end_or_asks_not_to(hub: RemoteInstallation) -> None:
    ws, gate = await broken(hub, "under way", "no-start")
    await ws.wants("RUNNING")
    await ws.shows(lambda seen: seen["operation"] == "STARTING")
    refused = await ws.wants("STANDBY", if_idle=True)
    assert said(refused) == (409, "operation_in_progress")
    assert int(refused.headers["retry-after"]) > 0
    assert (await ws.shown())["desired_state"] == "RUNNING"
    assert (await ws.wants("STANDBY")).status_code == 202
    assert (await ws.shown())["operation"] == "STARTING"
    gate.unlink()
    await ws.becomes("STANDBY")
    ended = [(entry["before"], entry["reason"]) for entry in await ws.ledger("operation_ended")]
    assert ended[-2:] == [("STARTING", "observed"), ("STOPPING", "observed")]
    assert (await ws.wants("STANDBY", if_idle=True)).status_code == 200


async def test_pending_must_be_meant_and_can_be_undone(hub: RemoteInstallation) -> None:
    ws = await hub.archived("discarded", "kept")
    refused = await ws.wants("PENDING")
    assert said(refused) == (422, "invalid")
    assert [each["field"] for each in refused.json()["errors"]] == ["discard_home"]
    assert (await ws.wants("PENDING", discard_home=True)).status_code == 202
    shown = await ws.becomes("PENDING")
    assert shown["archive_key"] is None
    [point] = await ws.restore_points()
    assert point["released_at"] is not None
    answer = await ws.http.post(f"{ws.path}/restore", json={"archive": point["op_id"]})
    assert answer.status_code == 202
    await ws.becomes("ARCHIVED")
    await ws.brought_to("STANDBY")
    assert await hub.work(ws) == "kept"
    # and it is what there is to come back to
    await hub.lose_volume(ws)
    await ws.fails("DataLost")
    assert (await ws.recover("use_archive")).status_code == 202
    await ws.becomes("STANDBY")
    assert await hub.work(ws) == "kept"
