"""The SQL of what people read. Every list has an order that no write changes, so that pages neither skip nor repeat."""

# ruff: noqa: S608 - put together from names in the code only; values are always parameters

from typing import Final

from codehub.adapters.postgres.statements import ENTRY_COLUMNS, ROW_COLUMNS

# An owner is named by text; a row whose owner has no account (an import, a test) still has one to show.
_OWNED: Final = f"""
SELECT {ROW_COLUMNS}, coalesce(u.username, w.owner_id) AS owner, t.image_ref AS template_image
FROM workspaces w LEFT JOIN users u ON u.id::text = w.owner_id LEFT JOIN templates t ON t.name = w.template
"""

GET: Final = f"{_OWNED} WHERE w.id = $1"

BY_SLUG: Final = f"{_OWNED} WHERE w.slug = $1 AND w.deleted_at IS NULL"

SOME: Final = f"{_OWNED} WHERE w.id = ANY($1::uuid[])"

# $1 owner, $2 text for ILIKE, $3 phase, $4 error reason: null = any. $5 deleted. ($6, $7) the last one seen.
PAGE: Final = f"""
{_OWNED} WHERE (w.deleted_at IS NOT NULL) = $5
    AND ($1::text IS NULL OR w.owner_id = $1)
    AND ($2::text IS NULL OR w.name ILIKE $2 OR w.description ILIKE $2)
    AND ($3::text IS NULL OR w.phase = $3)
    AND ($4::text IS NULL OR w.error_reason = $4)
    AND ($6::timestamptz IS NULL OR (w.created_at, w.id) < ($6, $7::uuid))
ORDER BY w.created_at DESC, w.id DESC LIMIT $8
"""

EVERYTHING: Final = f"""
{_OWNED} WHERE w.deleted_at IS NULL AND ($1::text IS NULL OR w.owner_id = $1) ORDER BY w.created_at DESC, w.id DESC
"""

SLOT_HOLDERS: Final = f"SELECT {ROW_COLUMNS} FROM workspaces w WHERE w.slot <> 'free' ORDER BY w.created_at, w.id"

# $3: null = every kind.
ENTRIES: Final = f"""
SELECT id AS number, {ENTRY_COLUMNS} FROM workspace_events
WHERE workspace_id = $1 AND ($2::bigint IS NULL OR id < $2) AND ($3::text[] IS NULL OR kind = ANY($3))
ORDER BY id DESC LIMIT $4
"""

RUNNING: Final = "SELECT count(*) FROM workspaces WHERE phase = 'RUNNING' AND deleted_at IS NULL"

# Oldest first. A day's ledger is read along its index on time.
HAPPENINGS: Final = f"""
SELECT {ENTRY_COLUMNS} FROM workspace_events WHERE at > $1 AND (
    (kind = 'phase' AND (before = 'RUNNING' OR after = 'RUNNING')) OR (kind = 'operation_began' AND after = 'STARTING')
) ORDER BY id
"""

ARCHIVED: Final = "SELECT created_at, bytes FROM archives WHERE created_at > $1"

# $3: how long minutes are kept. Whoever adds to one also clears away what is too old, so nobody else has to.
ADD_TRAFFIC: Final = """
WITH gone AS (DELETE FROM traffic WHERE minute <= clock_timestamp() - $3::interval)
INSERT INTO traffic (minute, requests, socket_seconds) VALUES (date_trunc('minute', clock_timestamp()), $1, $2)
ON CONFLICT (minute) DO UPDATE SET
    requests = traffic.requests + excluded.requests, socket_seconds = traffic.socket_seconds + excluded.socket_seconds
"""

TRAFFIC: Final = "SELECT minute, requests, socket_seconds FROM traffic WHERE minute > $1 ORDER BY minute"

LEASE_UNTIL: Final = "SELECT max(until) FROM leases WHERE workspace_id = $1 AND until > clock_timestamp()"
