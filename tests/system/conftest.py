"""Databases with a witness inside."""

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from codehub.adapters.postgres.migration import migrate
from tests.real_services import ServiceLoop, temporary_database
from tests.system import witness


@pytest.fixture(scope="session")
def witnessed_template(postgres_url: str, service_loop: ServiceLoop) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, prefix="witnessed") as url:
        service_loop.run(migrate(url))
        service_loop.run(witness.install(url, make_url(url).password or ""))
        yield make_url(url).database or ""


@pytest.fixture
def witnessed_database(postgres_url: str, service_loop: ServiceLoop, witnessed_template: str) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop, template=witnessed_template) as url:
        yield url
