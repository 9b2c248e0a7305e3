"""Secrets made here and shown once; what is kept is their hash.

A fast hash is right for these: they are long and random, so there is nothing to guess.
"""

import hashlib
import secrets

from codehub.domain.credentials import TOKEN_PREFIX

_BYTES = 32
_LONGEST = 512


def new_session_token() -> str:
    return secrets.token_urlsafe(_BYTES)


def new_api_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_BYTES)


def new_password() -> str:
    return secrets.token_urlsafe(15)


def digest(secret: str) -> bytes:
    """Of whatever a stranger sent: nothing of ours is longer, so a longer one need not be read to its end."""
    return hashlib.sha256(secret[:_LONGEST].encode("utf-8", "replace")).digest()


def session_id_of(session_token: str) -> str:
    return digest(session_token).hex()
