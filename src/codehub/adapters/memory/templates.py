"""Templates and repeated requests in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from codehub.adapters.memory.people import PeopleWorld, StoredKey
from codehub.adapters.memory.wire import Wire
from codehub.domain.errors import Conflict
from codehub.domain.template import Template
from codehub.ports.accounts import Claim
from codehub.ports.stores import Actor


class MemoryTemplates:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def get(self, name: str) -> Template | None:
        return await self._wire.call("templates.get", lambda: self._world.templates.get(name))

    async def all(self) -> Sequence[Template]:
        return await self._wire.call(
            "templates.all", lambda: sorted(self._world.templates.values(), key=lambda template: template.name)
        )

    async def put(self, template: Template, actor: Actor) -> Template:
        def write() -> Template:
            now, before = self._world.now(), self._world.templates.get(template.name)
            since = (before.disabled_at if before else None) or now
            stored = replace(
                template,
                created_at=before.created_at if before else now,
                updated_at=now,
                disabled_at=since if template.disabled_at else None,
            )
            self._world.templates[stored.name] = stored
            # Not the environment: people put secrets there.
            details = {"image_ref": stored.image_ref, "disabled": stored.disabled_at is not None}
            self._world.told(actor, "put_template", f"template:{stored.name}", details)
            return stored

        return await self._wire.call("templates.put", write)


class MemoryIdempotencyKeys:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> Claim:
        def take() -> Claim:
            self._world.user(user_id)
            known = self._world.keys.get((user_id, key))
            if known is None:
                self._world.keys[user_id, key] = StoredKey(request_hash, workspace_id, self._world.now())
                return Claim(workspace_id, None, first=True)
            if known.request_hash != request_hash:
                raise Conflict(
                    "This Idempotency-Key was used for another request. Send a new key with a new request.",
                    "idempotency_key_reused",
                )
            return Claim(known.workspace_id, known.response, first=False)

        return await self._wire.call("idempotency_keys.claim", take)

    async def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        def write() -> None:
            known = self._world.keys.get((user_id, key))
            if known is not None and known.response is None:
                known.response = dict(response)

        await self._wire.call("idempotency_keys.answer", write)

    async def release(self, user_id: UUID, key: str) -> None:
        def free() -> None:
            known = self._world.keys.get((user_id, key))
            if known is not None and known.response is None:
                del self._world.keys[user_id, key]

        await self._wire.call("idempotency_keys.release", free)

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._world.now() - timedelta(seconds=seconds)
            gone = [name for name, stored in self._world.keys.items() if stored.created_at < oldest]
            for name in gone:
                del self._world.keys[name]
            return len(gone)

        return await self._world.within(epoch, self._wire, "idempotency_keys.forget_older", sweep)
