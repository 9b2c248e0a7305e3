"""Creating a workspace: from a template that exists, and once however often the same request is sent.

The key of a request names the new workspace's id before there is one, so two processes that race with one key, or a
second try after a crash, meet in one row.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from codehub.domain.errors import Conflict, Invalid, Refused
from codehub.domain.git_url import checked_git_url
from codehub.domain.identity import Caller, Scope
from codehub.domain.template import Template
from codehub.ports.accounts import IdempotencyKeys, Templates
from codehub.ports.signals import Ids
from codehub.ports.views import Owned, WorkspaceViews
from codehub.usecases.identity import actor_of
from codehub.usecases.wishes import NewWorkspace, Wishes

Render = Callable[[Owned], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Creation:
    wishes: Wishes
    templates: Templates
    keys: IdempotencyKeys
    views: WorkspaceViews
    ids: Ids
    minimum_ttl_seconds: float

    async def create(self, caller: Caller, new: NewWorkspace, key: str | None, render: Render) -> Mapping[str, Any]:
        """What to answer: for a known key what was answered first."""
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
        """A shorter one could stop someone whose key press is still on its way to the database."""
        if seconds and seconds < self.minimum_ttl_seconds:
            raise Invalid(f"A TTL is 0 (never) or at least {self.minimum_ttl_seconds:g} seconds.", field)

    async def _ready(self, new: NewWorkspace) -> NewWorkspace:
        template = await self.template(new.template)
        self.check_ttl("standby_ttl_seconds", new.standby_ttl_seconds)
        self.check_ttl("archive_ttl_seconds", new.archive_ttl_seconds)
        if new.git_url is not None:
            checked_git_url(new.git_url)
        return replace(new, image_ref=template.image_ref)

    async def _create(self, caller: Caller, new: NewWorkspace, workspace_id: UUID) -> Owned:
        ready = await self._ready(new)
        try:
            row = await self.wishes.create(ready, workspace_id, actor_of(caller), await self.views.now())
        except Conflict as conflict:
            if conflict.code != "id_taken":
                raise
        else:
            return Owned(row, caller.user.username, ready.image_ref)
        found = await self.views.get(workspace_id)
        if found is None or found.workspace.owner_id != new.owner_id:
            raise Conflict("That workspace's id is taken.", "id_taken")
        return found


def _fingerprint(new: NewWorkspace) -> bytes:
    """Of what was asked, not of what it led to: a template that changed meanwhile makes no other request."""
    asked = {name: getattr(new, name) for name in new.__slots__}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).digest()
