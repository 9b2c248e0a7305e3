"""Coming in at a workspace's own host: who may, how a signed-in person is handed over, and what they may wish there.

The workspace's host never sees the platform's cookie. A ticket, good once and for seconds, becomes a secret of that
host alone, which ends with the session or token behind it.

How a signed-in person gets to a workspace's own host, and the trace that an admin leaves in somebody else's.

The API and the front door both hand people over; they do it here, so that it is one rule.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from codehub.domain.access import AccessAction, access_to
from codehub.domain.audit import AuditAction
from codehub.domain.errors import NotFound, Unauthenticated
from codehub.domain.identity import ALL_SCOPES, Caller, Scope, User, session_credential, token_credential
from codehub.domain.workspace import Desired, Workspace
from codehub.ports.accounts import Audit, Ticket, Tickets, Visits
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.identity import Identity, actor_of, digest, new_session_token
from codehub.usecases.workspace_commands import RunningSlots, SlotUsage, WorkspaceCommands

TICKET_SECONDS: Final = 60


async def hand_over(
    tickets: Tickets, audit: Audit, caller: Caller, owned: OwnedWorkspace, port: int | None, secret: str, *, wakes: bool
) -> None:
    """From now on `secret` opens that host, once. NotFound: what the caller signed in with has just ended."""
    ticket = Ticket(caller.user.id, owned.workspace.id, caller.session_id, port, caller.token_id, wakes=wakes)
    await tickets.issue(digest(secret), ticket, TICKET_SECONDS)
    await note_admin(audit, caller, owned, AuditAction.ISSUE_TICKET)


async def note_admin(audit: Audit, caller: Caller, owned: OwnedWorkspace, action: AuditAction) -> None:
    """An admin who goes into somebody else's workspace leaves a trace."""
    if owned.workspace.owner_id != caller.user.owner_id:
        said = {"owner": owned.owner, "workspace": owned.workspace.name}
        await audit.append(actor_of(caller), action, f"workspace:{owned.workspace.id}", said)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody at the door. `workspace_id`: the only workspace they were let in to, and `port` the only port of it;
    None: whoever signed in at the platform, or sent a token, goes where their name allows. `scopes`: what the token
    behind it may; a session may all that its user may."""

    user: User
    session_id: str | None = None
    token_id: UUID | None = None
    workspace_id: UUID | None = None
    port: int | None = None
    scopes: frozenset[Scope] = ALL_SCOPES

    def may_enter(self, workspace: Workspace, port: int | None) -> bool:
        """The one rule for requests and sockets alike."""
        elsewhere = self.workspace_id is not None and (self.workspace_id, self.port) != (workspace.id, port)
        return not elsewhere and self.owns(workspace)

    def owns(self, workspace: Workspace) -> bool:
        """An admin, with the scope for it, stands where the owner stands."""
        return workspace.owner_id == self.user.owner_id or self.caller.may(Scope.ADMIN)

    @property
    def caller(self) -> Caller:
        if self.token_id is not None:
            return Caller(self.user, token_credential(self.token_id), self.scopes)
        return Caller(self.user, session_credential(self.session_id or ""), self.scopes)


@dataclass(frozen=True, slots=True)
class WorkspaceAccess:
    identity: Identity
    tickets: Tickets
    visits: Visits
    views: WorkspaceViews
    wishes: WorkspaceCommands
    slots: RunningSlots
    audit: Audit

    # ── who is there ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def signed_in(self, session_token: str) -> Visitor | None:
        try:
            caller = await self.identity.caller(session_token=session_token)
        except Unauthenticated:
            return None
        return Visitor(caller.user, caller.session_id)

    async def with_token(self, bearer: str) -> Visitor | None:
        """A token opens a workspace only if it may change things: an IDE is more than a look."""
        try:
            caller = await self.identity.caller(bearer=bearer)
        except Unauthenticated:
            return None
        visitor = Visitor(caller.user, token_id=caller.token_id, scopes=frozenset(caller.scopes))
        return visitor if caller.may(Scope.WRITE) else None

    async def visiting(self, visit_secret: str) -> Visitor | None:
        """Worth what the session or token behind it is worth."""
        visit = await self.visits.visit(digest(visit_secret), self.identity.rules)
        if visit is None:
            return None
        visitor = Visitor(visit.user, visit.session_id, visit.token_id, visit.workspace_id, visit.port, visit.scopes)
        return visitor if visitor.caller.may(Scope.WRITE) else None

    # ── the hand-over ────────────────────────────────────────────────────────────────────────────────────────────────

    async def ticket(self, visitor: Visitor, slug: str, port: int | None) -> str:
        """To that workspace's own host; arriving with it wakes nothing. NotFound unless it is the visitor's."""
        owned = await self.views.by_slug(slug)
        if owned is None or not visitor.may_enter(owned.workspace, port):
            raise NotFound("There is no such workspace, or it is not yours.")
        secret = new_session_token()
        await hand_over(self.tickets, self.audit, visitor.caller, owned, port, secret, wakes=False)
        return secret

    async def ticket_beside(self, visitor: Visitor, slug: str, port: int) -> str:
        """For somebody who is at one port of the workspace, to another port of it. NotFound unless they are."""
        owned = await self.views.by_slug(slug)
        if owned is None or visitor.port is None or not visitor.may_enter(owned.workspace, visitor.port):
            raise NotFound("There is no such workspace, or it is not yours.")
        secret = new_session_token()
        await hand_over(self.tickets, self.audit, visitor.caller, owned, port, secret, wakes=False)
        return secret

    async def enter(self, ticket_secret: str) -> tuple[Ticket, str] | None:
        """The ticket, and the secret that stands for the visit. None: it is unknown, used or too old."""
        ticket = await self.tickets.redeem(digest(ticket_secret))
        if ticket is None:
            return None
        secret = new_session_token()
        lasts = self.identity.rules.absolute_seconds
        return (ticket, secret) if await self.visits.open(digest(secret), ticket, lasts) else None

    async def note_look(self, visitor: Visitor, workspace_id: UUID) -> None:
        """An admin who needs no ticket leaves the same trace."""
        owned = await self.views.get(workspace_id)
        if owned is not None:
            await note_admin(self.audit, visitor.caller, owned, AuditAction.ENTER_WORKSPACE)

    # ── wishes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def wake(self, visitor: Visitor, workspace_id: UUID) -> Workspace:
        """However many ask, it is one start. In ERROR nothing is wished: that takes a recovery. LimitReached."""
        workspace = await self._own(visitor, workspace_id)
        broken = access_to(workspace).action is AccessAction.EXPLAIN_ERROR
        if broken or workspace.desired_state is Desired.RUNNING:
            return workspace
        return await self.wishes.want(workspace_id, Desired.RUNNING, actor_of(visitor.caller), reason="opened")

    async def give_way(self, visitor: Visitor, workspace_id: UUID, to: Workspace) -> Workspace:
        """Stop one of the visitor's own, so that another of theirs may start. The wish comes from the host of `to`,
        whose pages are its programs' to write: on somebody else's host it is not the visitor who wishes."""
        workspace = await self._own(visitor, workspace_id)
        if {workspace.owner_id, to.owner_id} != {visitor.user.owner_id}:
            raise NotFound("There is no such workspace, or it is not yours.")
        if workspace.desired_state is not Desired.RUNNING:
            return workspace
        return await self.wishes.want(workspace_id, Desired.STANDBY, actor_of(visitor.caller), reason="gave_way")

    async def standing(self, workspace: Workspace) -> SlotUsage:
        """Of its owner: whoever starts it, it takes a place of theirs."""
        return await self.slots.of_owner(workspace.owner_id)

    async def _own(self, visitor: Visitor, workspace_id: UUID) -> Workspace:
        owned = await self.views.get(workspace_id)
        if (
            owned is None
            or not visitor.owns(owned.workspace)
            or access_to(owned.workspace).action is AccessAction.NOT_FOUND
        ):
            raise NotFound("There is no such workspace, or it is not yours.")
        return owned.workspace
