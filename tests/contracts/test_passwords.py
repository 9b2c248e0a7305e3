"""Passwords: Argon2id and its quick twin."""

import asyncio
import threading
from typing import Any

import argon2
import pytest

from codehub.adapters.memory import MemoryPasswords
from codehub.adapters.passwords import AT_ONCE, Argon2Passwords
from codehub.ports.accounts import Passwords
from tests.contracts.shared_threads import no_shared_thread

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


@pytest.fixture(params=["memory", "argon2"])
def passwords(request: pytest.FixtureRequest) -> Passwords:
    return MemoryPasswords() if request.param == "memory" else Argon2Passwords(CHEAP)


@pytest.mark.parametrize("password", ["correct horse", "", "пароль", "a\x00b", "\ud800half", "x" * 1024])
async def test_only_the_same_password_fits(passwords: Passwords, password: str) -> None:
    stored = await passwords.hash(password)
    assert await passwords.verify(stored, password)
    assert not await passwords.verify(stored, password + "x")
    assert await passwords.hash(password) != stored
    assert password not in stored or not password


@pytest.mark.parametrize("stored", [None, "", "no hash", "$argon2id$v=19$broken"])
async def test_nobody_s_password_never_fits(passwords: Passwords, stored: str | None) -> None:
    for password in ("", "correct horse"):
        assert not await passwords.verify(stored, password)


async def test_today_s_hash_is_not_outdated(passwords: Passwords) -> None:
    assert not passwords.outdated(await passwords.hash("correct horse"))


async def test_other_parameters_are_outdated_but_still_fit() -> None:
    dearer = Argon2Passwords(argon2.PasswordHasher(time_cost=2, memory_cost=64, parallelism=1))
    old = await Argon2Passwords(CHEAP).hash("correct horse")
    assert dearer.outdated(old)
    assert await dearer.verify(old, "correct horse")


async def test_the_default_is_argon2id_as_recommended() -> None:
    stored = await Argon2Passwords().hash("correct horse")
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,p=4$")


async def test_whoever_takes_all_shared_threads_stops_no_sign_in() -> None:
    passwords = Argon2Passwords(CHEAP)
    with no_shared_thread():
        async with asyncio.timeout(30):
            assert await passwords.verify(await passwords.hash("correct horse"), "correct horse")


class SlowHasher(argon2.PasswordHasher):
    """Waits until it is let, and counts who waits."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=64, parallelism=1)
        self.begun = 0
        self.let = threading.Event()
        self.let.set()

    def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002 - the library's name
        self.begun += 1
        self.let.wait()
        return super().verify(hash, password)


async def test_who_leaves_makes_no_room_for_more_than_may_at_once() -> None:
    hasher = SlowHasher()
    passwords = Argon2Passwords(hasher)
    stored = await passwords.hash("correct horse")
    hasher.let.clear()
    try:
        for wave in (AT_ONCE, AT_ONCE * 2):
            tries = [asyncio.create_task(passwords.verify(stored, "correct horse")) for _ in range(wave)]
            async with asyncio.timeout(30):
                while hasher.begun < AT_ONCE:
                    await asyncio.sleep(0.001)
            for _ in range(20):
                await asyncio.sleep(0)
            for one in tries:
                one.cancel()
            await asyncio.wait(tries)
    finally:
        hasher.let.set()
    assert await passwords.verify(stored, "correct horse")
    assert hasher.begun == AT_ONCE + 1, "those who left before their turn cost nothing"
