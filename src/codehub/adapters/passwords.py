"""Argon2id, in threads of its own: one password takes tens of milliseconds and 64 MiB, the event loop has others to
serve, and nothing that anybody else keeps busy may stop people from signing in."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.profiles import RFC_9106_LOW_MEMORY

AT_ONCE = 4
"""How many passwords are hashed at once, which bounds the memory that strangers can make us use."""

P = ParamSpec("P")
T = TypeVar("T")


class Argon2Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)
        # Of nobody's password, made with today's parameters: comparing with it costs what comparing costs.
        self._nobody = self._hasher.hash(b"")
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="passwords")

    async def hash(self, password: str) -> str:
        return await self._threaded(self._hasher.hash, _encoded(password))

    async def verify(self, stored: str | None, password: str) -> bool:
        return await self._threaded(self._matches, stored, _encoded(password))

    def outdated(self, stored: str) -> bool:
        return self._hasher.check_needs_rehash(stored)

    async def _threaded(self, work: Callable[P, T], *about: P.args, **more: P.kwargs) -> T:
        """Runs `work` in a thread of the pool. Whoever leaves before their turn costs nothing; what has begun runs to
        its end."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *about, **more))

    def _matches(self, stored: str | None, password: bytes) -> bool:
        try:
            self._hasher.verify(stored if stored is not None else self._nobody, password)
        except InvalidHashError:
            return self._matches(None, password)
        except VerificationError:
            return False
        return stored is not None


def _encoded(password: str) -> bytes:
    """The password as bytes: half a surrogate pair in a JSON string is a character too."""
    return password.encode("utf-8", "surrogatepass")
