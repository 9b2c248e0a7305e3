"""What is read of somebody's workspace leaves a trace: which archive, which path, by whom, from where."""

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory.archives import StoredArchive, StoredEntry
from codehub.domain.errors import Unreachable
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.ledger import AuditAction
from codehub.ports.archives import EntryKind
from tests.api.conftest import admin, ann, api, bob
from tests.api.memory_api import ApiUser, MemoryApi
from tests.house.project import SOURCE
from tests.rows import OP_ID

__all__ = ["admin", "ann", "api", "bob"]

HOME = {
    b"project": StoredEntry(EntryKind.FOLDER),
    b"project/keys.pem": StoredEntry(EntryKind.FILE, b"secret"),
    b"project/\xff": StoredEntry(EntryKind.FILE, b"no text"),
}


@pytest.fixture
async def workspace_id(api: MemoryApi, ann: ApiUser) -> UUID:
    made = UUID((await ann.create("shop", desired_state="PENDING"))["id"])
    key, now = f"{made}/{OP_ID}/home.tar.zst", datetime.now(UTC)
    api.backends.database.state.points[made] = [RestorePoint(made, OP_ID, key, 1, 1, "0" * 64, now, now)]
    api.backends.archives.state.objects[key] = StoredArchive((), now, committed=True, home=dict(HOME))
    return made


def told(api: MemoryApi, workspace_id: UUID) -> list[dict[str, Any]]:
    """What the audit log says of this workspace, oldest first."""
    entries = [e for e in api.backends.database.state.accounts.audit if e.subject == f"workspace:{workspace_id}"]
    return [{"actor": entry.actor, "action": entry.action, **entry.details} for entry in entries]


def trace(actor: str, action: AuditAction, **details: str) -> dict[str, str]:
    return {"actor": actor, "action": action.value, "owner": "ann", "workspace": "shop", **details}


async def test_a_download_says_which_archive_and_path_also_the_owner_s(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, workspace_id: UUID
) -> None:
    point = f"/api/v1/workspaces/{workspace_id}/archives/{OP_ID}"
    for person in (ann, admin):
        assert (await person.http.get(f"{point}/content?path=project/keys.pem")).content == b"secret"
        assert (await person.http.get(f"{point}/content?path=project/%FF")).content == b"no text"
        assert (await person.http.get(f"{point}/original")).is_success
    part, whole = AuditAction.DOWNLOAD_FROM_ARCHIVE, AuditAction.DOWNLOAD_ARCHIVE
    assert told(api, workspace_id) == [
        entry
        for name in ("ann", "root")
        for entry in (
            trace(name, part, archive=str(OP_ID), path="project/keys.pem"),
            trace(name, part, archive=str(OP_ID), path="project/�"),
            trace(name, whole, archive=str(OP_ID)),
        )
    ]


async def test_what_was_not_there_or_refused_was_not_downloaded(
    api: MemoryApi, ann: ApiUser, bob: ApiUser, workspace_id: UUID
) -> None:
    point = f"/api/v1/workspaces/{workspace_id}/archives/{OP_ID}"
    assert (await ann.http.get(f"{point}/content?path=nothing")).status_code == 404
    assert (await bob.http.get(f"{point}/content?path=project/keys.pem")).status_code == 404
    assert told(api, workspace_id) == []


async def test_an_admin_s_change_of_what_runs_in_somebody_s_workspace_is_told(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, workspace_id: UUID
) -> None:
    path = f"/api/v1/workspaces/{workspace_id}"
    assert (await ann.http.patch(path, json={"git_url": "https://git.example.com/ann/shop"})).is_success
    change = {"git_url": "https://git.example.com/root/shop", "git_ref": None, "memo": "looked after"}
    assert (await admin.http.patch(path, json=change)).is_success
    assert (await admin.http.patch(path, json={"desired_state": "STANDBY"})).is_success  # the ledger tells of this
    assert (await admin.http.patch(path, json={"git_url": "nonsense"})).status_code == 422
    changed = {"git_ref": "", "git_url": "https://git.example.com/root/shop", "memo": "looked after"}
    assert told(api, workspace_id) == [trace("root", AuditAction.CHANGE_WORKSPACE, **changed)]


async def test_an_admin_s_look_is_told_and_the_owner_s_is_not(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, workspace_id: UUID
) -> None:
    path = f"/api/v1/workspaces/{workspace_id}"
    looks = {
        "": trace("root", AuditAction.SHOW_WORKSPACE),
        "/events": trace("root", AuditAction.READ_EVENTS),
        "/logs": trace("root", AuditAction.READ_LOGS),
        "/archives": trace("root", AuditAction.LIST_ARCHIVES),
        f"/archives/{OP_ID}/tree": trace("root", AuditAction.LIST_ARCHIVE, archive=str(OP_ID), path=""),
        f"/archives/{OP_ID}/tree?path=project": trace(
            "root", AuditAction.LIST_ARCHIVE, archive=str(OP_ID), path="project"
        ),
    }
    for person in (ann, admin):
        for end in looks:
            assert (await person.http.get(path + end)).is_success, end
    assert told(api, workspace_id) == list(looks.values())


async def test_a_page_that_asks_again_and_again_does_not_bury_the_rest(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, workspace_id: UUID
) -> None:
    again = await api.person("root")
    for _ in range(5):
        for person in (admin, again):
            assert (await person.http.get(f"/api/v1/workspaces/{workspace_id}/logs")).is_success
    assert told(api, workspace_id) == [trace("root", AuditAction.READ_LOGS)] * 2  # once for each credential


async def test_no_byte_is_given_of_what_cannot_be_written_down(
    api: MemoryApi, ann: ApiUser, workspace_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise Unreachable("the database does not answer")

    monkeypatch.setattr(type(api.parts.audit), "append", fails)
    answer = await ann.http.get(f"/api/v1/workspaces/{workspace_id}/archives/{OP_ID}/content?path=project/keys.pem")
    assert answer.status_code == 503
    assert b"secret" not in answer.content


def test_every_action_that_the_code_names_has_its_meaning() -> None:
    """A code that nobody put into words would be shown as it is stored."""
    actions = {name for file in SOURCE.rglob("*.py") for name in _actions(ast.parse(file.read_text()))}
    assert {"sign_in", "create_user", "reset_password", "sign_in_failed", "put_template", "set_role"} <= actions
    assert actions <= {action.value for action in AuditAction}


def _actions(tree: ast.Module) -> Iterator[str]:
    """The codes that are given to those who write the audit log, and what they write if nothing is given."""
    writers = {"append", "append_audit", "change_user", "set_password", "open_session", "end_session"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name, text = ast.unparse(node.func).rpartition(".")[2], ast.unparse(node)
            if "AuditAction." in text:
                continue  # it has its meaning
            if (name in writers and "actor" in text.lower()) or (
                name in {"_change", "_change_access"} and "(caller, " in text
            ):
                words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                yield from words[:1]
        elif isinstance(node, ast.arguments):
            ordinary = zip(reversed(node.args), reversed(node.defaults), strict=False)
            for arg, default in (*ordinary, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
                if arg.arg == "action" and isinstance(default, ast.Constant) and isinstance(default.value, str):
                    yield default.value
