"""Passwords in memory: quick, for tests only, and countable, so that a test can see that the same work was done."""

import hashlib
import secrets


class MemoryPasswords:
    """`generation`: as if the parameters had changed. `verified`: how often somebody's password was compared."""

    def __init__(self, generation: int = 1) -> None:
        self.generation = generation
        self.verified = 0

    async def hash(self, password: str) -> str:
        return self._hashed(password, secrets.token_hex(8), self.generation)

    async def verify(self, stored: str | None, password: str) -> bool:
        self.verified += 1
        parts = (stored or "memory:1::").split(":")
        if len(parts) != 4 or parts[0] != "memory":
            return False
        return stored is not None and secrets.compare_digest(stored, self._hashed(password, parts[2], int(parts[1])))

    def outdated(self, stored: str) -> bool:
        return not stored.startswith(f"memory:{self.generation}:")

    @staticmethod
    def _hashed(password: str, salt: str, generation: int) -> str:
        text = f"{salt}{password}".encode("utf-8", "surrogatepass")
        return f"memory:{generation}:{salt}:{hashlib.sha256(text).hexdigest()}"
