"""What an admin does from the terminal as a person: accounts, everybody's workspaces, errors, templates, the audit."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from codehub.cli.admin_workspaces import bytes_of
from codehub.cli.output import FAILED, USAGE, ClientFailed
from codehub.domain.errors import ErrorInfo, ErrorReason
from codehub.domain.identity import Role
from codehub.domain.workspace import Phase
from tests.api.memory_api import PASSWORD
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Said, Terminal


@pytest.fixture
def root(server: ApiServer, terminal: Terminal) -> Terminal:
    terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=server.token("root", Role.ADMIN))
    return terminal


def as_oneself(root: Terminal, *words: str) -> Said:
    """To change an account takes one's own password."""
    return root("admin", "users", *words, "--own-password-stdin", stdin=f"{PASSWORD}\n")


def in_error(server: ApiServer, name: str, reason: ErrorReason) -> None:
    info = ErrorInfo(reason, f"why {name} failed", "STARTING", True, 3, "STANDBY", datetime.now(UTC))
    server.controller_writes(name, phase=Phase.ERROR, error_reason=reason, error_info=info)


ADMIN_VERBS = (
    ("users", "ls"),
    ("users", "create", "eve"),
    ("users", "disable", "root"),
    ("workspaces",),
    ("errors",),
    ("errors", "--recover", "retry", "--yes"),
    ("templates", "ls"),
    ("templates", "set", "x"),
    ("templates", "disable", "default"),
    ("audit",),
)


@pytest.mark.parametrize("words", ADMIN_VERBS, ids=" ".join)
def test_only_for_admins(words: tuple[str, ...], ann: Terminal) -> None:
    said = ann("admin", *words)
    assert said.code == FAILED
    assert len(said.lines()) == 1


# ── accounts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_account_s_life(root: Terminal, server: ApiServer) -> None:
    made = as_oneself(root, "create", "bob", "--max-running", "5")
    assert made.code == 0, made.err
    assert made.err == "bob (user) may sign in. The password is shown only now:\n"
    password = made.out.strip()
    assert password not in root.done("admin", "users", "ls")

    def signs_in(with_password: str) -> bool:
        words = ("login", server.url, "-u", "bob", "--password-stdin", "--context", "bob")
        return root(*words, stdin=with_password).code == 0

    assert signs_in(password)
    assert root.done("admin", "users", "limit", "bob", "1") == "bob may run 1 at once.\n"
    assert root.done("admin", "users", "limit", "bob", "default") == "bob has the installation's limit.\n"
    assert as_oneself(root, "role", "BOB", "admin").out == "bob is admin now.\n"
    assert as_oneself(root, "disable", "bob").out == "bob is shut out.\n"
    assert not signs_in(password)
    assert "disabled" in root.done("admin", "users", "ls")
    assert as_oneself(root, "enable", "bob").out == "bob may sign in.\n"
    fresh = as_oneself(root, "reset-password", "bob").out.strip()
    assert fresh != password
    assert signs_in(fresh)


def test_an_account_is_changed_with_one_s_own_password_alone(root: Terminal, server: ApiServer) -> None:
    before = root.done("admin", "users", "ls", "--json")
    for said in (
        root("admin", "users", "create", "bob"),
        root("admin", "users", "create", "bob", "--own-password-stdin", stdin="a guess\n"),
    ):
        assert said.code != 0
        assert said.out == ""
    assert "--own-password-stdin" in root("admin", "users", "create", "bob").err, (
        "it says how to go on without a terminal"
    )
    assert root.done("admin", "users", "ls", "--json") == before
    assert server.do(_sessions(server)) == 0, "what was opened for it is closed again"
    assert as_oneself(root, "reset-password", "root").code == 0, "one's own too, which ends the session that did it"
    assert root("whoami").code != 0, "and the token with it"


async def _sessions(server: ApiServer) -> int:
    return len(server.api.backends.database.state.accounts.sessions)


def test_data_for_programs(root: Terminal) -> None:
    made = as_oneself(root, "create", "bob", "--role", "admin", "--json").json()
    assert (made["username"], made["role"]) == ("bob", "admin")
    assert made["password"]
    [bob, _root] = root("admin", "users", "ls", "--json").json()
    assert root("admin", "users", "limit", bob["id"][:8], "3", "--json").json()["max_running"] == 3
    assert bob["id"] == made["id"]


def test_a_password_of_one_s_own(root: Terminal, server: ApiServer) -> None:
    words = ("admin", "users", "create", "bob", "--password-stdin", "--own-password-stdin")
    said = root(*words, stdin=f"{PASSWORD}\n{PASSWORD}\n")
    assert (said.out, said.err) == ("bob (user) may sign in.\n", "")
    assert root("login", server.url, "-u", "bob", "--password-stdin", stdin=PASSWORD).code == 0


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("disable", "nobody"), FAILED, "There is no user 'nobody'. `codehub admin users ls` lists what there is."),
        (("disable", "roo"), FAILED, "Did you mean root?"),
        (("role", "root", "user"), FAILED, "admin"),
        (("disable", "root"), FAILED, "admin"),
        (("role", "root", "king"), USAGE, "king"),
        (("limit", "root", "-1"), USAGE, ""),
        (("limit", "root", "many"), USAGE, "neither a number nor `default`"),
        (("create", "root"), FAILED, "taken"),
        (("create", ""), FAILED, "username: "),
    ],
)
def test_what_is_refused_changes_nobody(words: tuple[str, ...], code: int, part: str, root: Terminal) -> None:
    before = root.done("admin", "users", "ls", "--json")
    said = root("admin", "users", *words) if words[0] == "limit" else as_oneself(root, *words)
    assert (said.code, said.out) == (code, "")
    assert part in said.err
    assert root.done("admin", "users", "ls", "--json") == before


def test_the_audit_knows(root: Terminal) -> None:
    assert as_oneself(root, "create", "bob").code == 0
    assert as_oneself(root, "disable", "bob").code == 0
    told = root.done("admin", "audit", "--actor", "root")
    assert told.splitlines()[0].split() == ["AT", "(UTC)", "WHO", "FROM", "DID", "TO", "DETAILS"]
    assert len(root("admin", "audit", "-n", "1", "--json").json()) == 1
    assert root("admin", "audit", "--actor", "nobody", "--json").json() == []
    entries = root("admin", "audit", "--json").json()
    assert [entry["id"] for entry in entries] == sorted(entry["id"] for entry in entries)  # the newest last


# ── workspaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fleet(root: Terminal, server: ApiServer) -> Terminal:
    mine = server.token("root", Role.ADMIN)
    root.set(CODEHUB_TOKEN=server.token("ann"))
    for name in ("one", "two", "three"):
        root.done("ws", "create", name, "--state", "STANDBY")
    root.set(CODEHUB_TOKEN=mine)
    root.done("ws", "create", "my own")
    return root


def test_everybody_s(fleet: Terminal, server: ApiServer) -> None:
    server.controller_writes("one", phase=Phase.STANDBY)
    names = {(ws["owner"], ws["name"]) for ws in fleet("admin", "workspaces", "--json").json()}
    assert names == {("ann", "one"), ("ann", "two"), ("ann", "three"), ("root", "my own")}
    assert "my own" not in fleet.done("admin", "workspaces", "--owner", "ann")
    [one] = fleet("admin", "workspaces", "--phase", "standby", "--json").json()
    assert one["name"] == "one"
    assert fleet.done("admin", "workspaces", "--deleted") == "Nothing found.\n"
    assert fleet("admin", "workspaces", "--owner", "nobody").code == FAILED
    assert fleet("admin", "workspaces", "--phase", "flying").code == USAGE
    assert [ws["name"] for ws in fleet("admin", "workspaces", "two", "--json").json()] == ["two"]


def test_errors_and_what_to_do(fleet: Terminal, server: ApiServer) -> None:
    assert fleet.done("admin", "errors") == "Nothing is in ERROR.\n"
    assert fleet.done("admin", "errors", "--recover", "retry") == "Nothing is in ERROR.\n"
    in_error(server, "one", ErrorReason.IMAGE_PULL_FAILED)
    in_error(server, "two", ErrorReason.DATA_LOST)
    told = fleet.done("admin", "errors")
    for part in ("why one failed", "why two failed", "ImagePullFailed: ", "DataLost: "):
        assert part in told
    only = fleet.done("admin", "errors", "--reason", "datalost")
    assert "why one failed" not in only
    assert "why two failed" in only
    assert fleet("admin", "errors", "--reason", "bad-luck").code == USAGE


def test_recovering_many(fleet: Terminal, server: ApiServer) -> None:
    in_error(server, "one", ErrorReason.IMAGE_PULL_FAILED)
    in_error(server, "two", ErrorReason.DATA_LOST)
    words = ("admin", "errors", "--reason", "ImagePullFailed", "--recover", "retry")
    asked = fleet(*words, stdin="n\n")
    assert asked.code == FAILED
    assert server.rows()["one"].recover_requested_at is None
    assert "asked" in fleet.done(*words, "--yes")
    assert server.rows()["one"].recover_requested_at is not None
    assert server.rows()["two"].recover_requested_at is None
    [outcome] = fleet(*words, "--yes", "--json").json()
    assert outcome["accepted"] is True


def test_one_that_is_refused_is_said(fleet: Terminal, server: ApiServer) -> None:
    in_error(server, "one", ErrorReason.IMAGE_PULL_FAILED)
    page = server.api.parts.views.page

    async def late(*arguments: object) -> object:
        found = await page(*arguments)  # type: ignore[arg-type]
        server.api.controller_writes(server.rows()["one"].id, phase=Phase.STANDBY)
        return found

    object.__setattr__(server.api.parts.views, "page", late)
    said = fleet("admin", "errors", "--recover", "retry", "--yes")
    assert said.code == FAILED
    assert "not in ERROR" in said.out


# ── templates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_templates(root: Terminal, tmp_path: Path) -> None:
    words = ("admin", "templates", "set", "python")
    made = root.done(*words, "--image", "registry.example.com/python:1", "--memory", "4G", "--env", "A=b=c")
    assert made == "python is made.\n"
    changed = root(*words, "--cpu", "2", "--description", "with numpy", "--json").json()
    assert (changed["image_ref"], changed["memory_bytes"], changed["cpu"], changed["env"]) == (
        "registry.example.com/python:1",
        4_000_000_000,
        2.0,
        {"A": "b=c"},
    )
    assert root(*words, "--sudo", "--json").json()["sudo"] is True
    assert root(*words, "--cpu", "2", "--json").json()["sudo"] is True, "what is not named stays"
    assert root(*words, "--no-sudo", "--json").json()["sudo"] is False
    told = tmp_path / "told.json"
    told.write_text('{"node_selector": {"pool": "gpu"}}')
    assert root(*words, "--kubernetes", str(told), "--json").json()["kubernetes"] == {"node_selector": {"pool": "gpu"}}
    assert root(*words, "--cpu", "2", "--json").json()["kubernetes"], "what is not named stays"
    told.write_text("[]")
    assert root(*words, "--kubernetes", str(told)).code == USAGE
    assert root.done("admin", "templates", "disable", "python") == "python is disabled.\n"
    assert "disabled" in root.done("admin", "templates", "ls")
    assert root("ws", "create", "demo", "--template", "python").code == FAILED
    assert root.done(*words) == "python is changed.\n"
    assert root("ws", "create", "demo", "--template", "python").code == 0
    assert {t["name"] for t in root("admin", "templates", "ls", "--json").json()} >= {"default", "python"}


@pytest.mark.parametrize(
    "words",
    [("x", "--env", "NOTHING"), ("x", "--memory", "lots"), ("x", "--cpu", "-1"), ("../users",), ("Not A Name",)],
)
def test_a_template_that_cannot_be(words: tuple[str, ...], root: Terminal) -> None:
    before = root.done("admin", "templates", "ls", "--json")
    assert root("admin", "templates", "set", *words).code in (FAILED, USAGE)
    assert root.done("admin", "templates", "ls", "--json") == before


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("4G", 4 * 10**9), ("2Gi", 2 << 30), ("1kb", 1000)])
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1.5G", "4i", "4X"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ClientFailed, match="is no size"):
        bytes_of(text)
