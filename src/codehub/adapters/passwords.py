"""Argon2id, in threads: one password takes tens of milliseconds and 64 MiB, and the event loop has others to serve."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.profiles import RFC_9106_LOW_MEMORY

AT_ONCE = 4
"""Bounds the memory that strangers can make us use."""


class Argon2Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)
        # Of nobody's password, made with today's parameters: comparing with it costs what comparing costs.
        self._nobody = self._hasher.hash(b"")
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def hash(self, password: str) -> str:
        async with self._turns:
            return await asyncio.to_thread(self._hasher.hash, _encoded(password))

    async def verify(self, stored: str | None, password: str) -> bool:
        async with self._turns:
            return await asyncio.to_thread(self._matches, stored, _encoded(password))

    def outdated(self, stored: str) -> bool:
        return self._hasher.check_needs_rehash(stored)

    def _matches(self, stored: str | None, password: bytes) -> bool:
        try:
            self._hasher.verify(stored if stored is not None else self._nobody, password)
        except InvalidHashError:
            return self._matches(None, password)
        except VerificationError:
            return False
        return stored is not None


def _encoded(password: str) -> bytes:
    """Half a surrogate pair in a JSON string is a character too."""
    return password.encode("utf-8", "surrogatepass")
