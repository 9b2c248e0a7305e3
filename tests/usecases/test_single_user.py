"""Where workspaces are not kept apart, one person alone may have them."""

from dataclasses import replace

import pytest

from codehub.domain.errors import Conflict
from codehub.domain.identity import Caller
from codehub.usecases.users import always_isolated, refuse_several_users
from tests.usecases.accounts_harness import ADDRESS, AGENT, AccountsHarness


async def never() -> bool:
    return False


async def test_a_second_account_is_refused_and_says_what_to_do(harness: AccountsHarness, admin: Caller) -> None:
    people = replace(harness.people, isolates=never)
    with pytest.raises(Conflict, match="bubblewrap"):
        await people.create(admin, "ann")
    page, _ = await people.list(admin)
    assert [user.username for user in page] == ["root"]


async def test_nor_does_it_come_from_a_provider(harness: AccountsHarness, admin: Caller) -> None:
    oidc = replace(harness.oidc, isolates=never)
    url, secret = await oidc.start()
    with pytest.raises(Conflict, match="bubblewrap"):
        await oidc.finish(harness.provider.approve(url, "sub-1"), secret, ADDRESS, AGENT)
    page, _ = await harness.people.list(admin)
    assert [user.username for user in page] == ["root"]


async def test_the_first_account_is_nobody_s_neighbour(harness: AccountsHarness) -> None:
    oidc = replace(harness.oidc, isolates=never)
    url, secret = await oidc.start()
    signed_in = await oidc.finish(harness.provider.approve(url, "sub-1"), secret, ADDRESS, AGENT)
    assert signed_in.caller.user.issuer


async def test_several_people_without_isolation_are_refused_at_the_start(
    harness: AccountsHarness, admin: Caller
) -> None:
    """They came while workspaces were kept apart. Who is disabled does not count."""
    accounts = harness.people.accounts
    await refuse_several_users(accounts, never)
    ann, _ = await harness.people.create(admin, "ann")
    await refuse_several_users(accounts, always_isolated)
    with pytest.raises(Conflict, match=r"slirp4netns.*2 people"):
        await refuse_several_users(accounts, never)
    await harness.people.disable(admin, ann.id)
    await refuse_several_users(accounts, never)
    with pytest.raises(Conflict, match="slirp4netns"):
        await replace(harness.people, isolates=never).enable(admin, ann.id)
