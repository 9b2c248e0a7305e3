"""Each store suite runs on the twin in memory and on a real PostgreSQL, each test in a database of its own."""

from collections.abc import AsyncIterator, Iterator

import pytest

from codehub.adapters.memory import MemoryAccountDatabase, MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.adapters.postgres.schema import migrate
from tests.contracts.account_stores import AccountStores, Later
from tests.contracts.databases import Database
from tests.real_services import ServiceLoop, database_name, temporary_database


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str, service_loop: ServiceLoop) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, prefix="template") as url:
        service_loop.run(migrate(url))
        yield database_name(url)


@pytest.fixture
def database_url(postgres_url: str, service_loop: ServiceLoop, migrated_template: str) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, template=migrated_template) as url:
        yield url


@pytest.fixture
async def postgres(database_url: str) -> AsyncIterator[PostgresDatabase]:
    async with await PostgresDatabase.open(database_url) as database:
        yield database


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.system)])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    if request.param == "memory":
        yield MemoryDatabase()
        return
    url: str = request.getfixturevalue("database_url")
    async with await PostgresDatabase.open(url) as opened:
        yield opened


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.system)])
async def account_stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[AccountStores, Later]]:
    if request.param == "memory":
        stores = MemoryAccountDatabase()
        yield stores, Later(stores)
        return
    url: str = request.getfixturevalue("database_url")
    async with await PostgresDatabase.open(url) as opened:
        yield opened, Later(opened, url)


@pytest.fixture
def stores(account_stores: tuple[AccountStores, Later]) -> AccountStores:
    return account_stores[0]


@pytest.fixture
def later(account_stores: tuple[AccountStores, Later]) -> Later:
    return account_stores[1]
