"""Databases with a witness inside."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from codehub.adapters.postgres.schema import migrate
from tests.real_services import ServiceLoop, database_name, temporary_database
from tests.system import witness


@pytest.fixture(scope="session")
def witnessed_template(postgres_url: str, service_loop: ServiceLoop) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, prefix="witnessed") as url:
        service_loop.run(migrate(url))
        service_loop.run(witness.install(url, urlsplit(url).password or ""))
        yield database_name(url)


@pytest.fixture
def witnessed_database(postgres_url: str, service_loop: ServiceLoop, witnessed_template: str) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, template=witnessed_template) as url:
        yield url
