"""Commands on workspaces: the only place that changes what is desired of one, for people and robots alike (contract 3).

Each command is one pure decision on the locked row; wherever a workspace may come to run, the decision is taken under
the admission lock. A workspace is created once however often the request is sent: its idempotency key names the new id
before there is a row, so two processes that race with one key, or a second try after a crash, meet in one row.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from codehub.domain.admission import RunningLimits, Slots, admit, admit_another
from codehub.domain.errors import Conflict, Invalid, LimitReached, NotFound, Refused
from codehub.domain.gc_rules import undo_is_over
from codehub.domain.identity import Caller, Scope
from codehub.domain.naming import slug_from
from codehub.domain.template import Template, checked_git_ref, checked_git_url
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from codehub.ports.signals import Ids
from codehub.ports.stores import Actor, IdempotencyKeys, Templates, WorkspaceSpecs
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.identity import actor_of

NAME_LENGTH = 100


@dataclass(frozen=True, slots=True)
class CreateWorkspace:
    name: str
    owner_id: str
    desired_state: Desired = Desired.RUNNING
    description: str = ""
    memo: str = ""
    template: str = "default"
    image_ref: str = ""
    runtime: str = "process"
    standby_ttl_seconds: int | None = None
    archive_ttl_seconds: int | None = None
    git_url: str | None = None
    git_ref: str | None = None
    asleep_if_full: bool = False
    """Without a free slot the workspace is created in STANDBY, so that what somebody typed in is not lost."""


@dataclass(frozen=True, slots=True)
class WorkspaceEdit:
    """A change of a workspace: only the named fields, and the desired state with them or not at all. A new name
    keeps the slug: addresses that people know must not break."""

    fields: Mapping[str, object] = field(default_factory=dict)
    desired_state: Desired | None = None
    if_idle: bool = False
    discard_home: bool = False


EDITABLE = frozenset(
    ("name", "description", "memo", "template", "standby_ttl_seconds", "archive_ttl_seconds", "git_url", "git_ref")
)


@dataclass(frozen=True, slots=True)
class WorkspaceCommands:
    specs: WorkspaceSpecs
    limits: RunningLimits

    async def create(self, new: CreateWorkspace, workspace_id: UUID, actor: Actor, now: datetime) -> Workspace:
        name = checked_name(new.name)
        if new.desired_state is Desired.DELETED:
            raise Invalid("A new workspace cannot be created as deleted.", "desired_state")
        row = Workspace(
            id=workspace_id,
            owner_id=new.owner_id,
            name=name,
            slug=slug_from(name, workspace_id),
            description=new.description,
            memo=new.memo,
            template=new.template,
            image_ref=new.image_ref,
            runtime=new.runtime,
            standby_ttl_seconds=new.standby_ttl_seconds,
            archive_ttl_seconds=new.archive_ttl_seconds,
            git_url=new.git_url,
            git_ref=new.git_ref,
            created_at=now,
            updated_at=now,
            phase_changed_at=now,
        )

        def decide(fresh: Workspace, others: Slots, at: datetime) -> Workspace:
            admit_another(others, self.limits)
            try:
                return self._with_desired_state(fresh, new.desired_state, others, at, actor)
            except LimitReached:
                if not new.asleep_if_full:
                    raise
                return self._with_desired_state(fresh, Desired.STANDBY, others, at, actor)

        return await self.specs.create(row, decide, actor)

    async def want(
        self,
        workspace_id: UUID,
        desired: Desired,
        actor: Actor,
        *,
        if_idle: bool = False,
        discard_home: bool = False,
        reason: str = "asked",
    ) -> Workspace:
        edit = WorkspaceEdit(desired_state=desired, if_idle=if_idle, discard_home=discard_home)
        return await self.edit(workspace_id, edit, actor, reason=reason)

    async def edit(self, workspace_id: UUID, edit: WorkspaceEdit, actor: Actor, *, reason: str = "asked") -> Workspace:
        desired = edit.desired_state
        if desired is Desired.PENDING and not edit.discard_home:
            message = "PENDING gives up the home and its archive. Say discard_home if you mean it."
            raise Invalid(message, "discard_home")
        fields: dict[str, Any] = {name: value for name, value in edit.fields.items() if name in EDITABLE}
        if "name" in fields:
            fields["name"] = checked_name(fields["name"])
        if "git_url" in fields and fields["git_url"] is None:
            fields["git_ref"] = None  # a branch of nothing

        def decide(row: Workspace, others: Slots, now: datetime) -> Workspace:
            _check_not_deleted(row)
            if edit.if_idle and row.operation is not Operation.NONE:
                raise Conflict(f"{row.operation} is under way. Try again when it is done.", "operation_in_progress")
            row = replace(row, **fields)
            return row if desired is None else self._with_desired_state(row, desired, others, now, actor)

        return await self.specs.change(workspace_id, decide, actor, reason=reason, admission=desired is Desired.RUNNING)

    async def put_to_sleep(
        self,
        workspace_id: UUID,
        seen: Workspace,
        becomes: Desired,
        actor: Actor,
        reason: str,
    ) -> bool:
        """Puts an idle workspace to sleep for a timer; refused (False) if anything has happened since the timer saw it,
        such as a start or a lease."""
        slept = False

        def decide(row: Workspace, _others: Slots, _now: datetime) -> Workspace:
            nonlocal slept
            slept = row.version == seen.version
            return replace(row, desired_state=becomes, desired_by=actor.name) if slept else row

        await self.specs.change(workspace_id, decide, actor, reason=reason)
        return slept

    async def recover(
        self,
        workspace_id: UUID,
        action: RecoverAction,
        actor: Actor,
        archive: str | None = None,
    ) -> Workspace:
        def decide(row: Workspace, others: Slots, now: datetime) -> Workspace:
            _check_not_deleted(row)
            if row.phase is not Phase.ERROR:
                raise Conflict("There is nothing to recover from: the workspace is not in ERROR.", "not_in_error")
            if row.desired_state is Desired.RUNNING:
                admit(others, self.limits)
            asked = replace(row, recover_action=action, recover_requested_at=_after(row.recover_requested_at, now))
            return _from_archive(asked, archive, now) if archive else asked

        return await self.specs.change(workspace_id, decide, actor, reason=f"recover:{action}", admission=True)

    async def restore(self, workspace_id: UUID, archive: str, actor: Actor) -> Workspace:
        def decide(row: Workspace, _others: Slots, now: datetime) -> Workspace:
            _check_not_deleted(row)
            if row.phase is Phase.ERROR:
                raise Conflict("In ERROR, recover with 'use_archive' and this restore point.", "in_error")
            if row.desired_state is Desired.DELETED:
                raise Conflict("The workspace is being deleted.", "being_deleted")
            if row.desired_state is Desired.PENDING:
                # what is wanted back is not to be given up again at once
                row = replace(row, desired_state=Desired.ARCHIVED, desired_by=actor.name)
            return _from_archive(row, archive, now)

        return await self.specs.change(workspace_id, decide, actor, reason="restore")

    async def undelete(self, workspace_id: UUID, actor: Actor) -> Workspace:
        """Brings a deleted workspace back, also beyond the limit of workspaces per person, which is no reason to
        lose work. What came back counts, so that nothing new is created until there is room again."""

        def decide(row: Workspace, _others: Slots, now: datetime) -> Workspace:
            if row.deleted_at is None:
                on_its_way = row.desired_state is Desired.DELETED
                keep_it = "not deleted yet: start, stop or archive it, and it is kept" if on_its_way else "not deleted"
                raise Conflict(f"The workspace is {keep_it}.", "not_deleted")
            if row.purged_at is not None:
                raise Conflict("Its data has been purged; it cannot come back.", "purged")
            return replace(row, undelete_requested_at=_after(row.undelete_requested_at, now))

        return await self.specs.change(workspace_id, decide, actor, reason="undelete")

    async def mark_deleted(self, workspace_id: UUID, robot: Actor) -> bool:
        """Marks the row deleted at the end of DELETING, only if that is still desired."""
        done = False

        def decide(row: Workspace, _others: Slots, now: datetime) -> Workspace:
            nonlocal done
            done = row.desired_state is Desired.DELETED
            return replace(row, deleted_at=row.deleted_at or now) if done else row

        await self.specs.change(workspace_id, decide, robot, reason="deleting")
        return done

    async def purge(self, workspace_id: UUID, undo: timedelta, robot: Actor) -> bool:
        """Marks the row purged before the collector deletes the first of the last copies: only if it is still
        deleted, the undo window is over and nobody wants it back. True also if it was purged before; then undelete
        is refused."""
        done = False

        def decide(row: Workspace, _others: Slots, now: datetime) -> Workspace:
            nonlocal done
            done = row.purged_at is not None or undo_is_over(row, undo, now)
            return replace(row, purged_at=row.purged_at or now) if done else row

        await self.specs.change(workspace_id, decide, robot, reason="undo_window_over")
        return done

    async def bring_back(self, workspace_id: UUID, robot: Actor) -> None:
        """The controller's half of undelete: the row is no longer deleted, and holds no slot. A name that was taken
        meanwhile gets a suffix."""
        try:
            await self._bring_back(workspace_id, robot, "")
        except Conflict:
            await self._bring_back(workspace_id, robot, f" ({workspace_id.hex[:6]})")

    async def _bring_back(self, workspace_id: UUID, robot: Actor, suffix: str) -> None:
        def decide(row: Workspace, _others: Slots, _now: datetime) -> Workspace:
            if row.purged_at is not None or row.deleted_at is None:
                return row
            rest = Desired.STANDBY if row.home.live else Desired.ARCHIVED if row.archive_key else Desired.PENDING
            return replace(row, name=row.name + suffix, deleted_at=None, desired_state=rest, desired_by=robot.name)

        await self.specs.change(workspace_id, decide, robot, reason="undelete")

    def _with_desired_state(
        self, row: Workspace, desired: Desired, others: Slots, now: datetime, actor: Actor
    ) -> Workspace:
        if desired is Desired.RUNNING:
            admit(others, self.limits)
            row = replace(row, last_access_at=now)
        return replace(row, desired_state=desired, desired_by=actor.name)


def checked_name(text: str) -> str:
    name = text.strip()
    if not name or len(name) > NAME_LENGTH or not name.isprintable():
        raise Invalid(f"A name has 1 to {NAME_LENGTH} printable characters.", "name")
    return name


def _from_archive(row: Workspace, archive: str, now: datetime) -> Workspace:
    return replace(row, restore_from=archive, restore_requested_at=_after(row.restore_requested_at, now))


def _after(last: datetime | None, now: datetime) -> datetime:
    """A time for a new request that is later than the last one's, also if the clock was put back: else it would count
    as handled."""
    return now if last is None or last < now else last + timedelta(microseconds=1)


def _check_not_deleted(row: Workspace) -> None:
    if row.deleted_at is not None:
        raise NotFound(f"There is no workspace {row.id}.")


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """Who holds a person's running slots. `is_own`: the limit is this person's own, not the installation's."""

    max_running: int
    is_own: bool
    holders: Sequence[Workspace]
    max_running_global: int
    running_global: int

    def has_room_for(self, workspace: Workspace) -> bool:
        """Whether this workspace of the same person could start now; decided again, exactly, when it is started."""
        others = sum(holder.id != workspace.id for holder in self.holders)
        elsewhere = self.running_global - (len(self.holders) - others)
        return others < self.max_running and elsewhere < self.max_running_global


@dataclass(frozen=True, slots=True)
class RunningSlots:
    views: WorkspaceViews
    limits: RunningLimits

    async def of_owner(self, owner_id: str) -> SlotUsage:
        """The slots of the user with this `owner_id`, as workspaces hold it."""
        holders, total, own = await self.views.slots(owner_id)
        limit = self.limits.max_running_per_user if own is None else own
        return SlotUsage(limit, own is not None, holders, self.limits.max_running_global, total)


Render = Callable[[OwnedWorkspace], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class WorkspaceCreation:
    """Creates workspaces from requests, once for each idempotency key."""

    commands: WorkspaceCommands
    templates: Templates
    keys: IdempotencyKeys
    views: WorkspaceViews
    ids: Ids
    minimum_ttl_seconds: float

    async def create(self, caller: Caller, new: CreateWorkspace, key: str | None, render: Render) -> Mapping[str, Any]:
        """The response: for a known idempotency key, the one that was given first."""
        caller.must(Scope.WRITE)
        if key is None:
            return render(await self._create(caller, new, self.ids.new()))
        user_id = caller.user.id
        fingerprint = _fingerprint(new)
        claim = await self.keys.claim(user_id, key, fingerprint, self.ids.new())
        if claim.response is not None:
            return claim.response
        try:
            created = await self._create(caller, new, claim.workspace_id)
        except Refused:
            await self.keys.release(user_id, key)
            raise
        await self.keys.answer(user_id, key, render(created))
        answered = await self.keys.claim(user_id, key, fingerprint, claim.workspace_id)
        return answered.response or render(created)

    async def template(self, name: str) -> Template:
        found = await self.templates.get(name)
        if found is None or found.disabled_at is not None:
            there = [template.name for template in await self.templates.all() if template.disabled_at is None]
            raise Invalid(f"There is no template {name!r}. There are: {', '.join(there) or 'none'}.", "template")
        return found

    def check_ttl(self, field: str, seconds: int | None) -> None:
        """Invalid if the TTL is so short that it could stop somebody whose key press is not in the database yet."""
        if seconds and seconds < self.minimum_ttl_seconds:
            raise Invalid(f"A TTL is 0 (never) or at least {self.minimum_ttl_seconds:g} seconds.", field)

    async def _checked(self, new: CreateWorkspace) -> CreateWorkspace:
        """The request with its template's image. Invalid if the template, a TTL or the repository's address is."""
        template = await self.template(new.template)
        self.check_ttl("standby_ttl_seconds", new.standby_ttl_seconds)
        self.check_ttl("archive_ttl_seconds", new.archive_ttl_seconds)
        if new.git_url is not None:
            checked_git_url(new.git_url)
        if new.git_ref is not None:
            checked_git_ref(new.git_ref)
            if new.git_url is None:
                raise Invalid("A branch or tag is one of a repository: name its address (git_url) too.", "git_ref")
        return replace(new, image_ref=template.image_ref)

    async def _create(self, caller: Caller, new: CreateWorkspace, workspace_id: UUID) -> OwnedWorkspace:
        ready = await self._checked(new)
        try:
            row = await self.commands.create(ready, workspace_id, actor_of(caller), await self.views.now())
        except Conflict as conflict:
            if conflict.code != "id_taken":
                raise
        else:
            return OwnedWorkspace(row, caller.user.username, ready.image_ref)
        found = await self.views.get(workspace_id)
        if found is None or found.workspace.owner_id != new.owner_id:
            raise Conflict("That workspace's id is taken.", "id_taken")
        return found


def _fingerprint(new: CreateWorkspace) -> bytes:
    """A hash of what was asked for, not of what it led to: a template that changed meanwhile makes no other request."""
    asked = {name: getattr(new, name) for name in new.__slots__}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).digest()
