"""Says at the end how many calls were interrupted, whatever the output options and the number of workers."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import structlog

pytest.register_assert_rewrite("tests.coordinator.operation_scenarios", "tests.coordinator.harness")

Tally = Callable[[str, int], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silences the log: thousands of runs log every failed call, and what matters is asserted."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    def count(scenario: str, cases: int) -> None:
        record_property(f"cut:{scenario}", cases)

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cases: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, number in getattr(report, "user_properties", ()):
                if name.startswith("cut:"):
                    cases[name.removeprefix("cut:")] += number
    if cases:
        each = ", ".join(f"{scenario} {number}" for scenario, number in cases.items())
        terminalreporter.write_line(f"kill anywhere: {cases.total()} cut points ({each})")
