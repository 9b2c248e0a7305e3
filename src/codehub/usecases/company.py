"""A runtime that does not keep workspaces apart is for one person: a second account is refused, whoever asks."""

from collections.abc import Awaitable, Callable

from codehub.domain.errors import Conflict
from codehub.ports.accounts import Accounts

Isolates = Callable[[], Awaitable[bool]]
"""Are workspaces kept from each other?"""


async def always() -> bool:
    return True


async def refuse_company(accounts: Accounts, isolates: Isolates) -> None:
    if await isolates() or not await accounts.users("", 1):
        return
    raise Conflict(
        "Workspaces are not kept from each other here, so one person alone may use them. Install bubblewrap "
        "(apt-get install bubblewrap) or use another runtime, then make the account.",
        "no_isolation",
    )
