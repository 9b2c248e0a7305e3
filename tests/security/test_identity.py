"""Holes that others had in who may come in, one test each."""

import asyncio
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import argon2
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from codehub.adapters.memory import FaultyNetwork, MemoryAccountDatabase
from codehub.adapters.memory.fault_injection import Fault, FaultKind
from codehub.adapters.passwords import Argon2Passwords
from codehub.adapters.system import SystemClock
from codehub.domain.addresses import local_path
from codehub.domain.errors import Forbidden, Refused, TooManyTries, Unauthenticated
from codehub.domain.identity import Caller, Role, Scope
from codehub.telemetry import configure_logging
from codehub.usecases.identity import Identity
from tests.usecases.accounts_harness import ADDRESS, AGENT, AccountsHarness


@pytest.fixture
def harness() -> AccountsHarness:
    return AccountsHarness()


@pytest.fixture
async def admin(harness: AccountsHarness) -> Caller:
    return await harness.admin()


async def refusal(identity: Identity, username: str, password: str) -> tuple[type[Refused], str]:
    with pytest.raises(Refused) as refused:
        await identity.sign_in(username, password, ADDRESS, AGENT)
    return type(refused.value), str(refused.value)


# ── session fixation ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_sign_in_makes_a_session_of_its_own(harness: AccountsHarness, admin: Caller) -> None:
    _caller, password, first = await harness.member(admin)
    secrets = {first}
    for _ in range(3):
        _again, secret = await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
        secrets.add(secret)
    assert len(secrets) == 4
    assert all(len(secret) >= 43 for secret in secrets)


async def test_a_secret_that_somebody_planted_never_becomes_a_session(harness: AccountsHarness, admin: Caller) -> None:
    _caller, password, _secret = await harness.member(admin)
    planted = "planted-by-a-stranger"
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=planted)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=planted)


async def test_what_the_database_holds_signs_nobody_in(harness: AccountsHarness, admin: Caller) -> None:
    """A stolen backup holds hashes, and a hash is no secret of ours."""
    caller, _password, _secret = await harness.member(admin)
    _token, _secret = await harness.tokens.create(caller, "ci", [Scope.READ])
    for session_id in harness.state.sessions:
        with pytest.raises(Unauthenticated):
            await harness.identity.caller(session_token=session_id)
    for token_hash in harness.state.tokens:
        for form in (token_hash.hex(), f"chub_{token_hash.hex()}"):
            with pytest.raises(Unauthenticated):
                await harness.identity.caller(bearer=form)


# ── default and weak secrets ─────────────────────────────────────────────────────────────────────────────────────────


async def test_nobody_comes_in_before_the_first_run_or_with_a_usual_password(harness: AccountsHarness) -> None:
    for usual in ("admin", "password", "codehub", "root", ""):
        assert (await refusal(harness.identity, "admin", usual))[0] is Unauthenticated
    password = await harness.identity.ensure_admin("admin")
    assert password
    assert len(password) >= 20
    other = await AccountsHarness().identity.ensure_admin("admin")
    assert other != password
    assert harness.state.password_hashes
    assert password not in repr(harness.state)


# ── timing and user enumeration ──────────────────────────────────────────────────────────────────────────────────────


async def test_unknown_disabled_and_passwordless_users_get_the_same_work_and_answer(
    harness: AccountsHarness, admin: Caller
) -> None:
    await harness.member(admin, "known")
    disabled, disabled_password, _secret = await harness.member(admin, "disabled")
    await harness.people.disable(admin, disabled.user.id)
    url, cookie = await harness.oidc.start()
    await harness.oidc.finish(harness.provider.approve(url, "s", "passwordless"), cookie, ADDRESS, AGENT)
    calls: list[str] = []

    def note(name: str) -> None:
        calls.append(name)

    watched = MemoryAccountDatabase(harness.state, FaultyNetwork(SystemClock(), note))
    identity = replace(
        harness.identity, accounts=watched.accounts(), sign_in_state=watched.sign_in_state(), audit=watched.audit()
    )
    seen = []
    for username, password in (
        ("known", "wrong password"),
        ("nobody", "wrong password"),
        ("disabled", disabled_password),
        ("passwordless", ""),
        ("not a username!", "wrong password"),
        ("known", "x" * 5000),
    ):
        calls.clear()
        before = harness.passwords.verified
        answer = await refusal(identity, username, password)
        seen.append((answer, harness.passwords.verified - before, tuple(calls)))
    assert len(set(seen)) == 1
    assert seen[0][0][0] is Unauthenticated
    assert seen[0][1] == 1


class CountingHasher(argon2.PasswordHasher):
    compared = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002 - the library's name
        self.compared += 1
        return super().verify(hash, password)


async def test_argon2_works_as_hard_for_nobody() -> None:
    hasher = CountingHasher(time_cost=1, memory_cost=64, parallelism=1)
    passwords = Argon2Passwords(hasher)
    for stored in (await passwords.hash("correct horse"), None):
        before = hasher.compared
        assert not await passwords.verify(stored, "wrong")
        assert hasher.compared == before + 1


async def test_unknown_accounts_are_backed_off_like_known_ones(harness: AccountsHarness, admin: Caller) -> None:
    await harness.member(admin, "known")
    answers = {}
    for username, address in (("known", "198.51.100.1"), ("nobody", "198.51.100.2")):
        heard = []
        for _ in range(7):
            with pytest.raises(Refused) as refused:
                await harness.identity.sign_in(username, "wrong password", address, AGENT)
            heard.append((type(refused.value), str(refused.value)))
        answers[username] = heard
    assert answers["known"] == answers["nobody"]
    assert answers["known"][-1][0] is TooManyTries


async def test_guesses_sent_at_once_are_all_counted(harness: AccountsHarness, admin: Caller) -> None:
    await harness.member(admin)
    before = harness.passwords.verified
    guesses = (harness.identity.sign_in("ann", f"guess {n}", ADDRESS, AGENT) for n in range(50))
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(answer, TooManyTries) for answer in answers) == 45
    assert harness.passwords.verified - before == 5


# ── secrets in logs ──────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def everything_logged() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    out = io.StringIO()
    configure_logging(level="debug", form="json", stream=out)
    try:
        yield out
    finally:
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()


async def test_no_secret_is_logged_or_audited_or_published(harness: AccountsHarness) -> None:
    with everything_logged() as lines, structlog.testing.capture_logs() as events:
        first = await harness.identity.ensure_admin("root")
        assert first
        admin, session = await harness.identity.sign_in("root", first, ADDRESS, AGENT)
        ann, password, ann_session = await harness.member(admin)
        _token, token = await harness.tokens.create(ann, "ci", [Scope.READ, Scope.WRITE])
        await harness.identity.caller(bearer=token)
        chosen = "a password that I chose"
        await harness.identity.change_password(ann, password, chosen)
        typed_in_the_wrong_field = "hunter2 is my password"
        await refusal(harness.identity, typed_in_the_wrong_field, "another wrong one")
        await refusal(harness.identity, "ann", "another wrong one")
        reset = await harness.people.reset_password(admin, ann.user.id)
        url, cookie = await harness.oidc.start()
        params = harness.provider.approve(url, "s", "carl")
        carl = await harness.oidc.finish(params, cookie, ADDRESS, AGENT)
        harness.bus._network = FaultyNetwork(SystemClock(), lambda _name: Fault(FaultKind.FAIL))
        await harness.identity.sign_out(admin)
    said = lines.getvalue() + repr(events)
    assert "nobody was told" in said, "the capture works"
    told = said + repr(harness.state.audit) + repr(harness.messages())
    secrets = [first, session, password, ann_session, token, chosen, typed_in_the_wrong_field]
    secrets += ["another wrong one", reset, cookie, params["code"], carl.session_token]
    secrets += [*harness.state.password_hashes.values(), *(h.hex() for h in harness.state.tokens)]
    assert [secret for secret in secrets if secret in told] == []
    kept = repr(harness.state)
    hashes = set(harness.state.password_hashes.values()) | {h.hex() for h in harness.state.tokens}
    assert [secret for secret in secrets if secret in kept and secret not in hashes] == []


async def test_what_strangers_send_is_bounded_and_on_one_line(harness: AccountsHarness, admin: Caller) -> None:
    _user, password = await harness.people.create(admin, "ann")
    assert password
    caller, _secret = await harness.identity.sign_in(
        "ann", password, "192.0.2.1\n" + "x" * 9000, "a\r\nb\x00" + "y" * 9000
    )
    [session] = await harness.identity.sessions(caller)
    for text in (session.address, session.agent, harness.audit("sign_in")[-1].address):
        assert len(text) <= 200
        assert text.isprintable()


# ── stale authorization ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_losing_a_right_is_at_once_and_told_to_the_front_doors(harness: AccountsHarness, admin: Caller) -> None:
    bob, _password, secret = await harness.member(admin, "bob", Role.ADMIN)
    token, token_secret = await harness.tokens.create(bob, "ci", [Scope.READ, Scope.ADMIN])
    await harness.people.set_role(admin, bob.user.id, Role.USER)
    for caller in (
        await harness.identity.caller(session_token=secret),
        await harness.identity.caller(bearer=token_secret),
    ):
        with pytest.raises(Forbidden):
            await harness.people.list(caller)
    await harness.tokens.revoke(bob, token.id)
    await harness.people.reset_password(admin, bob.user.id)
    await harness.people.disable(admin, bob.user.id)
    for ask in (harness.identity.caller(session_token=secret), harness.identity.caller(bearer=token_secret)):
        with pytest.raises(Unauthenticated):
            await ask
    told = harness.messages()
    assert [message["type"] for message in told] == ["role_changed", "token_revoked", "signed_out", "user_disabled"]
    assert {message["user_id"] for message in told} == {bob.user.owner_id}


async def test_every_change_is_in_the_audit_log_with_who_did_it(harness: AccountsHarness, admin: Caller) -> None:
    ann, password, _secret = await harness.member(admin)
    other, _secret = await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert other.session_id
    token, _secret = await harness.tokens.create(ann, "ci", [Scope.READ])
    await harness.tokens.revoke(ann, token.id)
    await harness.identity.revoke_session(ann, other.session_id)
    await harness.identity.change_password(ann, password, "correct horse battery")
    await harness.people.set_role(admin, ann.user.id, Role.ADMIN)
    await harness.people.set_max_running(admin, ann.user.id, 1)
    await harness.people.disable(admin, ann.user.id)
    await harness.people.enable(admin, ann.user.id)
    await harness.people.reset_password(admin, ann.user.id)
    await harness.identity.sign_out(admin)
    assert [(entry.actor, entry.action) for entry in harness.audit() if entry.subject == "user:ann"] == [
        ("root", "create_user"),
        ("ann", "sign_in"),
        ("ann", "sign_in"),
        ("ann", "create_token"),
        ("ann", "revoke_token"),
        ("ann", "revoke_session"),
        ("ann", "change_password"),
        ("root", "set_role"),
        ("root", "set_max_running"),
        ("root", "disable_user"),
        ("root", "enable_user"),
        ("root", "reset_password"),
    ]
    assert [entry.action for entry in harness.audit() if entry.subject == "user:root"] == [
        "create_user",
        "sign_in",
        "sign_out",
    ]
    assert {entry.address for entry in harness.audit() if entry.actor == "ann"} == {ADDRESS}


# ── open redirect ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "hostile",
    [
        "https://evil.example",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/%5cevil.example",
        "/%2f/evil.example",
        "/%2Fevil.example",
        "/a//b",
        "/\tevil",
        "\t//evil.example",
        "/\n//evil.example",
        "javascript:alert(1)",
        "evil.example",
        "?next=//evil.example",
        "/a%0d%0aSet-Cookie:x",
        "/a%",
        "/" + "x" * 3000,
        "/ü",
        "",
        None,
    ],
)
async def test_after_sign_in_nobody_is_sent_elsewhere(harness: AccountsHarness, hostile: str | None) -> None:
    url, cookie = await harness.oidc.start(hostile)
    done = await harness.oidc.finish(harness.provider.approve(url, "s", "ann"), cookie, ADDRESS, AGENT)
    assert done.next_path == "/"


@pytest.mark.parametrize("path", ["/", "/w/demo/", "/w/demo?folder=/srv/x&a=b%20c", "/a.b/~c-d_e", "/%E2%82%AC"])
def test_paths_of_ours_are_kept(path: str) -> None:
    assert local_path(path) == path
    assert local_path(f"{path}#part") == path


@given(st.text(alphabet="/\\.:%25cfF0a?#@ ex\t\n", max_size=30))
def test_what_is_kept_can_only_be_ours(text: str) -> None:
    kept = local_path(text)
    assert kept.startswith("/")
    assert not kept.startswith(("//", "/\\"))
    assert kept.isprintable()
    assert "\\" not in kept
