"""A credential that was stolen makes none that outlives it: accounts, roles, passwords and tokens take a session whose
person has just proved who they are."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from codehub.domain.errors import (
    Conflict,
    Forbidden,
    ProofNeeded,
    Refused,
    TooManyTries,
    Unauthenticated,
    WrongPassword,
)
from codehub.domain.identity import Caller, Role, Scope
from tests.api.memory_api import PASSWORD, memory_api
from tests.usecases.accounts_harness import ADDRESS, AGENT, RULES, AccountsHarness

Attempt = Callable[[AccountsHarness, Caller], Awaitable[object]]

ATTEMPTS: dict[str, Attempt] = {
    "an account": lambda harness, caller: harness.people.create(caller, "backdoor", Role.ADMIN),
    "its own password": lambda harness, caller: harness.people.reset_password(caller, caller.user.id),
    "a role": lambda harness, caller: harness.people.set_role(caller, caller.user.id, Role.ADMIN),
    "a disabled account": lambda harness, caller: harness.people.enable(caller, caller.user.id),
    "disabling": lambda harness, caller: harness.people.disable(caller, caller.user.id),
    "a token": lambda harness, caller: harness.tokens.create(caller, "more", [Scope.ADMIN]),
}


@pytest.fixture
def harness() -> AccountsHarness:
    return AccountsHarness()


async def with_token(harness: AccountsHarness, owner: Caller, *scopes: Scope) -> Caller:
    _token, secret = await harness.tokens.create(owner, "ci", scopes or tuple(Scope))
    return await harness.identity.caller(bearer=secret)


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
async def test_an_admin_s_token_makes_nothing_that_outlives_it(harness: AccountsHarness, attempt: Attempt) -> None:
    stolen = await with_token(harness, await harness.admin())
    before = len(harness.state.audit)
    with pytest.raises(Conflict) as refused:
        await attempt(harness, stolen)
    assert refused.value.code == "needs_session"
    assert len(harness.state.audit) == before


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
async def test_a_session_that_was_left_open_has_to_prove_itself(harness: AccountsHarness, attempt: Attempt) -> None:
    password = await harness.identity.ensure_admin("root")
    assert password
    _fresh, secret = await harness.identity.sign_in("root", password, ADDRESS, AGENT)
    harness.clock.pass_by(RULES.fresh_seconds)
    left_open = await harness.identity.caller(session_token=secret)
    with pytest.raises(ProofNeeded):
        await attempt(harness, left_open)
    with pytest.raises(WrongPassword):
        await harness.identity.prove(left_open, "a guess")
    with pytest.raises(ProofNeeded):
        await attempt(harness, await harness.identity.caller(session_token=secret))
    await harness.identity.prove(left_open, password)
    with suppress(Conflict):  # the last admin stays one, whoever asks
        await attempt(harness, await harness.identity.caller(session_token=secret))


async def test_the_password_of_an_open_session_is_not_guessed_without_end(harness: AccountsHarness) -> None:
    caller = await harness.admin()
    refusals = [await refusal(harness, caller) for _ in range(10)]
    assert refusals[0] is WrongPassword
    assert refusals[-1] is TooManyTries


async def refusal(harness: AccountsHarness, caller: Caller) -> type[Refused]:
    with pytest.raises(Refused) as refused:
        await harness.identity.prove(caller, "a guess")
    return type(refused.value)


async def test_a_token_proves_nothing(harness: AccountsHarness) -> None:
    admin = await harness.admin()
    stolen = await with_token(harness, admin)
    with pytest.raises(Conflict):
        await harness.identity.prove(stolen, "whatever")


# ── what a new password ends ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reset_revokes_the_tokens_and_tells_the_front_doors(harness: AccountsHarness) -> None:
    admin = await harness.admin()
    ann, _password, _secret = await harness.member(admin)
    made, secret = await harness.tokens.create(ann, "ci", [Scope.READ])
    harness.messages()
    await harness.people.reset_password(admin, ann.user.id)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(bearer=secret)
    told = [(message["type"], message.get("token_id")) for message in harness.messages()]
    assert told == [("signed_out", None), ("token_revoked", str(made.id))]
    assert harness.audit("reset_password")[-1].details == {"ended_sessions": 1, "revoked_tokens": 1}


@pytest.mark.parametrize("revoke", [False, True])
async def test_a_change_ends_the_tokens_if_one_says_so(harness: AccountsHarness, revoke: bool) -> None:
    ann, password, session = await harness.member(await harness.admin())
    _token, secret = await harness.tokens.create(ann, "ci", [Scope.READ])
    await harness.identity.change_password(ann, password, "another good one", revoke_tokens=revoke)
    assert await harness.identity.caller(session_token=session), "the session that did it stays"
    if revoke:
        with pytest.raises(Unauthenticated):
            await harness.identity.caller(bearer=secret)
    else:
        assert (await harness.identity.caller(bearer=secret)).user.id == ann.user.id


# ── people of a provider ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_comes_from_a_provider_is_as_fresh_as_the_provider_says(harness: AccountsHarness) -> None:
    url, cookie = await harness.oidc.start()
    assert "prompt=" not in url
    long_ago = harness.clock() - timedelta(hours=3)
    back = harness.provider.approve(url, "s", "ann", authenticated_at=long_ago)
    signed_in = await harness.oidc.finish(back, cookie, ADDRESS, AGENT)
    with pytest.raises(ProofNeeded):
        await harness.tokens.create(signed_in.caller, "ci", [Scope.READ])

    url, cookie = await harness.oidc.start("/account", anew=True)
    assert "prompt=login" in url
    assert "max_age=0" in url
    back = harness.provider.approve(url, "s", "ann", authenticated_at=harness.clock())
    again = await harness.oidc.finish(back, cookie, ADDRESS, AGENT, signed_in.session_token)
    assert (again.session_token, again.next_path) == (signed_in.session_token, "/account"), "and its tabs with it"
    proven = await harness.identity.caller(session_token=again.session_token)
    await harness.tokens.create(proven, "ci", [Scope.READ])


async def test_somebody_else_s_proof_at_the_provider_is_none(harness: AccountsHarness) -> None:
    url, cookie = await harness.oidc.start()
    signed_in = await harness.oidc.finish(harness.provider.approve(url, "s", "ann"), cookie, ADDRESS, AGENT)
    harness.clock.pass_by(RULES.fresh_seconds)
    url, cookie = await harness.oidc.start(anew=True)
    other = await harness.oidc.finish(
        harness.provider.approve(url, "t", "bob"), cookie, ADDRESS, AGENT, signed_in.session_token
    )
    assert other.session_token != signed_in.session_token
    assert not (await harness.identity.caller(session_token=signed_in.session_token)).is_fresh


async def test_a_sign_in_that_was_not_begun_anew_proves_no_session_that_is_there(harness: AccountsHarness) -> None:
    url, cookie = await harness.oidc.start()
    signed_in = await harness.oidc.finish(harness.provider.approve(url, "s", "ann"), cookie, ADDRESS, AGENT)
    harness.clock.pass_by(RULES.fresh_seconds)
    url, cookie = await harness.oidc.start()
    again = await harness.oidc.finish(
        harness.provider.approve(url, "s", "ann"), cookie, ADDRESS, AGENT, signed_in.session_token
    )
    assert again.session_token != signed_in.session_token
    assert not (await harness.identity.caller(session_token=signed_in.session_token)).is_fresh


# ── over HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_over_http_a_stolen_admin_token_ends_with_its_owner_s_password() -> None:
    async with memory_api() as site:
        root, ann = await site.person("root", Role.ADMIN), await site.person("ann")
        for method, path, body in (
            ("PATCH", f"admin/users/{root.id}", {"reset_password": True}),
            ("PATCH", f"admin/users/{ann.id}", {"role": "admin"}),
            ("POST", "admin/users", {"username": "backdoor", "role": "admin"}),
            ("POST", "tokens", {"name": "more", "scopes": ["admin"]}),
            ("POST", "session/proof", {"password": PASSWORD}),
        ):
            refused = await root.http.request(method, f"/api/v1/{path}", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "needs_session"), path
        browser = await site.browser("root")
        assert (await browser.get("/api/v1/session")).json()["is_fresh"] is True
        site.backends.database.state.accounts.proven.update(
            dict.fromkeys(
                site.backends.database.state.accounts.proven, site.backends.database.state.accounts.now() - timedelta(1)
            )
        )
        stale = await browser.patch(f"/api/v1/admin/users/{ann.id}", json={"role": "admin"})
        assert (stale.status_code, stale.json()["code"]) == (403, "proof_needed")
        wrong = await browser.post("/api/v1/session/proof", json={"password": "no"})
        assert (wrong.status_code, wrong.json()["code"]) == (403, "wrong_password")
        assert (await browser.post("/api/v1/session/proof", json={"password": PASSWORD})).status_code == 204
        reset = await browser.patch(f"/api/v1/admin/users/{ann.id}", json={"reset_password": True})
        assert reset.status_code == 200
        assert (await ann.http.get("/api/v1/session")).status_code == 401, "her token ended with her password"
        change = {"old_password": PASSWORD, "new_password": "another good one", "revoke_tokens": True}
        assert (await browser.put("/api/v1/session/password", json=change)).status_code == 204
        assert (await root.http.get("/api/v1/session")).status_code == 401
        assert (await browser.get("/api/v1/session")).status_code == 200


async def test_no_other_refusal_is_hidden_behind_the_proof(harness: AccountsHarness) -> None:
    """A user who may not do it at all is told so, and asked for no password."""
    ann, _password, _secret = await harness.member(await harness.admin())
    harness.clock.pass_by(RULES.fresh_seconds)
    for name, attempt in ATTEMPTS.items():
        if name != "a token":
            with pytest.raises(Forbidden) as refused:
                await attempt(harness, ann)
            assert not isinstance(refused.value, ProofNeeded)
