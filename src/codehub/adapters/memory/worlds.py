"""Which world each backend was, in memory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from codehub.adapters.memory.wire import Wire
from codehub.domain.backend_identity import Backend
from codehub.ports.stores import Remembered

if TYPE_CHECKING:
    from codehub.adapters.memory.database import DatabaseWorld


class MemoryWorlds:
    def __init__(self, world: "DatabaseWorld", wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def remembered(self) -> Mapping[Backend, Remembered]:
        return await self._wire.call("db.worlds", lambda: dict(self._world.worlds))

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        def write() -> str:
            return self._world.worlds.setdefault(backend, Remembered(identity, self._world.now())).identity

        with self._world.leadership.shared(epoch) as transaction:
            return await self._wire.call("db.adopt_world", lambda: transaction.commit(write))

    async def forget(self, backend: Backend) -> bool:
        return await self._wire.call("db.forget_world", lambda: self._world.worlds.pop(backend, None) is not None)
