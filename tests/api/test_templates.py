"""Templates over HTTP: what no workspace could start from is refused, and what changes reaches those that are there."""

from typing import Any

import pytest

from codehub.adapters.memory.fault_injection import Fault, FaultKind, FaultyNetwork
from codehub.adapters.system import SystemClock
from codehub.domain.identity import Role
from codehub.ports.runtime import Resources
from tests.api.memory_api import ApiUser, Backends, MemoryApi, memory_api


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"cpu": 100}, "cpu"),
        ({"memory_bytes": 1 << 50}, "memory_bytes"),
        ({"memory_bytes": 1}, "memory_bytes"),
        ({"pids": 1}, "pids"),
        ({"image_ref": "UPPER/case:is:no:name"}, "image_ref"),
    ],
)
async def test_one_that_nothing_could_start_from_is_refused(
    body: dict[str, Any], field: str, api: MemoryApi, admin: ApiUser
) -> None:
    api.backends.runtime.state.capacity = Resources(cpu=4, memory_bytes=8 << 30)
    answer = await admin.http.put("/api/v1/admin/templates/big", json=body)
    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert (await admin.http.get("/api/v1/admin/templates/big")).status_code == 404
    fits = {"cpu": 4, "memory_bytes": 8 << 30}
    assert (await admin.http.put("/api/v1/admin/templates/big", json=fits)).status_code == 200


async def test_what_a_cluster_is_told_is_an_admin_s_and_checked(admin: ApiUser) -> None:
    told = {"node_selector": {"pool": "gpu"}, "runtime_class": "gvisor", "command": ["/serve"]}
    given = await admin.http.put("/api/v1/admin/templates/gpu", json={"kubernetes": told})
    assert (given.status_code, given.json()["kubernetes"]) == (200, told)
    assert (await admin.http.get("/api/v1/admin/templates/gpu")).json()["kubernetes"] == told
    wrong = await admin.http.put("/api/v1/admin/templates/gpu", json={"kubernetes": {"runtime_class": "Not one"}})
    assert wrong.status_code == 422
    unknown = await admin.http.put("/api/v1/admin/templates/gpu", json={"kubernetes": {"hostNetwork": True}})
    assert unknown.status_code == 422


async def test_sudo_is_given_where_there_are_containers_to_be_root_of(api: MemoryApi, admin: ApiUser) -> None:
    given = await admin.http.put("/api/v1/admin/templates/packages", json={"sudo": True})
    assert (given.status_code, given.json()["sudo"]) == (200, True)
    assert (await admin.http.put("/api/v1/admin/templates/packages", json={})).json()["sudo"] is False
    api.backends.runtime.state.supports_sudo = False
    refused = await admin.http.put("/api/v1/admin/templates/packages", json={"sudo": True})
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["field"] == "sudo"
    assert "run workspaces in Docker" in error["message"]
    assert (await admin.http.get("/api/v1/admin/templates/packages")).json()["sudo"] is False


async def test_while_the_engine_is_silent_only_what_needs_it_is_refused() -> None:
    network = FaultyNetwork(SystemClock(), lambda name: Fault(FaultKind.FAIL) if name == "runtime.capacity" else None)
    async with memory_api(Backends.fresh(network)) as api:
        admin = await api.person("root", Role.ADMIN)
        assert (await admin.http.put("/api/v1/admin/templates/big", json={"cpu": 1})).status_code == 503
        assert (await admin.http.put("/api/v1/admin/templates/big", json={"env": {"A": "1"}})).status_code == 200


async def test_a_workspace_shows_what_it_runs_and_that_a_newer_image_waits(
    api: MemoryApi, ann: ApiUser, admin: ApiUser
) -> None:
    await admin.http.put("/api/v1/admin/templates/ides", json={"image_ref": "ide:1"})
    made = await ann.create(template="ides")
    assert (made["image_ref"], made["next_image_ref"]) == ("ide:1", "ide:1")
    await admin.http.put("/api/v1/admin/templates/ides", json={"image_ref": "ide:2"})
    where = f"/api/v1/workspaces/{made['id']}"
    shown = (await ann.http.get(where)).json()
    assert (shown["image_ref"], shown["next_image_ref"]) == ("ide:1", "ide:2")
    moved = (await ann.http.patch(where, json={"template": "default"})).json()
    assert (moved["image_ref"], moved["next_image_ref"]) == ("ide:1", ""), "what it runs does not change by a wish"
    assert (await ann.http.get(where)).json() == moved
    assert (await ann.http.get("/api/v1/workspaces")).json()["items"] == [moved]
