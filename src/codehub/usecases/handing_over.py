"""How a signed-in person gets to a workspace's own host, and the trace that an admin leaves in somebody else's.

The API and the front door both hand people over; they do it here, so that it is one rule.
"""

from typing import Final

from codehub.domain.audit import AuditAction
from codehub.domain.identity import Caller
from codehub.ports.accounts import Audit, Ticket, Tickets
from codehub.ports.views import Owned
from codehub.usecases.identity import actor_of
from codehub.usecases.new_secrets import digest

TICKET_SECONDS: Final = 60


async def hand_over(
    tickets: Tickets, audit: Audit, caller: Caller, owned: Owned, port: int | None, secret: str, *, wakes: bool
) -> None:
    """From now on `secret` opens that host, once. NotFound: what the caller signed in with has just ended."""
    ticket = Ticket(caller.user.id, owned.workspace.id, caller.session_id, port, caller.token_id, wakes=wakes)
    await tickets.issue(digest(secret), ticket, TICKET_SECONDS)
    await note_admin(audit, caller, owned, AuditAction.ISSUE_TICKET)


async def note_admin(audit: Audit, caller: Caller, owned: Owned, action: AuditAction) -> None:
    """An admin who goes into somebody else's workspace leaves a trace."""
    if owned.workspace.owner_id != caller.user.owner_id:
        said = {"owner": owned.owner, "workspace": owned.workspace.name}
        await audit.append(actor_of(caller), action, f"workspace:{owned.workspace.id}", said)
