"""Rows of people and what belongs to them to frozen values. A joined row's columns begin with their table's letter."""

import json

import asyncpg

from codehub.domain.identity import ALL_SCOPES, ApiToken, Role, Scope, Session, User
from codehub.domain.template import Template
from codehub.ports.accounts import AuditEntry, Ticket, Visit


def user(record: asyncpg.Record) -> User:
    return User(
        id=record["u_id"],
        username=record["u_username"],
        role=Role(record["u_role"]),
        created_at=record["u_created_at"],
        disabled_at=record["u_disabled_at"],
        max_running=record["u_max_running"],
        issuer=record["u_issuer"],
        subject=record["u_subject"],
        has_password=record["u_has_password"],
    )


def session(record: asyncpg.Record) -> Session:
    return Session(
        id=record["s_token_hash"].hex(),
        user_id=record["s_user_id"],
        created_at=record["s_created_at"],
        last_seen_at=record["s_last_seen_at"],
        expires_at=record["s_expires_at"],
        address=record["s_address"],
        agent=record["s_agent"],
        is_fresh=record.get("s_is_fresh", False),
    )


def session_hash(session_id: str) -> bytes:
    """What is no session's id becomes a hash that no row can have."""
    try:
        return bytes.fromhex(session_id)
    except ValueError:
        return b""


def token(record: asyncpg.Record) -> ApiToken:
    return ApiToken(
        id=record["t_id"],
        user_id=record["t_user_id"],
        name=record["t_name"],
        scopes=_scopes(record["t_scopes"]),
        created_at=record["t_created_at"],
        expires_at=record["t_expires_at"],
        last_used_at=record["t_last_used_at"],
        revoked_at=record["t_revoked_at"],
    )


def ticket(record: asyncpg.Record) -> Ticket:
    return Ticket(
        record["user_id"],
        record["workspace_id"],
        _session_id(record),
        record["port"],
        record["token_id"],
        record["wakes"],
    )


def visit(record: asyncpg.Record) -> Visit:
    scopes = ALL_SCOPES if record["token_id"] is None else _scopes(record["scopes"])
    return Visit(user(record), record["workspace_id"], record["port"], _session_id(record), record["token_id"], scopes)


def _scopes(names: list[str]) -> frozenset[Scope]:
    return frozenset(map(Scope, names))


def _session_id(record: asyncpg.Record) -> str | None:
    return record["session_hash"].hex() if record["session_hash"] is not None else None


def audit_entry(record: asyncpg.Record) -> AuditEntry:
    return AuditEntry(**{**record, "details": json.loads(record["details"])})


def template(record: asyncpg.Record) -> Template:
    return Template(**{**record, "env": json.loads(record["env"])})
