"""Databases that log every write, and in which term it was made."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from codehub.adapters.postgres.schema import migrate
from tests.real_services import ServiceLoop, database_name, temporary_database
from tests.system import write_log


@pytest.fixture(scope="session")
def logged_template(postgres_url: str, service_loop: ServiceLoop) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, prefix="logged") as url:
        service_loop.run(migrate(url))
        service_loop.run(write_log.install(url, urlsplit(url).password or ""))
        yield database_name(url)


@pytest.fixture
def logged_database(postgres_url: str, service_loop: ServiceLoop, logged_template: str) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, template=logged_template) as url:
        yield url
