"""Passwords: Argon2id and its quick twin."""

import argon2
import pytest

from codehub.adapters.memory import MemoryPasswords
from codehub.adapters.passwords import Argon2Passwords
from codehub.ports.passwords import Passwords

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
