"""Which backend each one is: remembered once, by who leads; forgotten only when an operator says so."""

import pytest

from codehub.adapters.memory import MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.errors import Stale
from codehub.domain.naming import Backend
from codehub.ports.stores import BackendIdentities
from tests.contracts.databases import Database, new_term


@pytest.fixture
def backend_identities(database: Database) -> BackendIdentities:
    assert isinstance(database, MemoryDatabase | PostgresDatabase)
    return database.backend_identities()


async def identities(backend_identities: BackendIdentities) -> dict[Backend, str]:
    return {backend: one.identity for backend, one in (await backend_identities.remembered()).items()}


async def test_nothing_is_remembered_at_first(backend_identities: BackendIdentities) -> None:
    assert await backend_identities.remembered() == {}
    assert await backend_identities.forget(Backend.RUNTIME) is False


async def test_the_first_one_is_remembered_and_stays(database: Database, backend_identities: BackendIdentities) -> None:
    async with new_term(database) as epoch:
        assert await backend_identities.adopt(Backend.RUNTIME, "docker A", epoch) == "docker A"
        since = (await backend_identities.remembered())[Backend.RUNTIME].since
        assert since.tzinfo is not None
        assert await backend_identities.adopt(Backend.RUNTIME, "docker B", epoch) == "docker A"
        assert await backend_identities.adopt(Backend.ARCHIVES, "this", epoch) == "this"
    async with new_term(database) as epoch:
        assert await backend_identities.adopt(Backend.RUNTIME, "docker C", epoch) == "docker A"
    assert await identities(backend_identities) == {Backend.RUNTIME: "docker A", Backend.ARCHIVES: "this"}
    assert (await backend_identities.remembered())[Backend.RUNTIME].since == since


async def test_who_no_longer_leads_adopts_nothing(database: Database, backend_identities: BackendIdentities) -> None:
    async with new_term(database) as old:
        pass
    async with new_term(database):
        with pytest.raises(Stale):
            await backend_identities.adopt(Backend.RUNTIME, "docker A", old)
    assert await backend_identities.remembered() == {}


async def test_what_is_forgotten_is_adopted_anew_and_the_other_is_kept(
    database: Database, backend_identities: BackendIdentities
) -> None:
    async with new_term(database) as epoch:
        await backend_identities.adopt(Backend.RUNTIME, "docker A", epoch)
        await backend_identities.adopt(Backend.ARCHIVES, "this", epoch)
        assert await backend_identities.forget(Backend.RUNTIME) is True
        assert await identities(backend_identities) == {Backend.ARCHIVES: "this"}
        assert await backend_identities.adopt(Backend.RUNTIME, "docker B", epoch) == "docker B"
