"""Workspaces over HTTP: made, listed, changed, wished away; every answer as documented."""

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from codehub.adapters.system import SystemClock
from codehub.api.schemas import WorkspaceShown as Shape
from codehub.domain.admission import RunningLimits
from codehub.domain.workspace import Desired, Operation, Phase, Progress
from tests.api.memory_api import ApiUser, Backends, MemoryApi, memory_api
from tests.rows import NOW, OP_ID, broken

FIELDS = {
    *(
        "id",
        "name",
        "description",
        "memo",
        "owner",
        "template",
        "image_ref",
        "next_image_ref",
        "runtime",
        "url",
        "phase",
    ),
    *("desired_state", "operation", "is_at_rest", "op_id", "op_started_at", "progress", "conditions"),
    *("archive_key", "error", "evicted"),
    *("last_access_at", "phase_changed_at", "standby_ttl_seconds", "archive_ttl_seconds", "created_at", "updated_at"),
    *("deleted_at", "purged_at", "undo_until", "git_url", "git_ref"),
}


async def test_a_new_workspace_has_the_shape_that_clients_rely_on(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.http.post("/api/v1/workspaces", json={"name": "My Demo", "memo": "m"})
    assert made.status_code == 201
    body = made.json()
    assert set(body) == FIELDS
    Shape.model_validate(body)
    assert (body["owner"], body["phase"], body["desired_state"]) == ("ann", "PENDING", "RUNNING")
    assert body["url"].startswith("http://my-demo-")
    assert made.headers["location"] == f"/api/v1/workspaces/{body['id']}"
    assert (await ann.http.get(made.headers["location"])).json() == body


async def test_progress_and_errors_are_shown(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    api.controller_writes(
        made["id"],
        operation=Operation.STARTING,
        op_id=OP_ID,
        op_started_at=datetime.now(UTC),
        op_progress=Progress(5, 1),
    )
    shown = (await ann.http.get(f"/api/v1/workspaces/{made['id']}")).json()
    assert shown["progress"] == {"bytes": 5, "files": 1, "total_bytes": None, "step": ""}
    row = api.rows[UUID(made["id"])]
    wrong = broken(row)
    api.controller_writes(made["id"], phase=wrong.phase, error_info=wrong.error_info, error_reason=wrong.error_reason)
    error = (await ann.http.get(f"/api/v1/workspaces/{made['id']}")).json()["error"]
    assert set(error) == {"reason", "message", "is_terminal", "operation", "count", "context", "occurred_at"}
    assert error["reason"] == "RetryExceeded"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "  "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "a\ud800b"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": 7}, "name"),
        ({"name": "a", "colour": "red"}, "colour"),
        ({"name": "a", "image_ref": "evil:latest"}, "image_ref"),
        ({"name": "a", "template": "no-such"}, "template"),
        ({"name": "a", "desired_state": "DELETED"}, "desired_state"),
        ({"name": "a", "desired_state": "ERROR"}, "desired_state"),
        ({"name": "a", "standby_ttl_seconds": -1}, "standby_ttl_seconds"),
        ({"name": "a", "standby_ttl_seconds": 5}, "standby_ttl_seconds"),
        ({"name": "a", "standby_ttl_seconds": "600"}, "standby_ttl_seconds"),
        ({"name": "a", "standby_ttl_seconds": 10**12}, "standby_ttl_seconds"),
        ({"name": "a", "archive_ttl_seconds": True}, "archive_ttl_seconds"),
        ({"name": "a", "git_url": "https://ann:secret@git.example.com/x"}, "git_url"),
        ({"name": "a", "git_url": "--upload-pack=evil"}, "git_url"),
        ({"name": "a", "git_url": "file:///etc/passwd"}, "git_url"),
        ({"name": "a", "git_url": "https://git.example.com/x", "git_ref": "--upload-pack=evil"}, "git_ref"),
        ({"name": "a", "git_url": "https://git.example.com/x", "git_ref": "a..b"}, "git_ref"),
        ({"name": "a", "git_ref": "main"}, "git_ref"),
    ],
)
async def test_a_wrong_value_is_named_and_changes_nothing(
    api: MemoryApi, ann: ApiUser, body: dict[str, Any], field: str
) -> None:
    # As text: httpx itself refuses half a surrogate pair.
    refused = await ann.http.post(
        "/api/v1/workspaces", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert refused.status_code == 422, refused.text
    problem = refused.json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in problem["errors"]] == [field]
    assert not api.rows


async def test_where_the_code_comes_from_is_kept_for_the_container(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create(git_url="git@git.example.com:team/shop.git")
    assert api.rows[UUID(made["id"])].git_url == "git@git.example.com:team/shop.git"


async def test_a_name_is_taken_once(ann: ApiUser, bob: ApiUser) -> None:
    await ann.create("demo", desired_state="PENDING")
    again = await ann.http.post("/api/v1/workspaces", json={"name": "DEMO", "desired_state": "PENDING"})
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    await bob.create("demo")


# ── lists ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def names(person: ApiUser, **query: Any) -> list[str]:
    found, cursor = [], None
    while True:
        page = await person.http.get("/api/v1/workspaces", params={**query, **({"cursor": cursor} if cursor else {})})
        assert page.status_code == 200, page.text
        found += [item["name"] for item in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            return found


async def test_lists_are_newest_first_in_pages_and_hold_one_s_own(api: MemoryApi, ann: ApiUser, bob: ApiUser) -> None:
    for number in range(7):
        await ann.create(f"w{number}", desired_state="PENDING")
    await bob.create("other")
    assert await names(ann, limit=3) == [f"w{number}" for number in reversed(range(7))]
    assert await names(bob) == ["other"]


async def test_pages_are_stable_while_rows_come_and_go(api: MemoryApi, ann: ApiUser) -> None:
    made = [await ann.create(f"w{number}", desired_state="PENDING") for number in range(6)]
    first = (await ann.http.get("/api/v1/workspaces", params={"limit": 2})).json()
    await ann.create("newcomer", desired_state="PENDING")
    api.controller_writes(made[5]["id"], deleted_at=datetime.now(UTC))
    rest = await names(ann, limit=2, cursor=first["next_cursor"])
    assert rest[:4] == ["w3", "w2", "w1", "w0"]


async def test_rows_of_one_instant_are_neither_skipped_nor_repeated(api: MemoryApi, ann: ApiUser) -> None:
    at = datetime.now(UTC)
    for number in range(5):
        made = await ann.create(f"w{number}", desired_state="PENDING")
        api.controller_writes(made["id"], created_at=at)
    assert sorted(await names(ann, limit=2)) == [f"w{number}" for number in range(5)]


async def test_lists_can_be_searched(api: MemoryApi, ann: ApiUser) -> None:
    await ann.create("alpha", description="the 100% shop", desired_state="PENDING")
    beta = await ann.create("beta", desired_state="PENDING")
    api.controller_writes(beta["id"], phase=Phase.STANDBY)
    assert await names(ann, q="ALPH") == ["alpha"]
    assert await names(ann, q="100%") == ["alpha"]
    assert await names(ann, q="%") == ["alpha"]
    assert await names(ann, phase="STANDBY") == ["beta"]
    assert await names(ann, q="x") == []


@pytest.mark.parametrize("cursor", ["x", "AAAA", "%00", "é", "a" * 300])
async def test_a_mangled_cursor_is_refused(ann: ApiUser, cursor: str) -> None:
    refused = await ann.http.get("/api/v1/workspaces", params={"cursor": cursor})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "cursor")


async def test_a_cursor_belongs_to_its_list(ann: ApiUser) -> None:
    made, _ = await ann.create("one", desired_state="PENDING"), await ann.create("two", desired_state="PENDING")
    cursor = (await ann.http.get("/api/v1/workspaces", params={"limit": 1})).json()["next_cursor"]
    assert cursor
    other = await ann.http.get(f"/api/v1/workspaces/{made['id']}/events", params={"cursor": cursor})
    assert other.status_code == 422
    changed = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    assert (await ann.http.get("/api/v1/workspaces", params={"cursor": changed})).status_code == 422


async def test_a_cursor_cannot_be_bent_to_another_place(ann: ApiUser) -> None:
    for name in ("one", "two"):
        await ann.create(name, desired_state="PENDING")
    cursor = (await ann.http.get("/api/v1/workspaces", params={"limit": 1})).json()["next_cursor"]
    raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    bent = base64.urlsafe_b64encode(raw[:-1] + (b"0" if raw[-1:] != b"0" else b"1")).decode().rstrip("=")
    assert (await ann.http.get("/api/v1/workspaces", params={"cursor": cursor})).status_code == 200
    assert (await ann.http.get("/api/v1/workspaces", params={"cursor": bent})).status_code == 422


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rename_keeps_the_address(ann: ApiUser) -> None:
    made = await ann.create()
    path = f"/api/v1/workspaces/{made['id']}"
    changed = await ann.http.patch(path, json={"name": "other", "memo": "new", "standby_ttl_seconds": 0})
    assert changed.status_code == 200
    body = changed.json()
    assert (body["name"], body["memo"], body["standby_ttl_seconds"]) == ("other", "new", 0)
    assert body["url"] == made["url"]
    back = await ann.http.patch(path, json={"standby_ttl_seconds": None})
    assert back.json()["standby_ttl_seconds"] is None
    assert back.json()["name"] == "other"


async def test_clients_are_told_whether_a_workspace_is_at_rest(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create(desired_state="STANDBY")
    path = f"/api/v1/workspaces/{made['id']}"
    assert not made["is_at_rest"]
    api.controller_writes(made["id"], phase=Phase.STANDBY)
    assert (await ann.http.get(path)).json()["is_at_rest"]
    api.controller_writes(made["id"], restore_requested_at=datetime.now(UTC))
    assert not (await ann.http.get(path)).json()["is_at_rest"]
    api.controller_writes(made["id"], restore_handled_at=datetime.now(UTC))
    assert (await ann.http.get(path)).json()["is_at_rest"]


async def test_a_wish_is_accepted_and_a_settled_one_is_done(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create(desired_state="PENDING")
    path = f"/api/v1/workspaces/{made['id']}"
    assert (await ann.http.patch(path, json={"desired_state": "STANDBY"})).status_code == 202
    api.controller_writes(made["id"], phase=Phase.STANDBY)
    assert (await ann.http.patch(path, json={"desired_state": "STANDBY"})).status_code == 200


async def test_a_wish_and_fields_are_written_together_or_not_at_all(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create(desired_state="STANDBY")
    await ann.create("other", desired_state="PENDING")
    path = f"/api/v1/workspaces/{made['id']}"
    taken = await ann.http.patch(path, json={"name": "OTHER", "desired_state": "RUNNING"})
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    assert api.rows[UUID(made["id"])].desired_state == "STANDBY"


async def test_if_idle_is_strict_and_a_plain_wish_is_not(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    api.controller_writes(made["id"], operation=Operation.STARTING, op_id=OP_ID, op_started_at=datetime.now(UTC))
    path = f"/api/v1/workspaces/{made['id']}"
    refused = await ann.http.patch(path, json={"desired_state": "STANDBY", "if_idle": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "operation_in_progress")
    assert int(refused.headers["retry-after"]) > 0
    assert (await ann.http.patch(path, json={"desired_state": "STANDBY"})).status_code == 202


async def test_a_delete_may_ask_to_be_refused_while_an_operation_is_under_way(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    api.controller_writes(made["id"], operation=Operation.STARTING, op_id=OP_ID, op_started_at=datetime.now(UTC))
    path = f"/api/v1/workspaces/{made['id']}"
    refused = await ann.http.delete(path, params={"if_idle": "true"})
    assert (refused.status_code, refused.json()["code"]) == (409, "operation_in_progress")
    assert int(refused.headers["retry-after"]) > 0
    assert api.rows[UUID(made["id"])].desired_state != "DELETED"
    assert (await ann.http.delete(path)).status_code == 202


async def test_giving_up_the_home_must_be_meant(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    path = f"/api/v1/workspaces/{made['id']}"
    refused = await ann.http.patch(path, json={"desired_state": "PENDING"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "discard_home")
    assert (await ann.http.patch(path, json={"desired_state": "PENDING", "discard_home": True})).is_success


@pytest.mark.parametrize("field", ["name", "description", "memo", "template"])
async def test_what_has_no_default_cannot_be_null(ann: ApiUser, field: str) -> None:
    made = await ann.create()
    refused = await ann.http.patch(f"/api/v1/workspaces/{made['id']}", json={field: None})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)


async def test_a_delete_is_accepted_and_can_be_undone_until_it_is_purged(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    path = f"/api/v1/workspaces/{made['id']}"
    deleted = await ann.http.delete(path)
    assert (deleted.status_code, deleted.json()["desired_state"]) == (202, "DELETED")
    early = await ann.http.post(f"{path}/undelete")
    assert (early.status_code, early.json()["code"]) == (409, "not_deleted")
    api.controller_writes(made["id"], deleted_at=datetime.now(UTC), phase=Phase.DELETED)
    told = (await ann.http.get(path)).json()
    window = datetime.fromisoformat(told["undo_until"]) - datetime.fromisoformat(told["deleted_at"])
    assert window == timedelta(days=7)
    assert (await ann.http.get("/api/v1/limits")).json()["undo_seconds"] == window.total_seconds()
    assert (await ann.http.patch(path, json={"memo": "x"})).status_code == 404
    assert (await ann.http.post(f"{path}/undelete")).status_code == 202
    api.controller_writes(made["id"], purged_at=datetime.now(UTC))
    gone = await ann.http.post(f"{path}/undelete")
    assert (gone.status_code, gone.json()["code"]) == (410, "purged")
    assert (await ann.http.get(path)).json()["undo_until"] is None


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_beyond_the_limit_it_is_made_asleep_if_that_was_asked_for(ann: ApiUser) -> None:
    """One request, one workspace, and the same answer for the same key."""
    await ann.create("one")
    await ann.create("two")
    order = {"name": "three", "asleep_if_full": True}
    made = await ann.http.post("/api/v1/workspaces", json=order, headers={"Idempotency-Key": "k"})
    assert (made.status_code, made.json()["desired_state"]) == (201, "STANDBY")
    again = await ann.http.post("/api/v1/workspaces", json=order, headers={"Idempotency-Key": "k"})
    assert again.json() == made.json()
    [told] = (await ann.http.get(f"/api/v1/workspaces/{made.json()['id']}/events")).json()["items"]
    assert (told["kind"], told["after"]) == ("created", "STANDBY")
    holder = (await ann.http.get("/api/v1/limits")).json()["holders"][0]
    await ann.http.delete(f"/api/v1/workspaces/{holder['id']}")
    assert (await ann.create("four", asleep_if_full=True))["desired_state"] == "RUNNING"


async def test_a_limit_names_what_holds_the_slots(ann: ApiUser) -> None:
    await ann.create("one")
    await ann.create("two")
    refused = await ann.http.post("/api/v1/workspaces", json={"name": "three"})
    assert (refused.status_code, refused.json()["code"]) == (429, "limit_reached")
    assert refused.json()["holders"] == ["one", "two"]
    assert int(refused.headers["retry-after"]) > 0
    shown = (await ann.http.get("/api/v1/limits")).json()
    assert [holder["name"] for holder in shown["holders"]] == ["one", "two"]
    assert (shown["max_running"], shown["running"], shown["is_own"], shown["running_global"]) == (2, 2, False, 2)
    assert (await ann.http.post("/api/v1/workspaces", json={"name": "three", "desired_state": "STANDBY"})).is_success


async def test_a_person_s_own_limit_counts_also_when_an_admin_acts(api: MemoryApi, admin: ApiUser) -> None:
    eve = await api.person("eve", max_running=1)
    first = await eve.create("one")
    second = await eve.create("two", desired_state="STANDBY")
    path = f"/api/v1/workspaces/{second['id']}"
    assert (await admin.http.patch(path, json={"desired_state": "RUNNING"})).json()["holders"] == ["one"]
    raised = await admin.http.patch(f"/api/v1/admin/users/{eve.id}", json={"max_running": 3})
    assert raised.json()["max_running"] == 3
    assert (await eve.http.patch(path, json={"desired_state": "RUNNING"})).status_code == 202
    await eve.create("three")
    assert (await eve.http.get("/api/v1/limits")).json()["is_own"] is True
    lowered = await admin.http.patch(f"/api/v1/admin/users/{eve.id}", json={"max_running": 0})
    assert lowered.status_code == 200
    refused = await eve.http.patch(f"/api/v1/workspaces/{first['id']}", json={"desired_state": "RUNNING"})
    assert refused.status_code == 429


async def test_many_at_once_never_exceed_the_limit(api: MemoryApi, ann: ApiUser) -> None:
    answers = await asyncio.gather(
        *(ann.http.post("/api/v1/workspaces", json={"name": f"w{number}"}) for number in range(30))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 201] + [429] * 28


async def test_the_whole_installation_has_a_limit_too() -> None:
    async with memory_api(limits=RunningLimits(5, 2)) as api:
        ann, bob = await api.person("ann"), await api.person("bob")
        await ann.create("one")
        await bob.create("two")
        refused = await bob.http.post("/api/v1/workspaces", json={"name": "three"})
        assert (refused.status_code, refused.json()["holders"]) == (429, [])


async def test_a_person_has_so_many_workspaces_and_the_deleted_do_not_count() -> None:
    async with memory_api(limits=RunningLimits(max_workspaces_per_user=3)) as api:
        ann, bob = await api.person("ann"), await api.person("bob")
        asked = [{"name": f"w{number}", "desired_state": "STANDBY"} for number in range(10)]
        answers = await asyncio.gather(*(ann.http.post("/api/v1/workspaces", json=body) for body in asked))
        assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 7
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert (refused.json()["code"], refused.json()["holders"]) == ("workspace_limit", [])
        assert "Delete one" in refused.json()["detail"]
        await bob.create("his own")
        gone = next(answer for answer in answers if answer.status_code == 201).json()["id"]
        api.controller_writes(gone, deleted_at=NOW, desired_state=Desired.DELETED)
        await ann.create("another", desired_state="STANDBY")
        # What was deleted may come back all the same: a limit is no reason to lose somebody's work.
        assert (await ann.http.post(f"/api/v1/workspaces/{gone}/undelete")).status_code == 202


async def test_a_create_sent_again_at_the_limit_is_still_the_same_one() -> None:
    async with memory_api(limits=RunningLimits(max_workspaces_per_user=1)) as small:
        ann = await small.person("ann")
        body, headers = {"name": "one"}, {"Idempotency-Key": "k"}
        first = await ann.http.post("/api/v1/workspaces", json=body, headers=headers)
        again = await ann.http.post("/api/v1/workspaces", json=body, headers=headers)
        assert (first.status_code, again.json()) == (201, first.json())


async def test_no_limit_of_workspaces_is_none() -> None:
    async with memory_api(limits=RunningLimits(max_workspaces_per_user=0)) as api:
        ann = await api.person("ann")
        for number in range(3):
            await ann.create(f"w{number}", desired_state="STANDBY")


# ── the same request twice ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_sent_twice_creates_once(api: MemoryApi, ann: ApiUser) -> None:
    send: dict[str, Any] = {"json": {"name": "demo"}, "headers": {"idempotency-key": "k-1"}}
    first = await ann.http.post("/api/v1/workspaces", **send)
    api.controller_writes(first.json()["id"], phase=Phase.STANDBY)
    second = await ann.http.post("/api/v1/workspaces", **send)
    assert (second.status_code, second.json()) == (201, first.json())
    assert len(api.rows) == 1


async def test_a_key_is_for_one_request_and_one_person(api: MemoryApi, ann: ApiUser, bob: ApiUser) -> None:
    headers = {"idempotency-key": "k-1"}
    assert (await ann.http.post("/api/v1/workspaces", json={"name": "a"}, headers=headers)).status_code == 201
    other = await ann.http.post("/api/v1/workspaces", json={"name": "b"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert (await bob.http.post("/api/v1/workspaces", json={"name": "b"}, headers=headers)).status_code == 201


async def test_a_refused_request_frees_its_key(api: MemoryApi, ann: ApiUser) -> None:
    headers = {"idempotency-key": "k-1"}
    wrong = {"name": "mended", "template": "no-such", "desired_state": "PENDING"}
    assert (await ann.http.post("/api/v1/workspaces", json=wrong, headers=headers)).status_code == 422
    mended = wrong | {"template": "default"}
    assert (await ann.http.post("/api/v1/workspaces", json=mended, headers=headers)).status_code == 201
    headers = {"idempotency-key": "k-2"}
    first, _ = await ann.create("one"), await ann.create("two")
    assert (await ann.http.post("/api/v1/workspaces", json={"name": "c"}, headers=headers)).status_code == 429
    await ann.http.patch(f"/api/v1/workspaces/{first['id']}", json={"desired_state": "STANDBY"})
    assert (await ann.http.post("/api/v1/workspaces", json={"name": "c"}, headers=headers)).status_code == 201


async def test_two_processes_racing_with_one_key_create_once(ann: ApiUser, api: MemoryApi) -> None:
    async with memory_api(api.backends) as other:
        twin = await other.person("ann")
        send: dict[str, Any] = {"json": {"name": "demo"}, "headers": {"idempotency-key": "k-1"}}
        answers = await asyncio.gather(*(person.http.post("/api/v1/workspaces", **send) for person in [ann, twin] * 10))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.text for answer in answers}) == 1
        assert len(api.rows) == 1


async def test_a_crash_between_claim_and_answer_is_made_good(api: MemoryApi, ann: ApiUser) -> None:
    """The row was made and the process died before it answered: the second try finds that row."""
    send: dict[str, Any] = {"json": {"name": "demo"}, "headers": {"idempotency-key": "k-1"}}
    first = await ann.http.post("/api/v1/workspaces", **send)
    for stored in api.backends.database.state.accounts.keys.values():
        stored.response = None
    again = await ann.http.post("/api/v1/workspaces", **send)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_tell_who_and_why_in_pages(api: MemoryApi, ann: ApiUser, admin: ApiUser) -> None:
    made = await ann.create()
    path = f"/api/v1/workspaces/{made['id']}"
    await admin.http.patch(path, json={"desired_state": "STANDBY"})
    first = (await ann.http.get(f"{path}/events", params={"limit": 1})).json()
    assert [(e["actor"], e["kind"], e["after"]) for e in first["items"]] == [("root", "wish", "STANDBY")]
    second = (await ann.http.get(f"{path}/events", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [(e["actor"], e["kind"]) for e in second["items"]] == [("ann", "created")]
    assert second["next_cursor"] is None


async def test_nobody_has_what_does_not_exist(ann: ApiUser) -> None:
    missing = await ann.http.get(f"/api/v1/workspaces/{uuid4()}")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_a_lifecycle_explains_itself(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    path = f"/api/v1/workspaces/{made['id']}"
    now = datetime.now(UTC)
    api.controller_writes(made["id"], phase=Phase.RUNNING, phase_changed_at=now, last_access_at=now)
    told = (await ann.http.get(f"{path}/lifecycle")).json()
    assert (told["why_up"]["actor"], told["becomes"], told["stop_reason"]) == ("ann", "STANDBY", "idle")
    assert datetime.fromisoformat(told["stops_at"]) == now + timedelta(seconds=630)
    assert told["last_stop"] is None
    lease = (await ann.http.post(f"{path}/keepalive", json={"seconds": 7200})).json()
    assert not lease["capped"]
    told = (await ann.http.get(f"{path}/lifecycle")).json()
    assert [(b["kind"], b["until"]) for b in told["blocked_by"]] == [("lease", lease["until"])]
    assert told["stops_at"] == lease["until"] == lease["stops_at"]
    capped = (await ann.http.post(f"{path}/keepalive", json={"seconds": 10**6})).json()
    assert (capped["capped"], capped["seconds"]) == (True, 86400)
    await ann.http.post(f"{path}/keepalive", json={"seconds": 0})
    assert (await ann.http.get(f"{path}/lifecycle")).json()["blocked_by"] == []
    await ann.http.patch(path, json={"desired_state": "STANDBY"})
    late = await ann.http.post(f"{path}/keepalive", json={"seconds": 60})
    assert (late.status_code, late.json()["code"]) == (409, "nothing_to_keep")
    assert late.json()["detail"] == "The workspace is on its way to STANDBY. Start it, and it stays."
    assert (await ann.http.post(f"{path}/keepalive", json={"seconds": 0})).status_code == 200
    api.controller_writes(made["id"], phase=Phase.ARCHIVED)
    await ann.http.patch(path, json={"desired_state": "ARCHIVED"})
    nothing = await ann.http.post(f"{path}/keepalive", json={"seconds": 60})
    assert (nothing.status_code, nothing.json()["code"]) == (409, "nothing_to_keep")


async def test_a_fresh_world_is_empty() -> None:
    async with memory_api(Backends.fresh()) as api:
        assert await names(await api.person("ann")) == []


async def test_one_s_own_deleted_ones_are_listed_apart(api: MemoryApi, ann: ApiUser, bob: ApiUser) -> None:
    kept, gone = await ann.create("kept"), await ann.create("gone")
    theirs = await bob.create("theirs")
    for made in (gone, theirs):
        api.controller_writes(made["id"], deleted_at=datetime.now(UTC), phase=Phase.DELETED)
    living = (await ann.http.get("/api/v1/workspaces")).json()["items"]
    deleted = (await ann.http.get("/api/v1/workspaces", params={"deleted": True})).json()["items"]
    assert [ws["id"] for ws in living] == [kept["id"]]
    assert [(ws["id"], ws["purged_at"]) for ws in deleted] == [(gone["id"], None)]


async def test_it_says_where_it_was_cloned_from(ann: ApiUser) -> None:
    made = await ann.create(git_url="https://git.example.com/team/shop.git", git_ref="release/1.2")
    assert (made["git_url"], made["git_ref"]) == ("https://git.example.com/team/shop.git", "release/1.2")


async def test_another_branch_and_none_without_a_repository(ann: ApiUser) -> None:
    made = await ann.create(git_url="https://git.example.com/team/shop.git", git_ref="main")
    path = f"/api/v1/workspaces/{made['id']}"
    refused = await ann.http.patch(path, json={"git_ref": "a b"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "git_ref")
    assert (await ann.http.patch(path, json={"git_ref": "v2"})).json()["git_ref"] == "v2"
    gone = (await ann.http.patch(path, json={"git_url": None})).json()
    assert (gone["git_url"], gone["git_ref"]) == (None, None)


async def test_an_admin_sees_who_leads(api: MemoryApi, admin: ApiUser) -> None:
    nobody = (await admin.http.get("/api/v1/admin/leader")).json()
    assert nobody == {"holder": None, "epoch": None, "renewed_at": None, "age_seconds": None}
    term = await api.backends.database.leadership(SystemClock()).campaign("hub-1:4711")
    told = (await admin.http.get("/api/v1/admin/leader")).json()
    assert (told["holder"], told["epoch"]) == ("hub-1:4711", 1)
    assert told["age_seconds"] < 60
    await term.resign()
