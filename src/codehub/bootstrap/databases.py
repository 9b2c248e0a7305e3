"""The embedded PostgreSQL and Redis that `codehub up` runs, and the schema of any database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.embedded import EmbeddedError, EmbeddedServer, embedded_postgres, embedded_redis
from codehub.adapters.postgres import SchemaMismatch, migrate

__all__ = ["EmbeddedDatabases", "EmbeddedError", "SchemaMismatch", "embedded_databases", "migrate"]


@dataclass(frozen=True, slots=True)
class EmbeddedDatabases:
    postgres: EmbeddedServer
    redis: EmbeddedServer

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of both, by the names of the settings that take them."""
        return {"database_url": self.postgres.url, "redis_url": self.redis.url}

    async def until_one_dies(self) -> None:
        """Waits until one of the servers ends, and raises EmbeddedError."""
        waits = {asyncio.ensure_future(server.exited()): server for server in (self.postgres, self.redis)}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            server = waits[done.pop()]
        finally:
            for wait in waits:
                wait.cancel()
        name = "PostgreSQL" if server is self.postgres else "Redis"
        raise EmbeddedError(f"{name} has ended by itself; its log is {server.log}. Start CodeHub again.")


@asynccontextmanager
async def embedded_databases(directory: Path) -> AsyncIterator[EmbeddedDatabases]:
    """A PostgreSQL and a Redis with data in this directory, which run while the context lasts."""
    async with embedded_postgres(directory) as postgres, embedded_redis(directory) as redis:
        yield EmbeddedDatabases(postgres, redis)
