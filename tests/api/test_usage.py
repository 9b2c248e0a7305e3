"""GET /usage and /workspaces/{id}/usage: what one's workspaces use, with unknown as null, and nobody else's."""

from uuid import UUID, uuid4

from codehub.adapters.memory.runtime import Container, Volume
from codehub.domain.usage import DiskUsage, Usage
from tests.api.memory_api import ApiUser, MemoryApi

MEMORY = 64 << 20


def started(api: MemoryApi, ws: dict[str, str], memory_bytes: int = MEMORY) -> UUID:
    key, runtime = UUID(ws["id"]), api.backends.runtime.state
    runtime.volumes[str(key)] = Volume(key)
    runtime.containers[key] = Container("run-1", str(key), memory_bytes=memory_bytes)
    return key


async def recorded(api: MemoryApi, key: UUID, usage: Usage) -> None:
    await api.backends.database.usage_history().record({key: usage}, 0)


async def test_what_a_workspace_uses_now_and_did(api: MemoryApi, ann: ApiUser) -> None:
    key = started(api, await ann.create())
    await recorded(api, key, Usage(0.5, 2.0, 5, 10, DiskUsage(95, 100, 100, 5)))
    shown = (await ann.http.get(f"/api/v1/workspaces/{key}/usage")).json()
    disk = {"used_bytes": 95, "limit_bytes": 100, "total_bytes": 100, "free_bytes": 5}
    now = shown["now"]
    assert (now["cpu"], now["memory_bytes"], now["memory_limit_bytes"], now["disk"]) == (0.5, MEMORY, None, disk)
    [warning] = now["warnings"]
    assert warning["code"] == "disk_nearly_full"
    assert "remove what is not needed" in warning["message"]
    [point] = shown["items"]
    assert (point["cpu"], point["memory_bytes"], point["disk"]) == (0.5, 5, disk)
    assert point["at"]


async def test_what_is_not_known_is_null_and_never_0(api: MemoryApi, ann: ApiUser) -> None:
    asleep = await ann.create("asleep")
    assert (await ann.http.get(f"/api/v1/workspaces/{asleep['id']}/usage")).json() == {"now": None, "items": []}
    key = started(api, await ann.create())
    shown = (await ann.http.get(f"/api/v1/workspaces/{key}/usage")).json()
    assert shown["now"]["cpu"] is None
    assert shown["now"]["disk"] is None
    assert shown["now"]["warnings"] == []


async def test_several_are_asked_for_at_once(api: MemoryApi, ann: ApiUser) -> None:
    one, asleep, other = [await ann.create(name, desired_state="STANDBY") for name in ("one", "asleep", "other")]
    keys = [started(api, one, 1 << 20), started(api, other, 2 << 20)]
    ids = [other["id"], asleep["id"], one["id"], other["id"], str(uuid4())]
    answer = await ann.http.get("/api/v1/usage", params={"id": ids})
    found = {item["id"]: item["memory_bytes"] for item in answer.json()["items"]}
    assert found == {str(keys[1]): 2 << 20, str(keys[0]): 1 << 20}


async def test_others_workspaces_are_not_there(api: MemoryApi, ann: ApiUser, bob: ApiUser, admin: ApiUser) -> None:
    key = started(api, await ann.create())
    assert (await bob.http.get("/api/v1/usage", params={"id": str(key)})).json() == {"items": []}
    assert (await bob.http.get(f"/api/v1/workspaces/{key}/usage")).status_code == 404
    assert len((await admin.http.get("/api/v1/usage", params={"id": str(key)})).json()["items"]) == 1
    assert (await admin.http.get(f"/api/v1/workspaces/{key}/usage")).status_code == 200


async def test_bad_requests_say_what_is_wrong(ann: ApiUser) -> None:
    for ids in ([], ["demo"], [str(uuid4()) for _ in range(101)]):
        refused = await ann.http.get("/api/v1/usage", params={"id": ids})
        assert refused.status_code == 422, ids
        assert refused.json()["errors"]


async def test_a_look_is_no_activity_and_writes_nothing(api: MemoryApi, ann: ApiUser) -> None:
    ws = await ann.create()
    key, state = started(api, ws), api.backends.database.state
    before = state.row_writes, state.rows[key]
    await ann.http.get("/api/v1/usage", params={"id": str(key)})
    await ann.http.get(f"/api/v1/workspaces/{key}/usage")
    assert (state.row_writes, state.rows[key]) == before
