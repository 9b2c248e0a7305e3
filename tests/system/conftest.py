"""Databases with a witness inside, and the measured takeovers said at the end, whatever the output options."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import make_url

from codehub.adapters.postgres.migration import migrate
from tests.real_services import ServiceLoop, temporary_database
from tests.system import witness

Tell = Callable[[str], None]


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    def say(what: str) -> None:
        record_property("seen", what)

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, what in getattr(report, "user_properties", ()):
                if name == "seen" and report.when == "call":
                    terminalreporter.write_line(str(what))


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
