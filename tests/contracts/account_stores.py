"""What the suites about accounts run on: any database of ours, whose clock a test can turn forward."""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import uuid4

import asyncpg

from codehub.adapters.memory import MemoryAccountDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.identity import Role, User
from codehub.ports.accounts import (
    Accounts,
    Audit,
    NewUser,
    SignInState,
)
from codehub.ports.authorized_keys import AuthorizedKeys
from codehub.ports.secrets import Profiles, Secrets
from codehub.ports.stores import Actor, IdempotencyKeys, Templates

ROOT = Actor("root", address="192.0.2.1")

_TIMES = {
    "sessions": ("created_at", "last_seen_at", "expires_at"),
    "api_tokens": ("created_at", "last_used_at", "expires_at"),
    "authorized_keys": ("created_at", "last_used_at"),
    "tickets": ("created_at", "expires_at"),
    "visits": ("created_at", "expires_at"),
    "provider_sign_ins": ("created_at", "expires_at"),
    "login_failures": ("at",),
    "idempotency_keys": ("created_at",),
}


class AccountStores(Protocol):
    def accounts(self) -> Accounts: ...

    def authorized_keys(self) -> AuthorizedKeys: ...

    def sign_in_state(self) -> SignInState: ...

    def audit(self) -> Audit: ...

    def templates(self) -> Templates: ...

    def idempotency_keys(self) -> IdempotencyKeys: ...

    def secrets(self) -> Secrets: ...

    def profiles(self) -> Profiles: ...


class Later:
    """Lets time pass: a clock in memory is turned; in PostgreSQL, whose clock is the machine's, the rows grow older."""

    def __init__(self, stores: MemoryAccountDatabase | PostgresDatabase, url: str = "") -> None:
        self._stores = stores
        self._url = url

    async def __call__(self, seconds: float) -> None:
        if isinstance(self._stores, MemoryAccountDatabase):
            state, before = self._stores.state, self._stores.state.now

            def turned() -> datetime:
                return before() + timedelta(seconds=seconds)

            state.now = turned
            return
        connection = await asyncpg.connect(self._url)
        try:
            for table, columns in _TIMES.items():
                moved = ", ".join(f"{name} = {name} - make_interval(secs => $1)" for name in columns)
                await connection.execute(f"UPDATE {table} SET {moved}", float(seconds))
        finally:
            await connection.close()


async def person(
    stores: AccountStores, username: str = "ann", role: Role = Role.USER, password_hash: str | None = "stored"
) -> User:
    return await stores.accounts().create_user(NewUser(uuid4(), username, role, password_hash), ROOT)
