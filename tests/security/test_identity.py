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
from tests.usecases.front_desk import ADDRESS, AGENT, FrontDesk


@pytest.fixture
def desk() -> FrontDesk:
    return FrontDesk()


@pytest.fixture
async def admin(desk: FrontDesk) -> Caller:
    return await desk.admin()


async def refusal(identity: Identity, username: str, password: str) -> tuple[type[Refused], str]:
    with pytest.raises(Refused) as refused:
        await identity.sign_in(username, password, ADDRESS, AGENT)
    return type(refused.value), str(refused.value)


# ── session fixation ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_sign_in_makes_a_session_of_its_own(desk: FrontDesk, admin: Caller) -> None:
    _caller, password, first = await desk.member(admin)
    secrets = {first}
    for _ in range(3):
        _again, secret = await desk.identity.sign_in("ann", password, ADDRESS, AGENT)
        secrets.add(secret)
    assert len(secrets) == 4
    assert all(len(secret) >= 43 for secret in secrets)


async def test_a_secret_that_somebody_planted_never_becomes_a_session(desk: FrontDesk, admin: Caller) -> None:
    _caller, password, _secret = await desk.member(admin)
    planted = "planted-by-a-stranger"
    with pytest.raises(Unauthenticated):
        await desk.identity.caller(session_token=planted)
    await desk.identity.sign_in("ann", password, ADDRESS, AGENT)
    with pytest.raises(Unauthenticated):
        await desk.identity.caller(session_token=planted)


async def test_what_the_database_holds_signs_nobody_in(desk: FrontDesk, admin: Caller) -> None:
    """A stolen backup holds hashes, and a hash is no secret of ours."""
    caller, _password, _secret = await desk.member(admin)
    _token, _secret = await desk.tokens.create(caller, "ci", [Scope.READ])
    for session_id in desk.state.sessions:
        with pytest.raises(Unauthenticated):
            await desk.identity.caller(session_token=session_id)
    for token_hash in desk.state.tokens:
        for form in (token_hash.hex(), f"chub_{token_hash.hex()}"):
            with pytest.raises(Unauthenticated):
                await desk.identity.caller(bearer=form)


# ── default and weak secrets ─────────────────────────────────────────────────────────────────────────────────────────


async def test_nobody_comes_in_before_the_first_run_or_with_a_usual_password(desk: FrontDesk) -> None:
    for usual in ("admin", "password", "codehub", "root", ""):
        assert (await refusal(desk.identity, "admin", usual))[0] is Unauthenticated
    password = await desk.identity.ensure_admin("admin")
    assert password
    assert len(password) >= 20
    other = await FrontDesk().identity.ensure_admin("admin")
    assert other != password
    assert desk.state.password_hashes
    assert password not in repr(desk.state)


# ── timing and user enumeration ──────────────────────────────────────────────────────────────────────────────────────


async def test_unknown_disabled_and_passwordless_users_get_the_same_work_and_answer(
    desk: FrontDesk, admin: Caller
) -> None:
    await desk.member(admin, "known")
    disabled, disabled_password, _secret = await desk.member(admin, "disabled")
    await desk.people.disable(admin, disabled.user.id)
    url, cookie = await desk.oidc.start()
    await desk.oidc.finish(desk.provider.approve(url, "s", "passwordless"), cookie, ADDRESS, AGENT)
    calls: list[str] = []

    def note(name: str) -> None:
        calls.append(name)

    watched = MemoryAccountDatabase(desk.state, FaultyNetwork(SystemClock(), note))
    identity = replace(desk.identity, accounts=watched.accounts(), tries=watched.sign_in_tries(), audit=watched.audit())
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
        before = desk.passwords.verified
        answer = await refusal(identity, username, password)
        seen.append((answer, desk.passwords.verified - before, tuple(calls)))
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


async def test_unknown_accounts_are_backed_off_like_known_ones(desk: FrontDesk, admin: Caller) -> None:
    await desk.member(admin, "known")
    answers = {}
    for username, address in (("known", "198.51.100.1"), ("nobody", "198.51.100.2")):
        heard = []
        for _ in range(7):
            with pytest.raises(Refused) as refused:
                await desk.identity.sign_in(username, "wrong password", address, AGENT)
            heard.append((type(refused.value), str(refused.value)))
        answers[username] = heard
    assert answers["known"] == answers["nobody"]
    assert answers["known"][-1][0] is TooManyTries


async def test_guesses_sent_at_once_are_all_counted(desk: FrontDesk, admin: Caller) -> None:
    await desk.member(admin)
    before = desk.passwords.verified
    guesses = (desk.identity.sign_in("ann", f"guess {n}", ADDRESS, AGENT) for n in range(50))
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(answer, TooManyTries) for answer in answers) == 45
    assert desk.passwords.verified - before == 5


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


async def test_no_secret_is_logged_or_audited_or_published(desk: FrontDesk) -> None:
    with everything_logged() as lines, structlog.testing.capture_logs() as events:
        first = await desk.identity.ensure_admin("root")
        assert first
        admin, session = await desk.identity.sign_in("root", first, ADDRESS, AGENT)
        ann, password, ann_session = await desk.member(admin)
        _token, token = await desk.tokens.create(ann, "ci", [Scope.READ, Scope.WRITE])
        await desk.identity.caller(bearer=token)
        chosen = "a password that I chose"
        await desk.identity.change_password(ann, password, chosen)
        typed_in_the_wrong_field = "hunter2 is my password"
        await refusal(desk.identity, typed_in_the_wrong_field, "another wrong one")
        await refusal(desk.identity, "ann", "another wrong one")
        reset = await desk.people.reset_password(admin, ann.user.id)
        url, cookie = await desk.oidc.start()
        params = desk.provider.approve(url, "s", "carl")
        carl = await desk.oidc.finish(params, cookie, ADDRESS, AGENT)
        desk.bus._network = FaultyNetwork(SystemClock(), lambda _name: Fault(FaultKind.FAIL))
        await desk.identity.sign_out(admin)
    said = lines.getvalue() + repr(events)
    assert "nobody was told" in said, "the capture works"
    told = said + repr(desk.state.audit) + repr(desk.messages())
    secrets = [first, session, password, ann_session, token, chosen, typed_in_the_wrong_field]
    secrets += ["another wrong one", reset, cookie, params["code"], carl.session_token]
    secrets += [*desk.state.password_hashes.values(), *(h.hex() for h in desk.state.tokens)]
    assert [secret for secret in secrets if secret in told] == []
    kept = repr(desk.state)
    hashes = set(desk.state.password_hashes.values()) | {h.hex() for h in desk.state.tokens}
    assert [secret for secret in secrets if secret in kept and secret not in hashes] == []


async def test_what_strangers_send_is_bounded_and_on_one_line(desk: FrontDesk, admin: Caller) -> None:
    _user, password = await desk.people.create(admin, "ann")
    assert password
    caller, _secret = await desk.identity.sign_in(
        "ann", password, "192.0.2.1\n" + "x" * 9000, "a\r\nb\x00" + "y" * 9000
    )
    [session] = await desk.identity.sessions(caller)
    for text in (session.address, session.agent, desk.audit("sign_in")[-1].address):
        assert len(text) <= 200
        assert text.isprintable()


# ── stale authorization ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_losing_a_right_is_at_once_and_told_to_the_front_doors(desk: FrontDesk, admin: Caller) -> None:
    bob, _password, secret = await desk.member(admin, "bob", Role.ADMIN)
    token, token_secret = await desk.tokens.create(bob, "ci", [Scope.READ, Scope.ADMIN])
    await desk.people.set_role(admin, bob.user.id, Role.USER)
    for caller in (
        await desk.identity.caller(session_token=secret),
        await desk.identity.caller(bearer=token_secret),
    ):
        with pytest.raises(Forbidden):
            await desk.people.list(caller)
    await desk.tokens.revoke(bob, token.id)
    await desk.people.reset_password(admin, bob.user.id)
    await desk.people.disable(admin, bob.user.id)
    for ask in (desk.identity.caller(session_token=secret), desk.identity.caller(bearer=token_secret)):
        with pytest.raises(Unauthenticated):
            await ask
    told = desk.messages()
    assert [message["type"] for message in told] == ["role_changed", "token_revoked", "signed_out", "user_disabled"]
    assert {message["user_id"] for message in told} == {bob.user.owner_id}


async def test_every_change_is_in_the_audit_log_with_who_did_it(desk: FrontDesk, admin: Caller) -> None:
    ann, password, _secret = await desk.member(admin)
    other, _secret = await desk.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert other.session_id
    token, _secret = await desk.tokens.create(ann, "ci", [Scope.READ])
    await desk.tokens.revoke(ann, token.id)
    await desk.identity.revoke_session(ann, other.session_id)
    await desk.identity.change_password(ann, password, "correct horse battery")
    await desk.people.set_role(admin, ann.user.id, Role.ADMIN)
    await desk.people.set_max_running(admin, ann.user.id, 1)
    await desk.people.disable(admin, ann.user.id)
    await desk.people.enable(admin, ann.user.id)
    await desk.people.reset_password(admin, ann.user.id)
    await desk.identity.sign_out(admin)
    assert [(entry.actor, entry.action) for entry in desk.audit() if entry.subject == "user:ann"] == [
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
    assert [entry.action for entry in desk.audit() if entry.subject == "user:root"] == [
        "create_user",
        "sign_in",
        "sign_out",
    ]
    assert {entry.address for entry in desk.audit() if entry.actor == "ann"} == {ADDRESS}


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
async def test_after_sign_in_nobody_is_sent_elsewhere(desk: FrontDesk, hostile: str | None) -> None:
    url, cookie = await desk.oidc.start(hostile)
    done = await desk.oidc.finish(desk.provider.approve(url, "s", "ann"), cookie, ADDRESS, AGENT)
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
