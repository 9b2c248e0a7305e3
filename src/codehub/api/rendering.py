"""Workspaces and users as JSON, and the cursors of lists.

Workspaces are plain dicts, not models: a thousand are rendered on every page load. A cursor says where a page of a list
ended and is opaque to clients. It holds a place in an order and no permission: whose list it is is decided anew for
every page. A checksum keeps a mangled cursor from silently meaning another place.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.responses import JSONResponse

from codehub.domain.addresses import workspace_url
from codehub.domain.errors import ErrorInfo, Invalid
from codehub.domain.gc_rules import undo_until
from codehub.domain.identity import User
from codehub.ports.views import OwnedWorkspace, Position

_CHECKSUM_BYTES = 6


def workspace_json(owned: OwnedWorkspace, url_pattern: str, undo: timedelta) -> dict[str, Any]:
    ws = owned.workspace
    return {
        "id": str(ws.id),
        "name": ws.name,
        "description": ws.description,
        "memo": ws.memo,
        "owner": owned.owner,
        "template": ws.template,
        "image_ref": ws.image_ref,
        "next_image_ref": owned.next_image_ref,
        "runtime": ws.runtime,
        "git_url": ws.git_url,
        "git_ref": ws.git_ref,
        "url": workspace_url(url_pattern, ws.slug, ws.id),
        "phase": ws.phase.value,
        "desired_state": ws.desired_state.value,
        "operation": ws.operation.value,
        "is_at_rest": ws.is_at_rest,
        "op_id": str(ws.op_id) if ws.op_id else None,
        "op_started_at": timestamp(ws.op_started_at),
        "progress": ws.op_progress.to_json() if ws.op_progress else None,
        "conditions": ws.conditions.to_json(),
        "archive_key": ws.archive_key,
        "error": _error(ws.error_info),
        "evicted": ws.home.evicted,
        "last_access_at": timestamp(ws.last_access_at),
        "phase_changed_at": timestamp(ws.phase_changed_at),
        "standby_ttl_seconds": ws.standby_ttl_seconds,
        "archive_ttl_seconds": ws.archive_ttl_seconds,
        "created_at": timestamp(ws.created_at),
        "updated_at": timestamp(ws.updated_at),
        "deleted_at": timestamp(ws.deleted_at),
        "purged_at": timestamp(ws.purged_at),
        "undo_until": timestamp(undo_until(ws, undo)),
    }


def user_json(user: User) -> dict[str, Any]:
    return {
        "id": str(user.id),
        "username": user.username,
        "role": user.role.value,
        "created_at": timestamp(user.created_at),
        "disabled_at": timestamp(user.disabled_at),
        "max_running": user.max_running,
        "has_password": user.has_password,
        "issuer": user.issuer,
    }


def timestamp(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


def json_response(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(body, status, dict(headers or {}))


def _error(info: ErrorInfo | None) -> dict[str, Any] | None:
    if info is None:
        return None
    return {
        "reason": info.reason.value,
        "message": info.message,
        "is_terminal": info.is_terminal,
        "operation": info.operation,
        "count": info.error_count,
        "context": dict(info.context),
        "occurred_at": timestamp(info.occurred_at),
    }


def encode_cursor(kind: str, place: str) -> str:
    payload = f"{kind}|{place}".encode()
    return base64.urlsafe_b64encode(_checksum(payload) + payload).decode().rstrip("=")


def decode_cursor(kind: str, cursor: str) -> str:
    """The place in a cursor. Invalid unless this API made it, for this kind of list."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        checksum, payload = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        name, _, place = payload.decode().partition("|")
    except (ValueError, binascii.Error):
        raise _invalid_cursor() from None
    if checksum != _checksum(payload) or name != kind:
        raise _invalid_cursor()
    return place


def encode_position(kind: str, position: Position) -> str:
    return encode_cursor(kind, f"{position.created_at.isoformat()}|{position.id}")


def decode_position(kind: str, cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    at, _, identity = decode_cursor(kind, cursor).partition("|")
    try:
        return Position(datetime.fromisoformat(at), UUID(identity))
    except ValueError:
        raise _invalid_cursor() from None


def decode_number(kind: str, cursor: str | None) -> int | None:
    if cursor is None:
        return None
    place = decode_cursor(kind, cursor)
    if not place.isdecimal() or len(place) > 18:
        raise _invalid_cursor()
    return int(place)


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2s(payload, digest_size=_CHECKSUM_BYTES, person=b"cursor").digest()


def _invalid_cursor() -> Invalid:
    return Invalid("This cursor is not one that this list gave. Begin without one.", "cursor")
