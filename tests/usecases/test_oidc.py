"""Signing in at a provider, on the provider in memory; the real one is in tests/contracts."""

import asyncio
from dataclasses import replace

import pytest

from codehub.domain.errors import Unauthenticated
from codehub.domain.identity import Caller, Role
from codehub.usecases.oidc import LIFETIME_SECONDS, SignedIn
from tests.usecases.accounts_harness import ADDRESS, AGENT, AccountsHarness


async def signed_in(
    harness: AccountsHarness, subject: str = "sub-1", name: str | None = "Ann", email: str | None = None
) -> SignedIn:
    url, cookie = await harness.oidc.start("/w/demo?x=1")
    return await harness.oidc.finish(harness.provider.approve(url, subject, name, email), cookie, ADDRESS, AGENT)


async def test_a_new_person_joins_and_comes_back_as_the_same(harness: AccountsHarness, admin: Caller) -> None:
    first = await signed_in(harness)
    user = first.caller.user
    assert (user.username, user.role, user.has_password) == ("ann", Role.USER, False)
    assert (user.issuer, user.subject) == (harness.provider.issuer, "sub-1")
    assert first.next_path == "/w/demo?x=1"
    assert await harness.identity.caller(session_token=first.session_token, address=ADDRESS) == first.caller
    again = await signed_in(harness, name="renamed")
    assert again.caller.user == user
    assert again.session_token != first.session_token
    assert [entry.subject for entry in harness.audit("sign_in_oidc")] == ["user:ann", "user:ann"]


async def test_the_same_name_or_email_is_not_the_same_person(harness: AccountsHarness, admin: Caller) -> None:
    """A provider that lets people choose their email must not let them choose who they are here."""
    local, _password = await harness.people.create(admin, "ann", Role.ADMIN)
    stranger = (await signed_in(harness, "evil", "ann", "ann@example.com")).caller.user
    assert stranger.id != local.id
    assert (stranger.username, stranger.role) == ("ann-2", Role.USER)
    third = (await signed_in(harness, "third", None, "ann@example.com")).caller.user
    assert third.username == "ann-3"


@pytest.mark.parametrize(
    ("name", "email", "username"),
    [
        ("Ann Lee", None, "ann-lee"),
        (None, "a.lee@example.com", "a.lee"),
        ("名前", None, "user"),
        ("x" * 100, None, "x" * 64),
        (None, None, "user"),
    ],
)
async def test_usernames_are_made_of_what_there_is(
    harness: AccountsHarness, name: str | None, email: str | None, username: str
) -> None:
    assert (await signed_in(harness, "s", name, email)).caller.user.username == username
    second = (await signed_in(harness, "t", name, email)).caller.user.username
    assert second == f"{username[:62]}-2"


async def test_when_all_numbers_are_taken_the_name_gets_a_tail(harness: AccountsHarness) -> None:
    names = [(await signed_in(harness, f"s{number}", "ann")).caller.user.username for number in range(22)]
    assert len(set(names)) == 22


async def test_one_person_twice_at_once_is_one_user(harness: AccountsHarness) -> None:
    both = await asyncio.gather(signed_in(harness), signed_in(harness))
    assert both[0].caller.user == both[1].caller.user


async def test_a_sign_in_finishes_once_in_time_and_in_its_own_browser(harness: AccountsHarness) -> None:
    url, cookie = await harness.oidc.start()
    _url, other_cookie = await harness.oidc.start()
    params = harness.provider.approve(url, "sub-1", "ann")
    for wrong in (other_cookie, None, ""):
        with pytest.raises(Unauthenticated, match="not begun in this browser"):
            await harness.oidc.finish(params, wrong, ADDRESS, AGENT)
    with pytest.raises(Unauthenticated):
        await harness.oidc.finish({"code": params["code"]}, cookie, ADDRESS, AGENT)
    await harness.oidc.finish(params, cookie, ADDRESS, AGENT)
    with pytest.raises(Unauthenticated):
        await harness.oidc.finish(params, cookie, ADDRESS, AGENT)
    url, cookie = await harness.oidc.start()
    harness.clock.pass_by(LIFETIME_SECONDS + 1)
    with pytest.raises(Unauthenticated):
        await harness.oidc.finish(harness.provider.approve(url, "sub-1"), cookie, ADDRESS, AGENT)


async def test_a_code_of_another_sign_in_is_worth_nothing(harness: AccountsHarness) -> None:
    """PKCE and nonce: a stolen or injected code does not fit."""
    victim_url, _cookie = await harness.oidc.start()
    stolen = harness.provider.approve(victim_url, "victim", "victim")
    url, cookie = await harness.oidc.start()
    mine = harness.provider.approve(url, "thief", "thief")
    with pytest.raises(Unauthenticated):
        await harness.oidc.finish({"code": stolen["code"], "state": mine["state"]}, cookie, ADDRESS, AGENT)
    assert harness.state.users == {}


async def test_a_refusal_at_the_provider_is_told(harness: AccountsHarness) -> None:
    url, cookie = await harness.oidc.start()
    state = harness.provider.approve(url, "x")["state"]
    with pytest.raises(Unauthenticated, match="access_denied"):
        await harness.oidc.finish({"error": "access_denied", "state": state}, cookie, ADDRESS, AGENT)


async def test_a_disabled_person_is_not_signed_in(harness: AccountsHarness, admin: Caller) -> None:
    user = (await signed_in(harness)).caller.user
    await harness.people.disable(admin, user.id)
    with pytest.raises(Unauthenticated):
        await signed_in(harness)


async def test_nothing_secret_is_kept_of_a_sign_in_that_is_away(harness: AccountsHarness) -> None:
    _url, cookie = await harness.oidc.start()
    assert cookie not in repr(harness.state)


@pytest.mark.parametrize(
    ("email", "verified", "comes_in"),
    [
        ("ann@example.com", True, True),
        ("Ann@EXAMPLE.com", True, True),
        ("bob@partner.org", True, True),
        ("eve@partner.org", True, False),
        ("ann@example.com.evil.org", True, False),
        ("ann@evil.org@example.com", False, False),
        ("ann@example.com", False, False),
        (None, True, False),
    ],
)
async def test_only_guests_on_the_list_come_in(
    harness: AccountsHarness, admin: Caller, email: str | None, verified: bool, comes_in: bool
) -> None:
    """By an email that the provider has verified: one that people type in themselves proves nothing."""
    door = replace(harness.oidc, allowed=frozenset({"@example.com", "bob@partner.org"}))
    url, cookie = await door.start("/")
    answer = harness.provider.approve(url, "sub-1", "ann", email, email_verified=verified)
    if comes_in:
        assert (await door.finish(answer, cookie, ADDRESS, AGENT)).caller.user.username
        return
    with pytest.raises(Unauthenticated, match="not on this installation's list"):
        await door.finish(answer, cookie, ADDRESS, AGENT)
    assert not harness.audit("sign_in_oidc")
