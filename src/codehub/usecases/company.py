"""A runtime that does not keep workspaces apart is for one person: a second account is refused, whoever asks."""

from collections.abc import Awaitable, Callable

from codehub.domain.errors import Conflict
from codehub.ports.accounts import Accounts

Isolates = Callable[[], Awaitable[bool]]
"""Are workspaces kept from each other and from CodeHub's own port?"""

_WHY = (
    "Workspaces are not kept from each other and from CodeHub's own port here, so one person alone may use them. "
    "Install bubblewrap and slirp4netns (apt-get install bubblewrap slirp4netns) or use another runtime"
)
_PAGE = 100


async def always() -> bool:
    return True


async def refuse_company(accounts: Accounts, isolates: Isolates) -> None:
    if await isolates() or not await accounts.users("", 1):
        return
    raise Conflict(f"{_WHY}, then make the account.", "no_isolation")


async def refuse_shared_start(accounts: Accounts, isolates: Isolates) -> None:
    """Before anything is served: several people may have accounts from when workspaces were kept apart, or were thought
    to be. Those who are disabled do not count."""
    if await isolates():
        return
    people, after = 0, ""
    while page := await accounts.users(after, _PAGE):
        people, after = people + sum(user.disabled_at is None for user in page), page[-1].username
    if people > 1:
        raise Conflict(f"{_WHY}; {people} people have accounts.", "no_isolation")
