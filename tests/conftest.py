"""What every suite shares: skips that CI turns into failures, measured figures, Hypothesis' house rules, and how long a
page is waited for.

`CODEHUB_NO_SKIPS=1` says that this machine has all it takes, so a skip there is a test that silently stopped testing.
"""

import os
from collections.abc import Callable, Generator

import hypothesis
import pytest
from playwright.async_api import expect

pytest_plugins = ["tests.real_services", "tests.docker_engine", "tests.kubernetes_cluster"]

Tell = Callable[[str], None]

NO_SKIPS = os.environ.get("CODEHUB_NO_SKIPS") == "1"
KUBERNETES_TOO = os.environ.get("CODEHUB_TEST_KUBERNETES") == "1"
"""A cluster takes long to build, so tests on one may be skipped unless this says that there is one."""

hypothesis.settings.register_profile(
    "house",
    deadline=None,  # a loaded machine is not a failing test
    derandomize=True,  # a red commit is red for everyone; the simulation does the searching
    database=None,
)
hypothesis.settings.load_profile("house")

expect.set_options(timeout=30_000)  # what a page comes to is waited for, however busy the machine is


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    allowed = item.get_closest_marker("kubernetes") is not None and not KUBERNETES_TOO
    if NO_SKIPS and report.skipped and not allowed and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although CODEHUB_NO_SKIPS=1: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if NO_SKIPS and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped although CODEHUB_NO_SKIPS=1: {_reason(report.longrepr)}"
    return report


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Said at the end of the run, whatever the output options."""
    return lambda what: record_property("seen", what)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, what in getattr(report, "user_properties", ()):
                if name == "seen" and report.when == "call":
                    terminalreporter.write_line(str(what))


def _reason(longrepr: object) -> str:
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
