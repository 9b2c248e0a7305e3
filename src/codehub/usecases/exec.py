"""Commands inside a workspace, for whoever may enter it: the owner, or an admin with the scope for it.

Each is audited before it begins: who, from where, by which credential, which command; never what it read or said. While
one without a terminal runs, the workspace is in use. What is typed into one with a terminal is its caller's to count.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from codehub.domain.access import AccessAction, access_to
from codehub.domain.errors import CodeHubError, NotRunning
from codehub.domain.identity import Caller, Scope
from codehub.domain.ledger import AuditAction, command_details
from codehub.domain.workspace import Workspace
from codehub.ports.accounts import Audit
from codehub.ports.exec import ExecRequest, ExecSession
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Clock
from codehub.ports.stores import Actor
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.telemetry import get_logger
from codehub.usecases.authorization import authorized_workspace
from codehub.usecases.identity import actor_of
from codehub.usecases.lifecycle import Lifecycles

log = get_logger(__name__)

ACTIVITY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class WorkspaceExec:
    runtime: Runtime
    views: WorkspaceViews
    audit: Audit
    lifecycles: Lifecycles
    clock: Clock

    async def authorized(self, caller: Caller, workspace_id: UUID) -> OwnedWorkspace:
        """The workspace, if the caller may run commands in it: NotFound or Forbidden, as the front door decides."""
        return await authorized_workspace(self.views, caller, workspace_id, Scope.WRITE)

    @asynccontextmanager
    async def run(self, caller: Caller, workspace_id: UUID, request: ExecRequest) -> AsyncIterator[ExecSession]:
        """Runs a command for as long as the context lasts; whoever leaves it hangs the command up. NotRunning if the
        workspace does not run: nothing is woken."""
        owned = await self.authorized(caller, workspace_id)
        if access_to(owned.workspace).action is not AccessAction.FORWARD:
            raise NotRunning(f"The workspace is {owned.workspace.phase}: start it first.")
        await self._audit(caller, owned, request)
        session = await self.runtime.exec(workspace_id, request)
        counting = asyncio.create_task(self._count(owned.workspace, actor_of(caller)))
        if request.terminal is not None:
            counting.cancel()
        try:
            yield session
        finally:
            counting.cancel()
            with suppress(asyncio.CancelledError):
                await counting
            await session.close()

    async def _audit(self, caller: Caller, owned: OwnedWorkspace, request: ExecRequest) -> None:
        details = {
            "owner": owned.owner,
            "workspace": owned.workspace.name,
            **command_details(shlex.join(request.argv) or "(login shell)"),
            "credential": caller.credential,
        }
        await self.audit.append(actor_of(caller), AuditAction.EXEC, f"workspace:{owned.workspace.id}", details)

    async def _count(self, ws: Workspace, actor: Actor) -> None:
        """Counts as activity again and again."""
        while True:
            try:
                await self.lifecycles.note_activity(ws, actor)
            except CodeHubError as error:
                log.warning("activity of a command was not recorded", workspace=str(ws.id), error=str(error))
            await self.clock.sleep(ACTIVITY_SECONDS)
