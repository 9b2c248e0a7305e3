"""Where workspaces are not kept apart, one person alone may have them."""

from dataclasses import replace

import pytest

from codehub.domain.errors import Conflict
from codehub.domain.identity import Caller
from tests.usecases.front_desk import ADDRESS, AGENT, FrontDesk


async def never() -> bool:
    return False


async def test_a_second_account_is_refused_and_says_what_to_do(desk: FrontDesk, admin: Caller) -> None:
    people = replace(desk.people, isolates=never)
    with pytest.raises(Conflict, match="bubblewrap"):
        await people.create(admin, "ann")
    page, _ = await people.list(admin)
    assert [user.username for user in page] == ["root"]


async def test_nor_does_it_come_from_a_provider(desk: FrontDesk, admin: Caller) -> None:
    oidc = replace(desk.oidc, isolates=never)
    url, secret = await oidc.start()
    with pytest.raises(Conflict, match="bubblewrap"):
        await oidc.finish(desk.provider.approve(url, "sub-1"), secret, ADDRESS, AGENT)
    page, _ = await desk.people.list(admin)
    assert [user.username for user in page] == ["root"]


async def test_the_first_account_is_nobody_s_neighbour(desk: FrontDesk) -> None:
    oidc = replace(desk.oidc, isolates=never)
    url, secret = await oidc.start()
    signed_in = await oidc.finish(desk.provider.approve(url, "sub-1"), secret, ADDRESS, AGENT)
    assert signed_in.caller.user.issuer
