"""The SQL of people, what they prove themselves with, and what is written down about them; as in statements.py, each
statement with the invariant it keeps. Every time is the server's, read by the statement that uses it.
"""

# ruff: noqa: S105, S608 - statements are no passwords; they are put together from names in the code only

from typing import Final

from codehub.adapters.postgres.statements import ACCOUNTS_LOCK, LOCKS
from codehub.domain.credentials import FAILURES_FADE_SECONDS
from codehub.ports.accounts import SEEN_EVERY_SECONDS


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

# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────

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

# ── templates and repeated requests ──────────────────────────────────────────────────────────────────────────────────

_TEMPLATE: Final = (
    "name, description, image_ref, env, cpu, memory_bytes, disk_bytes, pids, created_at, updated_at, disabled_at"
)

TEMPLATE: Final = f"SELECT {_TEMPLATE} FROM templates WHERE name = $1"

TEMPLATES: Final = f'SELECT {_TEMPLATE} FROM templates ORDER BY name COLLATE "C"'

# $9: whether it is disabled; since when is kept.
PUT_TEMPLATE: Final = f"""
INSERT INTO templates AS t ({_TEMPLATE}) SELECT $1, $2, $3, $4::jsonb, $5, $6, $7, $8, now, now,
    CASE WHEN $9 THEN now END FROM {_CLOCK}
ON CONFLICT (name) DO UPDATE SET description = excluded.description, image_ref = excluded.image_ref,
    env = excluded.env, cpu = excluded.cpu, memory_bytes = excluded.memory_bytes, disk_bytes = excluded.disk_bytes,
    pids = excluded.pids, updated_at = excluded.updated_at,
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
