"""The SQL of backup and restore: the catalogue is asked what there is, so that a new table cannot be forgotten."""

# ruff: noqa: S608 - put together from names in the catalogue, quoted by the server itself

from collections.abc import Sequence
from typing import Final

from codehub.adapters.postgres.statements import LEADERSHIP_LOCK, LOCKS

# Generated columns are computed anew; identity columns are copied, and their counters set by hand.
TABLES: Final = """
SELECT c.relname AS name,
    array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = '') AS columns,
    (array_agg(a.attname::text) FILTER (WHERE a.attidentity <> ''))[1] AS counted
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
GROUP BY c.relname ORDER BY c.relname
"""

# A child must come after its parent.
REFERENCES: Final = """
SELECT child.relname AS child, parent.relname AS parent FROM pg_constraint k
JOIN pg_class child ON child.oid = k.conrelid JOIN pg_class parent ON parent.oid = k.confrelid
WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace AND k.conrelid <> k.confrelid
"""

SERVER: Final = "SELECT current_setting('server_version')"

EPOCH: Final = "SELECT epoch FROM leadership"

# No leader has it, and until commit nobody becomes one.
NOBODY_LEADS: Final = f"SELECT pg_try_advisory_xact_lock({LOCKS}, {LEADERSHIP_LOCK})"

# What somebody would miss; the rows that every new database has are not among them.
IN_USE: Final = "SELECT (SELECT count(*) FROM users) AS users, (SELECT count(*) FROM workspaces) AS workspaces"

# Above both: whoever led before the backup or since is fenced out.
NEW_EPOCH: Final = """
UPDATE leadership SET epoch = greatest(epoch, $1) + 1, holder = 'restore', backend_pid = NULL,
    acquired_at = clock_timestamp(), renewed_at = to_timestamp(0)
"""

RESTORED: Final = "UPDATE installation SET backup_at = $1, restored_at = clock_timestamp()"

PATIENT: Final = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '20s'"


def names(tables: Sequence[str]) -> str:
    return ", ".join(quoted(table) for table in tables)


def quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def copied(table: str, columns: Sequence[str]) -> str:
    return f"SELECT {names(columns)} FROM {quoted(table)}"


def locked(tables: Sequence[str]) -> str:
    return f"LOCK TABLE {names(tables)} IN ACCESS EXCLUSIVE MODE"


def emptied(tables: Sequence[str]) -> str:
    return f"TRUNCATE {names(tables)}"


def next_number(table: str, column: str) -> str:
    return f"SELECT coalesce(max({quoted(column)}), 0) + 1 FROM {quoted(table)}"


def count_on(table: str, column: str, number: int) -> str:
    """Lets the column count on from `number`. Not setval, which a rollback would not take back."""
    return f"ALTER TABLE {quoted(table)} ALTER COLUMN {quoted(column)} RESTART WITH {number}"
