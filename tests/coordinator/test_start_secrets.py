"""What a start is given of what its owner and its template keep, who is told, and what the audit log says."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
import structlog
from structlog.testing import capture_logs

from codehub.adapters.encryption import AesKeyring, new_key, parse_keys
from codehub.adapters.memory import MemoryAccountDatabase, MemoryBus
from codehub.domain.errors import Unreachable
from codehub.domain.identity import Role
from codehub.domain.secrets import (
    Dotfiles,
    GitIdentity,
    SecretKind,
    SecretName,
    SecretOwner,
    template_owner,
    user_owner,
)
from codehub.domain.workspace import Desired, Phase
from codehub.ports.accounts import AuditEntry, NewUser
from codehub.ports.runtime import ContainerSpec, GitCredential, StartSecrets
from codehub.ports.secrets import StoredSecret
from codehub.ports.stores import Actor
from codehub.usecases.start_secrets import MOST_NAMES, WorkspaceSecrets
from tests.coordinator.harness import ANSWER_LOST, FAILS, CoordinatorHarness, in_virtual_time
from tests.rows import WORKSPACE_ID, with_home

ROOT = Actor("root")
ANN = UUID(int=0xA)
MINE, TEMPLATE = user_owner(ANN), template_owner("default")
PLANTED = "planted-7f3a"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Instead of the silence of this package's tests: what is logged is looked at."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.configure(**before)


@dataclass
class Scene:
    harness: CoordinatorHarness
    stores: MemoryAccountDatabase
    keyring: AesKeyring
    bus: MemoryBus

    @classmethod
    async def open(cls) -> "Scene":
        harness = CoordinatorHarness()
        stores = MemoryAccountDatabase(harness.states.database.accounts, harness.network)
        bus, keyring = MemoryBus(harness.states.signals), AesKeyring(parse_keys(new_key()))
        scene = cls(harness, stores, keyring, bus)
        await scene.lead(keyring)
        await stores.accounts().create_user(NewUser(ANN, "ann", Role.USER), ROOT)
        return scene

    async def lead(self, keyring: AesKeyring) -> None:
        secrets = WorkspaceSecrets(
            self.stores.secrets(),
            self.stores.profiles(),
            self.stores.accounts(),
            keyring,
            self.bus,
            self.harness.notifier,
            "sse:",
            email_host="code.example.org",
        )
        self.harness.dependencies = replace(self.harness.dependencies, secrets=secrets)
        await self.harness.become_leader()

    async def keep(
        self, owner: SecretOwner, name: str, value: str, kind: SecretKind = SecretKind.VARIABLE, public: str = ""
    ) -> None:
        named = SecretName(owner, kind, name)
        await self.stores.secrets().put(StoredSecret(named, public, self.keyring.seal(named, public, value)), ROOT)

    def place(self) -> None:
        self.harness.place(with_home(desired_state=Desired.RUNNING, owner_id=str(ANN)), volume=())

    async def started(self) -> ContainerSpec:
        self.place()
        await self.harness.converge()
        return self.spec()

    def spec(self) -> ContainerSpec:
        assert self.harness.row.phase is Phase.RUNNING
        spec = self.harness.states.runtime.containers[WORKSPACE_ID].spec
        assert spec is not None
        return spec

    async def uses(self) -> list[AuditEntry]:
        told = await self.stores.audit().entries(subject=f"workspace:{WORKSPACE_ID}")
        return [entry for entry in told if entry.action == "use_secrets"]


@in_virtual_time
async def test_who_has_set_no_git_identity_commits_under_the_account_s_name() -> None:
    spec = await (await Scene.open()).started()
    assert spec.env == {"CODEHUB_GIT_NAME": "ann", "CODEHUB_GIT_EMAIL": "ann@code.example.org"}


@in_virtual_time
async def test_the_template_s_first_and_the_owner_s_over_them() -> None:
    scene = await Scene.open()
    await scene.keep(TEMPLATE, "SHARED", "template's")
    await scene.keep(TEMPLATE, "BOTH", "template's")
    await scene.keep(MINE, "BOTH", "mine\nin lines")
    await scene.keep(MINE, "git.example.com", "glpat", SecretKind.GIT_TOKEN, "ann")
    await scene.keep(MINE, "git.example.com", "private key", SecretKind.SSH_KEY, "public key")
    spec = await scene.started()
    assert spec.secrets == StartSecrets(
        {"SHARED": "template's", "BOTH": "mine\nin lines"},
        (GitCredential("git.example.com", "ann", "glpat"),),
        ("private key",),
    )
    assert spec.env.keys() == {"CODEHUB_GIT_NAME", "CODEHUB_GIT_EMAIL"}
    [entry] = await scene.uses()
    assert entry.actor == "coordinator"
    assert entry.details == {
        "op_id": entry.details["op_id"],
        "workspace": scene.harness.row.name,
        "template_variables": ["BOTH", "SHARED"],
        "variables": ["BOTH"],
        "git_tokens": ["git.example.com"],
        "ssh_keys": ["git.example.com"],
    }


@in_virtual_time
async def test_what_is_no_secret_is_in_the_environment() -> None:
    scene = await Scene.open()
    await scene.stores.profiles().set_git_identity(ANN, GitIdentity("Ann Lee", "ann@example.com"), ROOT)
    await scene.stores.profiles().set_dotfiles(ANN, Dotfiles("https://a.b/dotfiles", "./install.sh"), ROOT)
    spec = await scene.started()
    assert spec.env == {
        "CODEHUB_GIT_NAME": "Ann Lee",
        "CODEHUB_GIT_EMAIL": "ann@example.com",
        "CODEHUB_DOTFILES_URL": "https://a.b/dotfiles",
        "CODEHUB_DOTFILES_COMMAND": "./install.sh",
    }
    assert spec.secrets == StartSecrets()
    assert await scene.uses() == [], "nothing secret was given"


@in_virtual_time
async def test_each_start_gets_what_is_kept_then_and_is_audited_once() -> None:
    scene = await Scene.open()
    await scene.keep(MINE, "A", "one")
    await scene.started()
    await scene.harness.converge()
    await scene.keep(MINE, "A", "two")
    await scene.keep(MINE, "B", "new")
    for wish in (Desired.STANDBY, Desired.RUNNING):
        scene.harness.change(desired_state=wish)()
        await scene.harness.converge()
    assert scene.spec().secrets.env == {"A": "two", "B": "new"}
    assert [entry.details["variables"] for entry in await scene.uses()] == [["A", "B"], ["A"]]


@in_virtual_time
async def test_a_colleague_s_are_not_given() -> None:
    scene = await Scene.open()
    bob = UUID(int=0xB)
    await scene.stores.accounts().create_user(NewUser(bob, "bob", Role.ADMIN), ROOT)
    await scene.keep(user_owner(bob), "BOBS", PLANTED)
    await scene.keep(user_owner(bob), "a.b", PLANTED, SecretKind.GIT_TOKEN, "bob")
    assert (await scene.started()).secrets == StartSecrets()


@in_virtual_time
async def test_a_start_whose_answer_was_lost_is_audited_all_the_same() -> None:
    scene = await Scene.open()
    await scene.keep(MINE, "A", "one")
    scene.place()
    scene.harness.network.faults["runtime.start_container"] = ANSWER_LOST
    await scene.harness.reconcile()
    scene.harness.network.faults.clear()
    await scene.harness.converge()
    assert len(await scene.uses()) == 1


@in_virtual_time
async def test_a_start_that_did_not_happen_is_not_audited() -> None:
    scene = await Scene.open()
    await scene.keep(MINE, "A", "one")
    scene.place()
    scene.harness.network.faults["runtime.start_container"] = FAILS
    await scene.harness.reconcile(2)
    assert scene.harness.states.runtime.containers == {}
    assert await scene.uses() == []


@in_virtual_time
async def test_without_the_database_nothing_starts_and_nothing_fails() -> None:
    scene = await Scene.open()
    await scene.keep(MINE, "A", "one")
    scene.place()
    for call in ("secrets.of_owners", "profiles.get"):
        scene.harness.network.faults[call] = FAILS
        with pytest.raises(Unreachable):
            await scene.harness.reconcile(2)
        assert scene.harness.states.runtime.containers == {}
        assert scene.harness.row.error_info is None
        scene.harness.network.faults.clear()
    await scene.harness.converge()
    assert scene.spec().secrets.env == {"A": "one"}


@in_virtual_time
async def test_what_cannot_be_opened_is_left_out_and_told_to_the_owner_once() -> None:
    scene = await Scene.open()
    await scene.keep(MINE, "LOST", PLANTED)
    await scene.keep(MINE, "a.b", PLANTED, SecretKind.SSH_KEY)
    before = dict(scene.harness.states.database.accounts.secrets)
    second = AesKeyring(parse_keys(new_key()))
    scene.keyring = second
    await scene.keep(TEMPLATE, "FINE", "fine")
    await scene.harness.term.resign()
    await scene.lead(second)
    heard: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
    scene.bus.state.listeners[f"sse:{ANN}"] = [heard]
    with capture_logs() as lines:
        spec = await scene.started()
    assert spec.secrets == StartSecrets({"FINE": "fine"})
    assert {
        name: row for name, row in scene.harness.states.database.accounts.secrets.items() if name in before
    } == before
    [(subject, details)] = scene.harness.notifier.notices
    assert subject == "secrets could not be opened"
    assert details["names"] == ["LOST", "SSH key for a.b"]
    assert "is not here" in details["why"]
    [line] = [line for line in lines if line["event"] == subject]
    assert line["names"] == ["LOST", "SSH key for a.b"]
    message = heard.get_nowait()
    assert message is not None
    assert heard.empty()
    assert (message["type"], message["subject"], message["details"]) == ("owner_notice", subject, details)
    [entry] = await scene.uses()
    assert entry.details["left_out"] == ["LOST", "SSH key for a.b"]


@in_virtual_time
async def test_a_thousand_secrets_and_large_ones() -> None:
    scene = await Scene.open()
    for number in range(990):
        await scene.keep(MINE, f"N{number}", f"{number}\n")
    await scene.keep(MINE, "LARGE", "x\n" * (32 << 10))
    spec = await scene.started()
    assert len(spec.secrets.env) == 991
    assert spec.secrets.env["LARGE"] == "x\n" * (32 << 10)


@in_virtual_time
async def test_the_audit_log_and_notices_hold_some_names_and_count_the_others() -> None:
    scene = await Scene.open()
    for number in range(MOST_NAMES + 3):
        await scene.keep(MINE, f"{number:03}.{'a' * 249}", PLANTED, SecretKind.GIT_TOKEN, "ann")
    await scene.started()
    [entry] = await scene.uses()
    assert len(entry.details["git_tokens"]) == MOST_NAMES
    assert entry.details["git_tokens_others"] == 3
    await scene.harness.term.resign()
    await scene.lead(AesKeyring(parse_keys(new_key())))
    for wish in (Desired.STANDBY, Desired.RUNNING):
        scene.harness.change(desired_state=wish)()
        await scene.harness.converge()
    entry, _ = await scene.uses()
    assert (len(entry.details["left_out"]), entry.details["left_out_others"]) == (MOST_NAMES, 3)
    [(_, details)] = scene.harness.notifier.notices
    assert (len(details["names"]), details["names_others"]) == (MOST_NAMES, 3)


@in_virtual_time
async def test_no_value_is_in_a_log_line_a_repr_or_the_audit_log() -> None:
    scene = await Scene.open()
    await scene.keep(MINE, "A", PLANTED)
    await scene.keep(MINE, "a.b", PLANTED, SecretKind.GIT_TOKEN, "ann")
    await scene.keep(MINE, "a.b", PLANTED, SecretKind.SSH_KEY, "public")
    with capture_logs() as lines:
        spec = await scene.started()
    assert spec.secrets.env["A"] == PLANTED
    assert PLANTED not in repr(lines)
    assert PLANTED not in repr(spec)
    assert PLANTED not in repr(await scene.stores.audit().entries(100))
    assert PLANTED not in repr(scene.harness.states.database)
