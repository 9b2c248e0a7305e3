"""A server for every test that asks, and a terminal with an empty home; `ann` is signed in by the environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from codehub.cli import wait
from tests.cli.api_server import ApiServer, serving
from tests.cli.terminal import Terminal


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The server's log is not the terminal's."""
    structlog.configure([structlog.processors.KeyValueRenderer()], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as opened:
        yield opened


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    monkeypatch.setattr(wait, "POLL_SECONDS", 0.02)
    return Terminal(monkeypatch, tmp_path)


@pytest.fixture
def ann(server: ApiServer, terminal: Terminal) -> Terminal:
    terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=server.token("ann"))
    return terminal
