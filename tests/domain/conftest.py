"""Says at the end how much the tests of the pure rules checked, whatever the output options and the number of
workers.
"""

from collections.abc import Callable

import pytest

Tally = Callable[[str], None]


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    def say(what: str) -> None:
        record_property("checked", what)

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, what in getattr(report, "user_properties", ()):
                if name == "checked":
                    terminalreporter.write_line(f"checked: {what}")
