"""The SQL of all stores, each statement with the invariant it keeps: workspaces, the ledger, the collector, leadership,
then users, what they prove themselves with, and the audit log. That of backups is in backup.py.

Column lists derive from the domain's values, so that a store cannot name a column that belongs to the other side
(contract 3). Every time is the server's, read by the statement that uses it.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from codehub.domain.credentials import FAILURES_FADE_SECONDS, SEEN_EVERY_SECONDS
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.ledger import LedgerEntry
from codehub.domain.transitions import GIVES_UP_VOLUME
from codehub.domain.workspace import Workspace
from codehub.ports.stores import KEPT_ENTRIES

# ruff: noqa: S105, S608 - put together from names in the code only, values are always parameters; none is a password


FIELDS: Final = tuple(f.name for f in fields(Workspace))
_RENAMED: Final = {"home": "home_ctx"}


def column(field: str) -> str:
    return _RENAMED.get(field, field)


def _selected(alias: str) -> str:
    return ", ".join(f"{alias}.{column(field)} AS {field}" for field in FIELDS)


def _assignments(changed: Sequence[str], first: int) -> str:
    return ", ".join(f"{column(field)} = ${n}" for n, field in enumerate(changed, first))


ROW_COLUMNS: Final = _selected("w")

# ── advisory locks: (our number, which one) ──────────────────────────────────────────────────────────────────────────

LOCKS: Final = 0x0C0DE
LEADERSHIP_LOCK: Final = 1
ADMISSION_LOCK: Final = 2
MIGRATION_LOCK: Final = 3
ACCOUNTS_LOCK: Final = 4

# ── fencing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# The lock lives until commit: a bump of the epoch (the table's key) waits for it, so a write that saw its epoch
# commits before the bump or not at all. It does not stand in the way of the renewal.
EPOCH: Final = "SELECT epoch FROM leadership FOR KEY SHARE"

# Asked after the locks are held, so that it is later than everything the transaction can see.
NOW: Final = "SELECT clock_timestamp()"

# ── people and timers ────────────────────────────────────────────────────────────────────────────────────────────────

# Until commit, all admissions of the installation stand in one line: the slots counted next cannot be stale.
ADMISSION: Final = f"SELECT pg_advisory_xact_lock({LOCKS}, {ADMISSION_LOCK})"

# $1 the workspace that asks, which does not count itself; $2 its owner. The clear cases: there may be thousands.
SLOTS: Final = """
SELECT count(*) AS total, coalesce(array_agg(name ORDER BY name) FILTER (WHERE owner_id = $2), '{}') AS mine
FROM workspaces WHERE slot = 'held' AND id <> $1
"""

# $1 as above. Those in ERROR that want to run: the domain decides on each.
PERHAPS_SLOTS: Final = f"SELECT {ROW_COLUMNS} FROM workspaces w WHERE w.slot = 'perhaps' AND w.id <> $1"

# $1 and $2 as above. Living ones, running or not.
OWNED: Final = "SELECT count(*) FROM workspaces WHERE owner_id = $2 AND deleted_at IS NULL AND id <> $1"

# $1 the owner. Read with the slots, under the same lock.
OWN_LIMIT: Final = "SELECT max_running FROM users WHERE id::text = $1"

GET: Final = f"SELECT {ROW_COLUMNS} FROM workspaces w WHERE w.id = $1"

# Nobody writes this row between the decision and its commit.
GET_LOCKED: Final = f"{GET} FOR UPDATE"

INSERT: Final = (
    f"INSERT INTO workspaces AS w ({', '.join(column(field) for field in FIELDS)}) "
    f"VALUES ({', '.join(f'${n}' for n in range(1, len(FIELDS) + 1))}) RETURNING {ROW_COLUMNS}"
)


def change(changed: Sequence[str]) -> str:
    """$1 the id, locked before; then the changed fields."""
    return f"UPDATE workspaces w SET {_assignments(changed, 2)} WHERE w.id = $1 RETURNING {ROW_COLUMNS}"


# Never moves last_access_at back. Rows are locked in the order of ids, as every statement on many rows does.
TOUCH: Final = """
WITH accessed AS (SELECT * FROM unnest($1::uuid[], $2::timestamptz[]) AS t (id, at)),
later AS MATERIALIZED (
    SELECT w.id, a.at FROM workspaces w JOIN accessed a USING (id)
    WHERE w.last_access_at IS NULL OR w.last_access_at < a.at ORDER BY w.id FOR UPDATE OF w
)
UPDATE workspaces w SET last_access_at = greatest(w.last_access_at, later.at) FROM later WHERE w.id = later.id
"""

# One lease per holder; the last word counts. The row is written too, so that its version grows.
HOLD: Final = """
WITH held AS (UPDATE workspaces SET id = id WHERE id = $1 RETURNING id)
INSERT INTO leases (workspace_id, holder, until) SELECT id, $2, $3 FROM held
ON CONFLICT (workspace_id, holder) DO UPDATE SET until = excluded.until
RETURNING workspace_id
"""

# Only what still holds, by the database's clock.
LEASES: Final = "SELECT workspace_id, max(until) AS until FROM leases WHERE until > clock_timestamp() GROUP BY 1"

RELEASE_LEASES: Final = "DELETE FROM leases WHERE workspace_id = $1"

# The clock is read after the snapshot: no row's time is later than `now`. One row without id when there is none.
IDLE_CANDIDATES: Final = f"""
SELECT clock_timestamp() AS now, {ROW_COLUMNS} FROM (SELECT) AS once LEFT JOIN workspaces w
ON w.at_rest AND w.phase IN ('RUNNING', 'STANDBY') AND w.deleted_at IS NULL
"""

# ── the controller ───────────────────────────────────────────────────────────────────────────────────────────────────

# A deleted row stays in sight until nothing is left to do for it. Two arrays, not a row for each: a pass over settled
# workspaces is little more than this, and a hundred thousand rows cost the client twice as much.
VERSIONS: Final = """
SELECT array_agg(id) AS ids, array_agg(version) AS versions FROM workspaces WHERE deleted_at IS NULL OR NOT at_rest
"""

ACTIVE: Final = "SELECT id FROM workspaces WHERE NOT at_rest"

# As IDLE_CANDIDATES: `now` is later than every row.
LOAD: Final = f"""
SELECT clock_timestamp() AS now, {ROW_COLUMNS} FROM (SELECT) AS once LEFT JOIN workspaces w ON w.id = ANY($1::uuid[])
"""

_OURS: Final = "w.id = $1 AND w.operation = $2 AND w.op_id IS NOT DISTINCT FROM $3"

# Zero rows = another operation owns the row. Else it is ours until commit.
STILL_OURS: Final = f"SELECT {ROW_COLUMNS} FROM workspaces w WHERE {_OURS} FOR UPDATE"


def record(changed: Sequence[str]) -> str:
    """$1–$3 the guard, $4… the changed fields. The clock is read after the write: entries of one row are in order."""
    assignments = _assignments(changed, 4)
    return f"UPDATE workspaces w SET {assignments} WHERE {_OURS} RETURNING clock_timestamp() AS now, {ROW_COLUMNS}"


def record_observations(changed: Sequence[str]) -> str:
    """$1 the rows as JSON. A row that was written since it was loaded (by version) is left as it is."""
    assignments = ", ".join(f"{column(field)} = seen.{column(field)}" for field in changed)
    return f"""
    WITH seen AS MATERIALIZED (SELECT * FROM jsonb_populate_recordset(NULL::workspaces, $1::jsonb)),
    unchanged AS MATERIALIZED (
        SELECT w.id FROM workspaces w JOIN seen USING (id) WHERE w.version = seen.version ORDER BY w.id FOR UPDATE OF w
    )
    UPDATE workspaces w SET {assignments} FROM seen JOIN unchanged USING (id) WHERE w.id = seen.id RETURNING w.id
    """


# One CAS: nobody can want the volume back between the look at the desired state and the mark that it goes.
PASS_SAFE_POINT: Final = f"""
UPDATE workspaces w SET home_ctx = w.home_ctx || '{{"deleting_volume": true, "live": false}}'
WHERE {_OURS} AND (
    w.desired_state IN ({", ".join(f"'{state}'" for state in GIVES_UP_VOLUME)})
    OR w.restore_requested_at > coalesce(w.restore_handled_at, '-infinity')
) RETURNING {ROW_COLUMNS}
"""

_POINT: Final = ", ".join(f.name for f in fields(RestorePoint))

# The proof of an archive is written once.
INSERT_RESTORE_POINT: Final = (
    f"INSERT INTO archives ({_POINT}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (key) DO NOTHING"
)

RESTORE_POINTS: Final = f"SELECT {_POINT} FROM archives WHERE workspace_id = $1 ORDER BY created_at DESC, op_id DESC"

# The undo window counts from the first release.
RELEASE_RESTORE_POINTS: Final = (
    "UPDATE archives SET released_at = clock_timestamp() WHERE workspace_id = $1 AND released_at IS NULL"
)

# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────

ENTRY_FIELDS: Final = tuple(f.name for f in fields(LedgerEntry))
ENTRY_COLUMNS: Final = ", ".join(ENTRY_FIELDS)

# In the transaction of the change it explains, in the order given.
APPEND: Final = f"""
INSERT INTO workspace_events ({ENTRY_COLUMNS}) SELECT {ENTRY_COLUMNS} FROM unnest(
    $1::timestamptz[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[]
) WITH ORDINALITY AS t ({ENTRY_COLUMNS}, position) ORDER BY position
"""

ENTRIES: Final = f"SELECT {ENTRY_COLUMNS} FROM workspace_events WHERE workspace_id = $1 ORDER BY id DESC LIMIT $2"

# $1 seconds, $2 the most at once. The newest of each workspace stay; the trigger that forbids rewriting lets rows go.
FORGET_ENTRIES: Final = f"""
WITH gone AS (DELETE FROM workspace_events WHERE id IN (
    SELECT e.id FROM workspace_events e WHERE e.at < now() - make_interval(secs => $1) AND EXISTS (
        SELECT FROM workspace_events newer WHERE newer.workspace_id = e.workspace_id AND newer.id > e.id
        OFFSET {KEPT_ENTRIES - 1}
    ) LIMIT $2) RETURNING 1)
SELECT count(*) FROM gone
"""

# ── what people read: every list has an order that no write changes, so that pages neither skip nor repeat ─────────

# An owner is named by text; a row whose owner has no account (an import, a test) still has one to show.
_OWNED: Final = f"""
SELECT {ROW_COLUMNS}, coalesce(u.username, w.owner_id) AS owner, t.image_ref AS template_image
FROM workspaces w LEFT JOIN users u ON u.id::text = w.owner_id LEFT JOIN templates t ON t.name = w.template
"""

OWNED_BY_ID: Final = f"{_OWNED} WHERE w.id = $1"

OWNED_BY_SLUG: Final = f"{_OWNED} WHERE w.slug = $1 AND w.deleted_at IS NULL"

OWNED_BY_IDS: Final = f"{_OWNED} WHERE w.id = ANY($1::uuid[])"

# $1 owner, $2 text for ILIKE, $3 phase, $4 error reason: null = any. $5 deleted. ($6, $7) the last one seen.
OWNED_PAGE: Final = f"""
{_OWNED} WHERE (w.deleted_at IS NOT NULL) = $5
    AND ($1::text IS NULL OR w.owner_id = $1)
    AND ($2::text IS NULL OR w.name ILIKE $2 OR w.description ILIKE $2)
    AND ($3::text IS NULL OR w.phase = $3)
    AND ($4::text IS NULL OR w.error_reason = $4)
    AND ($6::timestamptz IS NULL OR (w.created_at, w.id) < ($6, $7::uuid))
ORDER BY w.created_at DESC, w.id DESC LIMIT $8
"""

OWNED_ALL: Final = f"""
{_OWNED} WHERE w.deleted_at IS NULL AND ($1::text IS NULL OR w.owner_id = $1) ORDER BY w.created_at DESC, w.id DESC
"""

SLOT_HOLDERS: Final = f"SELECT {ROW_COLUMNS} FROM workspaces w WHERE w.slot <> 'free' ORDER BY w.created_at, w.id"

# $3: null = every kind.
ENTRIES_PAGE: Final = f"""
SELECT id AS number, {ENTRY_COLUMNS} FROM workspace_events
WHERE workspace_id = $1 AND ($2::bigint IS NULL OR id < $2) AND ($3::text[] IS NULL OR kind = ANY($3))
ORDER BY id DESC LIMIT $4
"""

COUNT_RUNNING: Final = "SELECT count(*) FROM workspaces WHERE phase = 'RUNNING' AND deleted_at IS NULL"

# Oldest first. A day's ledger is read along its index on time.
DAY_ENTRIES: Final = f"""
SELECT {ENTRY_COLUMNS} FROM workspace_events WHERE at > $1 AND (
    (kind = 'phase' AND (before = 'RUNNING' OR after = 'RUNNING')) OR (kind = 'operation_began' AND after = 'STARTING')
) ORDER BY id
"""

DAY_ARCHIVES: Final = "SELECT created_at, bytes FROM archives WHERE created_at > $1"

# $3: how long minutes are kept. Whoever adds to one also clears away what is too old, so nobody else has to.
ADD_TRAFFIC: Final = """
WITH gone AS (DELETE FROM traffic WHERE minute <= clock_timestamp() - $3::interval)
INSERT INTO traffic (minute, requests, socket_seconds) VALUES (date_trunc('minute', clock_timestamp()), $1, $2)
ON CONFLICT (minute) DO UPDATE SET
    requests = traffic.requests + excluded.requests, socket_seconds = traffic.socket_seconds + excluded.socket_seconds
"""

DAY_TRAFFIC: Final = "SELECT minute, requests, socket_seconds FROM traffic WHERE minute > $1 ORDER BY minute"

# One moment for all of a batch; what is older than an hour goes with it.
RECORD_USAGE: Final = """
WITH gone AS (DELETE FROM workspace_usage WHERE at <= now() - $10::interval)
INSERT INTO workspace_usage (
    workspace_id, cpu, cpu_limit, memory_bytes, memory_limit_bytes,
    disk_used_bytes, disk_limit_bytes, disk_total_bytes, disk_free_bytes, at
)
SELECT s.*, now() FROM unnest(
    $1::uuid[], $2::real[], $3::real[], $4::bigint[], $5::bigint[],
    $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[]
) AS s
"""

_USAGE: Final = """at, cpu, cpu_limit, memory_bytes, memory_limit_bytes,
    disk_used_bytes, disk_limit_bytes, disk_total_bytes, disk_free_bytes"""

USAGE_OF: Final = f"""
SELECT {_USAGE} FROM workspace_usage WHERE workspace_id = $1 AND at > clock_timestamp() - $2::interval ORDER BY at
"""

# One look into the index per workspace, however many samples each has.
NEWEST_USAGE: Final = f"""
SELECT w.id, u.* FROM unnest($1::uuid[]) AS w (id) CROSS JOIN LATERAL (
    SELECT {_USAGE} FROM workspace_usage
    WHERE workspace_id = w.id AND at > clock_timestamp() - $2::interval ORDER BY at DESC LIMIT 1
) AS u
"""

LEASE_UNTIL: Final = "SELECT max(until) FROM leases WHERE workspace_id = $1 AND until > clock_timestamp()"

# ── the collector: all in one snapshot ───────────────────────────────────────────────────────────────────────────────

UNPURGED: Final = f"SELECT {ROW_COLUMNS} FROM workspaces w WHERE w.purged_at IS NULL ORDER BY w.created_at, w.id"

# A workspace's row is never removed: an id that is in neither list was lost.
PURGED: Final = "SELECT id FROM workspaces WHERE purged_at IS NOT NULL"

ALL_RESTORE_POINTS: Final = f"SELECT {_POINT} FROM archives ORDER BY created_at DESC, op_id DESC"

NEWEST_ENTRY: Final = "SELECT at FROM workspace_events ORDER BY id DESC LIMIT 1"

# Asked for few, and only of what no row and no restore point knows: no index is kept for it.
RECORDED_OPERATIONS: Final = "SELECT DISTINCT op_id FROM workspace_events WHERE op_id = ANY($1::uuid[])"

# Purged ones too: an old installation stays old.
OLDEST_WORKSPACE: Final = "SELECT min(created_at) FROM workspaces"

MARKS: Final = "SELECT kind, name, workspace_id, reason, marked_at FROM gc_marks ORDER BY kind, name"

# $1, $2 the kinds and names that are garbage now. A mark that is interrupted begins anew.
UNMARK_OTHERS: Final = """
DELETE FROM gc_marks WHERE (kind, name) NOT IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""

# The first mark's time counts, whoever leads.
MARK: Final = """
INSERT INTO gc_marks (kind, name, workspace_id, reason)
SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[]) ON CONFLICT (kind, name) DO NOTHING
"""

UNMARK: Final = "DELETE FROM gc_marks WHERE kind = $1 AND name = $2"

# With the workspace's row locked: whoever chooses a restore point locks it too.
FORGET_RESTORE_POINT: Final = "DELETE FROM archives WHERE key = $1"

ASK_COLLECTION: Final = "INSERT INTO gc_requests (asked_by, waived) VALUES ($1, $2::text[]) RETURNING id"

_REQUEST: Final = "id, asked_by, waived, report"

COLLECTION_REQUEST: Final = f"SELECT {_REQUEST} FROM gc_requests WHERE id = $1"

# $1 how long a request lives.
PENDING_COLLECTION: Final = f"""
SELECT {_REQUEST} FROM gc_requests WHERE finished_at IS NULL AND asked_at > clock_timestamp() - $1::interval
ORDER BY id LIMIT 1
"""

FINISH_COLLECTION: Final = (
    "UPDATE gc_requests SET finished_at = clock_timestamp(), report = $2::jsonb WHERE id = $1 AND finished_at IS NULL"
)

# Nothing, unless this database came out of a backup.
RESTORED: Final = "SELECT backup_at, restored_at FROM installation WHERE restored_at IS NOT NULL"

# ── leadership ───────────────────────────────────────────────────────────────────────────────────────────────────────

# Lock and bump are one statement: nobody holds the lock without an epoch, wherever the client dies. $2: a holder who
# did not resign gets that long to see that it no longer leads, even if its session has ended. A renewal from the
# future is no renewal: somebody set the clock.
TAKE_LEAD: Final = f"""
UPDATE leadership SET epoch = epoch + 1, holder = $1, backend_pid = pg_backend_pid(),
    acquired_at = clock_timestamp(), renewed_at = clock_timestamp()
WHERE CASE
    WHEN backend_pid IS NULL OR clock_timestamp() - renewed_at NOT BETWEEN interval '-1 s' AND $2
    THEN pg_try_advisory_lock({LOCKS}, {LEADERSHIP_LOCK}) ELSE false
END
RETURNING epoch
"""

# Ends the holder's backend only if it is silent for $1 and really has the lock: pids are used again.
DEPOSE: Final = f"""
SELECT coalesce(bool_or(pg_terminate_backend(held.pid, 500)), false)
FROM leadership JOIN pg_locks held ON held.pid = leadership.backend_pid
WHERE clock_timestamp() - renewed_at NOT BETWEEN interval '-1 s' AND $1
    AND held.locktype = 'advisory' AND held.granted AND held.classid = {LOCKS} AND held.objid = {LEADERSHIP_LOCK}
    AND held.objsubid = 2 AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# Zero rows = the term is over.
RENEW: Final = "UPDATE leadership SET renewed_at = clock_timestamp() WHERE epoch = $1 RETURNING epoch"

# Says that nobody waits for us to notice: the next leader may begin at once.
RESIGN: Final = "UPDATE leadership SET backend_pid = NULL WHERE epoch = $1"

LEADER: Final = """
SELECT epoch, holder, renewed_at, extract(epoch FROM clock_timestamp() - renewed_at)::float8 AS age_seconds
FROM leadership WHERE backend_pid IS NOT NULL
"""

# ── the installation ─────────────────────────────────────────────────────────────────────────────────────────────────

INSTALLATION: Final = "SELECT id FROM installation"

BACKEND_IDENTITIES: Final = "SELECT backend, identity, since FROM backend_identities"

BACKEND_IDENTITY: Final = "SELECT identity FROM backend_identities WHERE backend = $1"

# The first one stays, until an operator says that it was moved.
ADOPT_BACKEND: Final = """
INSERT INTO backend_identities (backend, identity, since) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (backend) DO NOTHING
"""

FORGET_BACKEND: Final = "DELETE FROM backend_identities WHERE backend = $1 RETURNING backend"

SCHEMA_REVISION: Final = "SELECT version_num FROM alembic_version"

HAS_SCHEMA_REVISION: Final = "SELECT to_regclass('alembic_version') IS NOT NULL"

# As Alembic made it: databases of the first releases have it, and every later one is the same.
CREATE_SCHEMA_REVISION: Final = """
CREATE TABLE IF NOT EXISTS alembic_version (
    version_num varchar(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))
"""

FIRST_SCHEMA_REVISION: Final = "INSERT INTO alembic_version VALUES ($1)"

SET_SCHEMA_REVISION: Final = "UPDATE alembic_version SET version_num = $1"

# Until commit: two migrations at once run one after the other, and the second finds nothing to do.
MIGRATING: Final = f"SELECT pg_advisory_xact_lock({LOCKS}, {MIGRATION_LOCK})"

# ── users ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _columns(alias: str, *names: str) -> str:
    return ", ".join(f"{alias}.{name} AS {alias}_{name}" for name in names)


_PLAIN: Final = ("id", "username", "role", "created_at", "disabled_at", "max_running", "issuer", "subject")
_USER: Final = f"{_columns('u', *_PLAIN)}, u.password_hash IS NOT NULL AS u_has_password"
_SESSION: Final = _columns("s", "token_hash", "user_id", "created_at", "last_seen_at", "expires_at", "address", "agent")
_TOKEN: Final = _columns(
    "t", "id", "user_id", "name", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at"
)
_LONG_UNSEEN: Final = f"clock_timestamp() - interval '{SEEN_EVERY_SECONDS} s'"
_CLOCK: Final = "(SELECT clock_timestamp() AS now) AS clock"

# Until commit: whoever counts users or admins counts what nobody else is changing.
ACCOUNTS: Final = f"SELECT pg_advisory_xact_lock({LOCKS}, {ACCOUNTS_LOCK})"

CREATE_USER: Final = f"""
INSERT INTO users AS u (id, username, role, password_hash, issuer, subject, max_running)
VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING {_USER}
"""

ANY_USER: Final = "SELECT EXISTS (SELECT FROM users)"

USER: Final = f"SELECT {_USER} FROM users u WHERE u.id = $1"

USER_OF_IDENTITY: Final = f"SELECT {_USER} FROM users u WHERE u.issuer = $1 AND u.subject = $2"

WITH_PASSWORD: Final = f'SELECT {_USER}, u.password_hash FROM users u WHERE lower(u.username) COLLATE "C" = $1'

USERS: Final = f"""
SELECT {_USER} FROM users u WHERE lower(u.username) COLLATE "C" > $1 ORDER BY lower(u.username) COLLATE "C" LIMIT $2
"""

USER_LOCKED: Final = f"SELECT {_USER}, u.password_hash FROM users u WHERE u.id = $1 FOR UPDATE"

# An enabled user stays enabled, and keeps the password whose hash is $2, until commit. NULL: any, or none.
ENABLED_USER: Final = f"""
SELECT {_USER} FROM users u
WHERE u.id = $1 AND u.disabled_at IS NULL AND ($2::text IS NULL OR u.password_hash = $2) FOR SHARE
"""

OTHER_ADMINS: Final = "SELECT count(*) FROM users WHERE role = 'admin' AND disabled_at IS NULL AND id <> $1"

CHANGE_USER: Final = f"""
UPDATE users u SET role = $2, disabled_at = $3, max_running = $4, updated_at = clock_timestamp()
WHERE u.id = $1 RETURNING {_USER}
"""

SET_PASSWORD: Final = "UPDATE users SET password_hash = $2, updated_at = clock_timestamp() WHERE id = $1"

# A password that was changed meanwhile stays.
REHASH_PASSWORD: Final = "UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2"

# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# $3: seconds until it ends whatever happens. $6: when its person proved who they are; NULL: now. $7: as in SESSION.
OPEN_SESSION: Final = f"""
INSERT INTO sessions AS s (token_hash, user_id, created_at, last_seen_at, expires_at, address, agent, proven_at)
SELECT $1, $2, now, now, now + make_interval(secs => $3), $4, $5, least(coalesce($6, now), now) FROM {_CLOCK}
RETURNING {_SESSION}, s.proven_at > clock_timestamp() - make_interval(secs => $7) AS s_is_fresh
"""

_LIVES: Final = "s.expires_at > clock_timestamp() AND s.last_seen_at > clock_timestamp() - make_interval(secs => $2)"

# $2: seconds of idleness that end it. $3: seconds for which its person counts as freshly proven.
SESSION: Final = f"""
SELECT {_SESSION}, {_USER}, s.last_seen_at < {_LONG_UNSEEN} AS long_unseen,
    s.proven_at > clock_timestamp() - make_interval(secs => $3) AS s_is_fresh
FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.token_hash = $1 AND {_LIVES} AND u.disabled_at IS NULL
"""

# The user's row is locked as by ENABLED_USER, so that a new password and this never pass each other. $2 as in _LIVES.
PROVE_SESSION: Final = f"""
UPDATE sessions s SET proven_at = least(coalesce($3, clock_timestamp()), clock_timestamp())
WHERE s.token_hash = $1 AND {_LIVES} RETURNING s.token_hash
"""

SESSION_OF_USER: Final = "SELECT user_id FROM sessions WHERE token_hash = $1"

# Of many requests at once, one writes.
SEE_SESSION: Final = f"""
UPDATE sessions SET last_seen_at = clock_timestamp() WHERE token_hash = $1 AND last_seen_at < {_LONG_UNSEEN}
"""

SESSIONS: Final = f"""
SELECT {_SESSION} FROM sessions s WHERE s.user_id = $1 AND {_LIVES} ORDER BY s.created_at DESC, s.token_hash
"""

END_SESSION: Final = "DELETE FROM sessions WHERE user_id = $1 AND token_hash = $2 RETURNING token_hash"

END_SESSIONS: Final = "DELETE FROM sessions WHERE user_id = $1 AND token_hash IS DISTINCT FROM $2 RETURNING token_hash"

# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────

COUNT_TOKENS: Final = "SELECT count(*) FROM api_tokens WHERE user_id = $1 AND revoked_at IS NULL"

# $6 seconds; NULL: it has no end.
CREATE_TOKEN: Final = f"""
INSERT INTO api_tokens AS t (id, user_id, name, token_hash, scopes, created_at, expires_at)
SELECT $1, $2, $3, $4, $5::text[], now, now + make_interval(secs => $6)
FROM {_CLOCK} RETURNING {_TOKEN}
"""

_TOKEN_LIVES: Final = "t.revoked_at IS NULL AND coalesce(t.expires_at, 'infinity') > clock_timestamp()"

TOKEN: Final = f"""
SELECT {_TOKEN}, {_USER}, coalesce(t.last_used_at, '-infinity') < {_LONG_UNSEEN} AS long_unseen
FROM api_tokens t JOIN users u ON u.id = t.user_id
WHERE t.token_hash = $1 AND {_TOKEN_LIVES} AND u.disabled_at IS NULL
"""

# Of many requests at once, one writes.
USE_TOKEN: Final = f"""
UPDATE api_tokens SET last_used_at = clock_timestamp()
WHERE id = $1 AND coalesce(last_used_at, '-infinity') < {_LONG_UNSEEN}
"""

TOKENS: Final = f"""
SELECT {_TOKEN} FROM api_tokens t WHERE t.user_id = $1 AND t.revoked_at IS NULL ORDER BY t.created_at DESC, t.id
"""

REVOKE_TOKEN: Final = """
UPDATE api_tokens SET revoked_at = clock_timestamp() WHERE user_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING name
"""

REVOKE_TOKENS: Final = """
UPDATE api_tokens SET revoked_at = clock_timestamp() WHERE user_id = $1 AND revoked_at IS NULL RETURNING id
"""

# ── registered SSH keys ──────────────────────────────────────────────────────────────────────────────────────────────

_AUTHORIZED_KEY: Final = "k.id, k.user_id, k.name, k.algorithm, k.data, k.comment, k.created_at, k.last_used_at"

# The user's row is locked, so that of many keys that are added at once each counts the others.
COUNT_AUTHORIZED_KEYS: Final = "SELECT count(*) FROM authorized_keys WHERE user_id = $1"

ADD_AUTHORIZED_KEY: Final = f"""
INSERT INTO authorized_keys AS k (id, user_id, name, algorithm, data, comment, fingerprint, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp()) RETURNING {_AUTHORIZED_KEY}
"""

AUTHORIZED_KEYS: Final = f"""
SELECT {_AUTHORIZED_KEY} FROM authorized_keys k WHERE k.user_id = $1 ORDER BY k.created_at DESC, k.id
"""

REMOVE_AUTHORIZED_KEY: Final = """
DELETE FROM authorized_keys WHERE user_id = $1 AND id = $2 RETURNING name, fingerprint
"""

FIND_AUTHORIZED_KEY: Final = f"""
SELECT {_AUTHORIZED_KEY}, {_USER} FROM authorized_keys k JOIN users u ON u.id = k.user_id
WHERE k.fingerprint = $1 AND u.disabled_at IS NULL
"""

# Of many connections at once, one writes.
USE_AUTHORIZED_KEY: Final = f"""
UPDATE authorized_keys SET last_used_at = clock_timestamp()
WHERE id = $1 AND coalesce(last_used_at, '-infinity') < {_LONG_UNSEEN}
"""

# ── what lives for minutes ───────────────────────────────────────────────────────────────────────────────────────────

ISSUE_TICKET: Final = f"""
INSERT INTO tickets (hash, user_id, session_hash, token_id, workspace_id, port, wakes, created_at, expires_at)
SELECT $1, $2, $3, $4, $5, $6, $7, now, now + make_interval(secs => $8) FROM {_CLOCK}
"""


def _still_good(user_id: str, session_hash: str, token_id: str) -> str:
    """Condition: who made a ticket may still come in, neither disabled nor signed out, nor is the token revoked."""
    return f"""
    EXISTS (SELECT FROM users u WHERE u.id = {user_id} AND u.disabled_at IS NULL)
    AND ({session_hash} IS NULL OR EXISTS (SELECT FROM sessions s WHERE s.token_hash = {session_hash}
        AND s.user_id = {user_id} AND s.expires_at > clock_timestamp()))
    AND ({token_id} IS NULL OR EXISTS (SELECT FROM api_tokens t WHERE t.id = {token_id}
        AND t.user_id = {user_id} AND {_TOKEN_LIVES}))
    """


# The row's lock makes it once: the second comer finds used_at set.
REDEEM_TICKET: Final = f"""
UPDATE tickets k SET used_at = clock_timestamp()
WHERE k.hash = $1 AND k.used_at IS NULL AND k.expires_at > clock_timestamp()
    AND {_still_good("k.user_id", "k.session_hash", "k.token_id")}
RETURNING k.user_id, k.session_hash, k.token_id, k.workspace_id, k.port, k.wakes
"""

# Nothing comes back if the ticket's maker is no more.
OPEN_VISIT: Final = f"""
INSERT INTO visits (hash, user_id, session_hash, token_id, workspace_id, port, created_at, expires_at)
SELECT $1, $2, $3, $4, $5, $6, now, now + make_interval(secs => $7) FROM {_CLOCK}
WHERE {_still_good("$2::uuid", "$3::bytea", "$4::uuid")} RETURNING hash
"""

# $2: seconds of idleness that end a session. The token's scopes are read each time: a visit is worth no more than it.
VISIT: Final = f"""
SELECT v.session_hash, v.token_id, v.workspace_id, v.port, t.scopes, {_USER},
    s.last_seen_at < {_LONG_UNSEEN} AS session_long_unseen,
    t.id IS NOT NULL AND coalesce(t.last_used_at, '-infinity') < {_LONG_UNSEEN} AS token_long_unseen
FROM visits v JOIN users u ON u.id = v.user_id
    LEFT JOIN sessions s ON s.token_hash = v.session_hash AND s.user_id = v.user_id
    LEFT JOIN api_tokens t ON t.id = v.token_id AND t.user_id = v.user_id
WHERE v.hash = $1 AND v.expires_at > clock_timestamp() AND u.disabled_at IS NULL
    AND (v.session_hash IS NULL OR ({_LIVES})) AND (v.token_id IS NULL OR (t.id IS NOT NULL AND {_TOKEN_LIVES}))
"""

BEGIN_PROVIDER_SIGN_IN: Final = f"""
INSERT INTO provider_sign_ins (hash, next_path, created_at, expires_at)
SELECT $1, $2, now, now + make_interval(secs => $3) FROM {_CLOCK}
"""

# Deleted, so once.
FINISH_PROVIDER_SIGN_IN: Final = """
DELETE FROM provider_sign_ins WHERE hash = $1 RETURNING next_path, expires_at > clock_timestamp() AS in_time
"""

# Locks each key's row until commit, in the order of keys, whether it was there or not.
LOCK_FAILURES: Final = """
INSERT INTO login_failures AS f (key, failures, at) SELECT key, 0, clock_timestamp() FROM unnest($1::text[]) AS key
ORDER BY key ON CONFLICT (key) DO UPDATE SET key = excluded.key
RETURNING f.key, f.failures, extract(epoch FROM clock_timestamp() - f.at)::float8 AS age_seconds
"""

# Those that are there, in the same order: whoever is done waits for whoever begins, never both for each other.
LOCK_KNOWN_FAILURES: Final = "SELECT FROM login_failures WHERE key = ANY($1::text[]) ORDER BY key FOR UPDATE"

# Failures that are long past no longer count.
COUNT_FAILURES: Final = f"""
UPDATE login_failures SET at = clock_timestamp(), failures = 1 + CASE
    WHEN at > clock_timestamp() - interval '{FAILURES_FADE_SECONDS} s' THEN failures ELSE 0 END
WHERE key = ANY($1::text[])
"""

CLEAR_FAILURES: Final = "UPDATE login_failures SET failures = 0 WHERE key = $1"

GIVE_BACK_TRY: Final = "UPDATE login_failures SET failures = greatest(failures - 1, 0) WHERE key = ANY($1::text[])"

# $1: seconds of idleness that end a session.
FORGET_EXPIRED: Final = f"""
WITH old_sessions AS (DELETE FROM sessions WHERE expires_at <= clock_timestamp()
        OR last_seen_at <= clock_timestamp() - make_interval(secs => $1) RETURNING 1),
    old_tickets AS (DELETE FROM tickets k WHERE expires_at <= clock_timestamp() RETURNING 1),
    old_visits AS (DELETE FROM visits WHERE expires_at <= clock_timestamp() RETURNING 1),
    old_sign_ins AS (DELETE FROM provider_sign_ins WHERE expires_at <= clock_timestamp() RETURNING 1),
    old_failures AS (DELETE FROM login_failures
        WHERE at <= clock_timestamp() - interval '{FAILURES_FADE_SECONDS} s' RETURNING 1)
SELECT (SELECT count(*) FROM old_sessions) + (SELECT count(*) FROM old_tickets)
    + (SELECT count(*) FROM old_visits) + (SELECT count(*) FROM old_sign_ins) + (SELECT count(*) FROM old_failures)
"""

# ── what is written down ─────────────────────────────────────────────────────────────────────────────────────────────

# In the transaction of the change it tells of.
AUDIT: Final = "INSERT INTO audit (actor, action, subject, address, details) VALUES ($1, $2, $3, $4, $5)"

AUDIT_ENTRIES: Final = """
SELECT id, at, actor, action, subject, details, address FROM audit
WHERE id < coalesce($2, 9223372036854775807) AND ($3::text IS NULL OR actor = $3)
    AND ($4::text IS NULL OR subject = $4) ORDER BY id DESC LIMIT $1
"""

# $1 seconds, $2 the most at once, as in every statement that forgets.
FORGET_AUDIT: Final = """
WITH gone AS (DELETE FROM audit WHERE id IN (
    SELECT id FROM audit WHERE at < now() - make_interval(secs => $1) LIMIT $2) RETURNING 1)
SELECT count(*) FROM gone
"""

# ── secrets and profiles ─────────────────────────────────────────────────────────────────────────────────────────────

# Locked, so that of many secrets that are put at once each counts the others. The subject is the audit log's.
SECRETS_OF_USER: Final = "SELECT 'user:' || username AS subject FROM users WHERE id = $1::uuid FOR NO KEY UPDATE"

SECRETS_OF_TEMPLATE: Final = "SELECT 'template:' || name AS subject FROM templates WHERE name = $1 FOR NO KEY UPDATE"

_SECRET: Final = "owner, kind, name, public, key_id, sealed, updated_at"

_SECRET_ORDER: Final = 'owner COLLATE "C", kind COLLATE "C", name COLLATE "C"'

SECRETS: Final = f"SELECT {_SECRET} FROM secrets WHERE owner = ANY($1::text[]) ORDER BY {_SECRET_ORDER}"

# What the owner has besides the secret that is put: how many, how many SSH keys, how many bytes.
SECRETS_BESIDES: Final = """
SELECT count(*) AS secrets, count(*) FILTER (WHERE kind = 'ssh_key') AS ssh_keys,
    coalesce(sum(octet_length(sealed)), 0)::bigint AS bytes
FROM secrets WHERE owner = $1 AND (kind, name) <> ($2, $3)
"""

PUT_SECRET: Final = f"""
INSERT INTO secrets (user_id, template, kind, name, public, key_id, sealed, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp())
ON CONFLICT (owner, kind, name) DO UPDATE SET public = excluded.public, key_id = excluded.key_id,
    sealed = excluded.sealed, updated_at = excluded.updated_at
RETURNING {_SECRET}
"""

DELETE_SECRET: Final = "DELETE FROM secrets WHERE owner = $1 AND kind = $2 AND name = $3 RETURNING name"

# $1 to $3: after which one; NULL: from the first. $4: not those of this key; NULL: all.
SECRETS_PAGE: Final = f"""
SELECT {_SECRET} FROM secrets
WHERE ($1::text IS NULL OR (owner COLLATE "C", kind COLLATE "C", name COLLATE "C") > ($1, $2, $3))
    AND ($4::text IS NULL OR key_id <> $4) ORDER BY {_SECRET_ORDER} LIMIT $5
"""

# A value that was put meanwhile stays.
RESEAL: Final = """
UPDATE secrets SET key_id = $6, sealed = $7
WHERE owner = $1 AND kind = $2 AND name = $3 AND public = $4 AND sealed = $5 RETURNING name
"""

SECRETS_BY_KEY: Final = "SELECT key_id, count(*) AS secrets FROM secrets GROUP BY key_id"

USE_RECORDED: Final = """
SELECT EXISTS (SELECT FROM audit WHERE subject = $1 AND action = $2 AND details ->> 'op_id' = $3)
"""

_PROFILE: Final = "git_name, git_email, dotfiles_url, dotfiles_command"

PROFILE: Final = f"SELECT {_PROFILE} FROM profiles WHERE user_id = $1"

SET_GIT_IDENTITY: Final = """
INSERT INTO profiles (user_id, git_name, git_email) VALUES ($1, $2, $3)
ON CONFLICT (user_id) DO UPDATE SET git_name = excluded.git_name, git_email = excluded.git_email
"""

SET_DOTFILES: Final = """
INSERT INTO profiles (user_id, dotfiles_url, dotfiles_command) VALUES ($1, $2, $3)
ON CONFLICT (user_id) DO UPDATE SET dotfiles_url = excluded.dotfiles_url,
    dotfiles_command = excluded.dotfiles_command
"""

# ── templates and repeated requests ──────────────────────────────────────────────────────────────────────────────────

_TEMPLATE: Final = (
    "name, description, image_ref, env, cpu, memory_bytes, disk_bytes, pids, sudo, kubernetes, created_at, updated_at, "
    "disabled_at"
)

TEMPLATE: Final = f"SELECT {_TEMPLATE} FROM templates WHERE name = $1"

TEMPLATES: Final = f'SELECT {_TEMPLATE} FROM templates ORDER BY name COLLATE "C"'

# $9: whether it is disabled; since when is kept.
PUT_TEMPLATE: Final = f"""
INSERT INTO templates AS t ({_TEMPLATE}) SELECT $1, $2, $3, $4::jsonb, $5, $6, $7, $8, $10, $11::jsonb,
    now, now,
    CASE WHEN $9 THEN now END FROM {_CLOCK}
ON CONFLICT (name) DO UPDATE SET description = excluded.description, image_ref = excluded.image_ref,
    env = excluded.env, cpu = excluded.cpu, memory_bytes = excluded.memory_bytes, disk_bytes = excluded.disk_bytes,
    pids = excluded.pids, sudo = excluded.sudo, kubernetes = excluded.kubernetes, updated_at = excluded.updated_at,
    disabled_at = CASE WHEN $9 THEN coalesce(t.disabled_at, excluded.disabled_at) END
RETURNING {_TEMPLATE}
"""

# The first claim stays; nothing comes back if there was one.
CLAIM_KEY: Final = f"""
INSERT INTO idempotency_keys (user_id, key, request_hash, workspace_id, created_at)
SELECT $1, $2, $3, $4, now FROM {_CLOCK} ON CONFLICT DO NOTHING RETURNING workspace_id
"""

CLAIMED_KEY: Final = "SELECT request_hash, workspace_id, response FROM idempotency_keys WHERE user_id = $1 AND key = $2"

ANSWER_KEY: Final = """
UPDATE idempotency_keys SET response = $3 WHERE user_id = $1 AND key = $2 AND response IS NULL
"""

RELEASE_KEY: Final = "DELETE FROM idempotency_keys WHERE user_id = $1 AND key = $2 AND response IS NULL"

FORGET_KEYS: Final = """
WITH gone AS (DELETE FROM idempotency_keys WHERE (user_id, key) IN (
    SELECT user_id, key FROM idempotency_keys WHERE created_at < now() - make_interval(secs => $1) LIMIT $2)
    RETURNING 1)
SELECT count(*) FROM gone
"""
