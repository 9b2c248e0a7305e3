"""Cursors: where a page of a list ended, opaque to clients.

A cursor holds a place in an order and no permission: whose list it is is decided anew for every page. A checksum keeps
a mangled cursor from silently meaning another place.
"""

import base64
import binascii
import hashlib
from datetime import datetime
from uuid import UUID

from codehub.domain.errors import Invalid
from codehub.ports.views import Position

_CHECKSUM_BYTES = 6


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
