"""A log of writes inside PostgreSQL: who wrote what in which term, and a gate at which a write can be made to wait.

Each coordinator logs in under a name of its own, so the database itself can say whether a write came from the one who
led. The epoch that a trigger reads is exact: a fenced write holds it until it commits.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from codehub.domain.workspace import Operation
from tests.eventually import eventually

COORDINATORS = ("alpha", "beta", "gamma")
OWNER = "codehub"
GATE = 7_170_717

ROLES = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN
        CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{password}';
    END IF;
END $$
"""

WRITE_LOG = f"""
CREATE TABLE write_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who text NOT NULL DEFAULT session_user,
    epoch bigint NOT NULL,
    what text NOT NULL,
    silent_seconds float8
);

CREATE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO write_log (epoch, what) SELECT epoch, TG_TABLE_NAME || ' ' || TG_OP FROM leadership;
    RETURN NULL;
END $$;

CREATE FUNCTION log_lead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO write_log (at, epoch, what, silent_seconds)
    VALUES (NEW.acquired_at, NEW.epoch, 'lead', extract(epoch FROM NEW.acquired_at - OLD.renewed_at));
    RETURN NULL;
END $$;

CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({GATE});
    RETURN NEW;
END $$;

CREATE TRIGGER write_log AFTER INSERT OR UPDATE OR DELETE ON workspaces FOR EACH ROW EXECUTE FUNCTION log_write();
CREATE TRIGGER write_log AFTER INSERT OR UPDATE OR DELETE ON workspace_events FOR EACH ROW EXECUTE FUNCTION log_write();
CREATE TRIGGER write_log AFTER INSERT OR UPDATE OR DELETE ON archives FOR EACH ROW EXECUTE FUNCTION log_write();
CREATE TRIGGER write_log AFTER UPDATE ON leadership FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch)
    EXECUTE FUNCTION log_lead();
"""

HELD = """
CREATE OR REPLACE TRIGGER gate BEFORE UPDATE ON workspaces FOR EACH ROW
WHEN (OLD.operation = '{operation}' AND session_user <> '{owner}') EXECUTE FUNCTION wait_at_gate()
"""

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1"

LEADS = "SELECT epoch, who, at, silent_seconds FROM write_log WHERE what = 'lead' ORDER BY epoch"

# Of everything that was written, only what came neither from us nor from the leader of that moment.
USURPED = """
SELECT w.who, w.epoch, w.what FROM write_log w
WHERE w.what <> 'lead' AND w.who <> $1
    AND NOT EXISTS (SELECT FROM write_log l WHERE l.what = 'lead' AND l.epoch = w.epoch AND l.who = w.who)
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def install(url: str, password: str) -> None:
    async with connected(url) as connection:
        for name in COORDINATORS:
            await connection.execute(ROLES.format(name=name, password=password))
        await connection.execute(WRITE_LOG)


@dataclass(frozen=True, slots=True)
class Gate:
    connection: "asyncpg.Connection[asyncpg.Record]"

    async def reached(self) -> None:
        """The operation is recorded, its effect may be done, and the next write about it waits here."""
        await eventually(self._somebody_waits)

    async def _somebody_waits(self) -> bool:
        return bool(await self.connection.fetchval(WAITING, GATE))


@asynccontextmanager
async def gate_at(url: str, operation: Operation) -> AsyncIterator[Gate]:
    """Every coordinator's write to a workspace in this operation waits until the context is left."""
    async with connected(url) as connection:
        await connection.execute("SELECT pg_advisory_lock($1::bigint)", GATE)
        await connection.execute(HELD.format(operation=operation, owner=OWNER))
        yield Gate(connection)
