"""Rows to frozen values and back.

Text that PostgreSQL cannot hold (NUL, half a surrogate pair, a number that is none) is replaced: the message of a
failing backend must never keep the failure from being recorded. Of many rows at once, one that cannot be read is
reported and left out, so that it does not stop the others. The columns of a joined row begin with their table's letter.
"""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import structlog

from codehub.adapters.postgres.statements import ENTRY_FIELDS, column
from codehub.domain.errors import ErrorInfo, ErrorReason
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import ALL_SCOPES, ApiToken, Role, Scope, Session, User
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.template import KubernetesOptions, Template
from codehub.domain.workspace import (
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Progress,
    RecoverAction,
    Workspace,
)
from codehub.ports.accounts import AuditEntry, Ticket, Visit

log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 250
"""Rows decoded before others on the event loop get their turn: a renewal must not wait for a long list."""
_FROM_JSON: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "conditions": Conditions.from_json,
    "home": HomeContext.from_json,
    "op_progress": Progress.from_json,
    "error_info": ErrorInfo.from_json,
}
_FROM_TEXT: Final[Mapping[str, type[Desired | Phase | Operation | RecoverAction | ErrorReason]]] = {
    "desired_state": Desired,
    "recover_action": RecoverAction,
    "phase": Phase,
    "operation": Operation,
    "error_reason": ErrorReason,
}
_UNSTORABLE: Final = ("\\u0000", "\\ud", "NaN", "Infinity")


def workspace(record: asyncpg.Record) -> Workspace:
    values = dict(record)
    for beside in ("now", "owner", "template_image"):
        values.pop(beside, None)
    for name, decode in _FROM_JSON.items():
        if values[name] is not None:
            values[name] = decode(json.loads(values[name]))
    for name, kind in _FROM_TEXT.items():
        if values[name] is not None:
            values[name] = kind(values[name])
    return Workspace(**values)


def changed_fields(names: Iterable[str], before: Workspace, after: Workspace) -> list[str]:
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def parameters(row: Workspace, names: Iterable[str]) -> list[object]:
    """The fields' values as asyncpg takes them."""
    return [_parameter(name, getattr(row, name)) for name in names]


def as_json(rows: Iterable[Workspace], names: Sequence[str]) -> str:
    """The fields' values as jsonb_populate_recordset takes them."""
    return dumped([{column(name): _plain(name, getattr(row, name)) for name in names} for row in rows])


def _parameter(name: str, value: Any) -> object:  # noqa: ANN401 - any field's
    if value is None:
        return None
    if name in _FROM_JSON:
        return dumped(value.to_json())
    return storable_text(value) if isinstance(value, str) else value


def _plain(name: str, value: Any) -> object:  # noqa: ANN401 - any field's
    if name in _FROM_JSON and value is not None:
        return value.to_json()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def dumped(value: object) -> str:
    text = json.dumps(value, default=str)
    if any(mark in text for mark in _UNSTORABLE):
        return json.dumps(_storable(value), default=str)
    return text


def _storable(value: object) -> object:
    match value:
        case str():
            return storable_text(value)
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {storable_text(str(key)): _storable(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable(item) for item in value]
        case _:
            return value


def storable_text(text: str) -> str:
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def restore_point(record: asyncpg.Record) -> RestorePoint:
    return RestorePoint(**record)


def entry(record: asyncpg.Record) -> LedgerEntry:
    values = {**record, "kind": LedgerKind(record["kind"])}
    values.pop("number", None)
    return LedgerEntry(**values)


def entry_columns(entries: Sequence[LedgerEntry]) -> tuple[list[object], ...]:
    """The entries as one list for each column."""
    columns = ([getattr(entry, name) for entry in entries] for name in ENTRY_FIELDS)
    return tuple([storable_text(v) if isinstance(v, str) else v for v in values] for values in columns)


async def readable(records: Sequence[asyncpg.Record]) -> list[Workspace]:
    found = []
    for number, record in enumerate(records, 1):
        if number % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if record["id"] is None:
            continue  # the row that carries only `now`
        try:
            found.append(workspace(record))
        except (ValueError, KeyError, TypeError, AttributeError):
            log.exception("workspace_unreadable", workspace=str(record["id"]))
    return found


def _fields(record: asyncpg.Record, letter: str) -> dict[str, Any]:
    """The columns of one table in a joined row, without the table's letter."""
    return {name[2:]: value for name, value in record.items() if name.startswith(f"{letter}_")}


def user(record: asyncpg.Record) -> User:
    fields = _fields(record, "u")
    return User(**{**fields, "role": Role(fields["role"])})


def session(record: asyncpg.Record) -> Session:
    fields = _fields(record, "s")
    return Session(id=fields.pop("token_hash").hex(), **fields)


def session_hash(session_id: str) -> bytes:
    """The hash that a session is stored under; what is no session's id becomes one that no row can have."""
    try:
        return bytes.fromhex(session_id)
    except ValueError:
        return b""


def token(record: asyncpg.Record) -> ApiToken:
    fields = _fields(record, "t")
    return ApiToken(**{**fields, "scopes": _scopes(fields["scopes"])})


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
    kubernetes = KubernetesOptions.from_json(json.loads(record["kubernetes"]))
    return Template(**{**record, "env": json.loads(record["env"]), "kubernetes": kubernetes})
