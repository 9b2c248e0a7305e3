"""Where a page ended, as a word that nobody has to understand.

It holds a place in an order, never a right: whose list it is is decided anew for every page. A check keeps a mangled
one from silently meaning another place.
"""

import base64
import binascii
import hashlib
from datetime import datetime
from uuid import UUID

from codehub.domain.errors import Invalid
from codehub.ports.views import Position

_CHECK = 6


def written(kind: str, place: str) -> str:
    payload = f"{kind}|{place}".encode()
    return base64.urlsafe_b64encode(_check(payload) + payload).decode().rstrip("=")


def read(kind: str, cursor: str) -> str:
    """Invalid unless it is one of ours, of this kind of list."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        check, payload = raw[:_CHECK], raw[_CHECK:]
        name, _, place = payload.decode().partition("|")
    except (ValueError, binascii.Error):
        raise _unknown() from None
    if check != _check(payload) or name != kind:
        raise _unknown()
    return place


def position_written(kind: str, position: Position) -> str:
    return written(kind, f"{position.created_at.isoformat()}|{position.id}")


def position_read(kind: str, cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    at, _, identity = read(kind, cursor).partition("|")
    try:
        return Position(datetime.fromisoformat(at), UUID(identity))
    except ValueError:
        raise _unknown() from None


def number_read(kind: str, cursor: str | None) -> int | None:
    if cursor is None:
        return None
    place = read(kind, cursor)
    if not place.isdecimal() or len(place) > 18:
        raise _unknown()
    return int(place)


def _check(payload: bytes) -> bytes:
    return hashlib.blake2s(payload, digest_size=_CHECK, person=b"cursor").digest()


def _unknown() -> Invalid:
    return Invalid("This cursor is not one that this list gave. Begin without one.", "cursor")
