"""Access to a workspace at its own host: who may enter, how a signed-in person gets there, and what they may ask
there.

The workspace's host never sees the platform's cookie. A ticket, valid once and for seconds, becomes a secret of that
host alone, which ends with the session or token behind it. The API and the front door both issue tickets by this rule,
and an admin who enters somebody else's workspace is audited.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from codehub.domain.access import AccessAction, access_to
from codehub.domain.errors import NotFound, Unauthenticated
from codehub.domain.identity import Caller, Scope, session_credential, token_credential
from codehub.domain.ledger import AuditAction
from codehub.domain.workspace import Desired, Workspace
from codehub.ports.accounts import Audit, Ticket
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.identity import Identity, actor_of, digest, new_session_token
from codehub.usecases.workspace_commands import RunningSlots, SlotUsage, WorkspaceCommands

TICKET_SECONDS: Final = 60
_NOT_YOURS: Final = "There is no such workspace, or it is not yours."


async def create_ticket(
    identity: Identity, caller: Caller, owned: OwnedWorkspace, port: int | None, secret: str, *, wakes: bool
) -> None:
    """Makes `secret` open the workspace's host, once. NotFound if the caller's session or token has just ended."""
    ticket = Ticket(caller.user.id, owned.workspace.id, caller.session_id, port, caller.token_id, wakes=wakes)
    await identity.sign_in_state.issue_ticket(digest(secret), ticket, TICKET_SECONDS)
    await audit_admin_access(identity.audit, caller, owned, AuditAction.ISSUE_TICKET)


async def audit_admin_access(audit: Audit, caller: Caller, owned: OwnedWorkspace, action: AuditAction) -> None:
    """Audits that an admin enters somebody else's workspace; nothing for an owner."""
    if owned.workspace.owner_id != caller.user.owner_id:
        said = {"owner": owned.owner, "workspace": owned.workspace.name}
        await audit.append(actor_of(caller), action, f"workspace:{owned.workspace.id}", said)


@dataclass(frozen=True, slots=True)
class WorkspaceCaller(Caller):
    """A caller at a workspace's own host. `workspace_id` and `port`: the only ones that a visit is valid for; None: a
    session of the platform or a token, which is valid for all that its user may enter."""

    workspace_id: UUID | None = None
    port: int | None = None

    def may_enter(self, workspace: Workspace, port: int | None) -> bool:
        """Whether a request or a WebSocket to this port of the workspace is allowed."""
        elsewhere = self.workspace_id is not None and (self.workspace_id, self.port) != (workspace.id, port)
        return not elsewhere and self.owns(workspace)

    def owns(self, workspace: Workspace) -> bool:
        """Whether the caller is the owner, or an admin with the scope for it, who may do what the owner may."""
        return workspace.owner_id == self.user.owner_id or self.may(Scope.ADMIN)


@dataclass(frozen=True, slots=True)
class WorkspaceAccess:
    identity: Identity
    views: WorkspaceViews
    commands: WorkspaceCommands
    slots: RunningSlots

    # ── callers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def signed_in(self, session_token: str) -> WorkspaceCaller | None:
        try:
            caller = await self.identity.caller(session_token=session_token)
        except Unauthenticated:
            return None
        return WorkspaceCaller(caller.user, caller.credential)

    async def with_token(self, bearer: str) -> WorkspaceCaller | None:
        """The caller with a bearer token; None unless it has the scope to write, since an IDE changes things."""
        try:
            caller = await self.identity.caller(bearer=bearer)
        except Unauthenticated:
            return None
        return WorkspaceCaller(caller.user, caller.credential, caller.scopes) if caller.may(Scope.WRITE) else None

    async def visiting(self, visit_secret: str) -> WorkspaceCaller | None:
        """The caller with a visit's secret; None once the session or token behind it has ended or may not write."""
        visit = await self.identity.sign_in_state.visit(digest(visit_secret), self.identity.rules)
        if visit is None:
            return None
        token_id, session_id = visit.token_id, visit.session_id or ""
        credential = session_credential(session_id) if token_id is None else token_credential(token_id)
        caller = WorkspaceCaller(visit.user, credential, visit.scopes, workspace_id=visit.workspace_id, port=visit.port)
        return caller if caller.may(Scope.WRITE) else None

    # ── tickets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ticket(self, caller: WorkspaceCaller, slug: str, port: int | None) -> str:
        """A ticket to the workspace's host, which wakes nothing. NotFound unless the caller may enter."""
        return await self._ticket(caller, slug, port, port)

    async def ticket_beside(self, caller: WorkspaceCaller, slug: str, port: int) -> str:
        """A ticket from one port of the workspace to another. NotFound unless the caller may enter the first."""
        if caller.port is None:
            raise NotFound(_NOT_YOURS)
        return await self._ticket(caller, slug, caller.port, port)

    async def _ticket(self, caller: WorkspaceCaller, slug: str, entered: int | None, port: int | None) -> str:
        owned = await self.views.by_slug(slug)
        if owned is None or not caller.may_enter(owned.workspace, entered):
            raise NotFound(_NOT_YOURS)
        secret = new_session_token()
        await create_ticket(self.identity, caller, owned, port, secret, wakes=False)
        return secret

    async def enter(self, ticket_secret: str) -> tuple[Ticket, str] | None:
        """The ticket that this secret redeems, and the secret of the new visit. None if it is unknown, used or too
        old."""
        state, secret = self.identity.sign_in_state, new_session_token()
        ticket = await state.redeem_ticket(digest(ticket_secret))
        if ticket is None:
            return None
        opened = await state.open_visit(digest(secret), ticket, self.identity.rules.absolute_seconds)
        return (ticket, secret) if opened else None

    async def audit_entry(self, caller: WorkspaceCaller, workspace_id: UUID) -> None:
        """Audits an admin who enters without a ticket as one who had one."""
        owned = await self.views.get(workspace_id)
        if owned is not None:
            await audit_admin_access(self.identity.audit, caller, owned, AuditAction.ENTER_WORKSPACE)

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def wake(self, caller: WorkspaceCaller, workspace_id: UUID) -> Workspace:
        """Asks for the workspace to run; however many ask, it is one start. In ERROR nothing changes. LimitReached."""
        workspace = await self._own(caller, workspace_id)
        broken = access_to(workspace).action is AccessAction.EXPLAIN_ERROR
        if broken or workspace.desired_state is Desired.RUNNING:
            return workspace
        return await self.commands.want(workspace_id, Desired.RUNNING, actor_of(caller), reason="opened")

    async def give_way(self, caller: WorkspaceCaller, workspace_id: UUID, to: Workspace) -> Workspace:
        """Stops one of the caller's workspaces, so that `to`, another of theirs, may start. Both must be the
        caller's: the request comes from the host of `to`, where programs of its owner could have sent it."""
        workspace = await self._own(caller, workspace_id)
        if {workspace.owner_id, to.owner_id} != {caller.user.owner_id}:
            raise NotFound(_NOT_YOURS)
        if workspace.desired_state is not Desired.RUNNING:
            return workspace
        return await self.commands.want(workspace_id, Desired.STANDBY, actor_of(caller), reason="gave_way")

    async def slot_usage(self, workspace: Workspace) -> SlotUsage:
        """The running slots of the workspace's owner: whoever starts it, it takes one of theirs."""
        return await self.slots.of_owner(workspace.owner_id)

    async def _own(self, caller: WorkspaceCaller, workspace_id: UUID) -> Workspace:
        owned = await self.views.get(workspace_id)
        if (
            owned is None
            or not caller.owns(owned.workspace)
            or access_to(owned.workspace).action is AccessAction.NOT_FOUND
        ):
            raise NotFound(_NOT_YOURS)
        return owned.workspace
