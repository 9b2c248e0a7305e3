"""The page about threats names tests that are there, and leaves no row without one or a plain `not yet`."""

import re

from tests.house.project import ROOT
from tests.house.test_docs import TEST_LINK, guards_in

PAGE = ROOT / "docs" / "THREATS.md"


def test_threats_name_tests_that_exist() -> None:
    links = TEST_LINK.findall(PAGE.read_text())
    assert len(links) > 15
    assert [f"{file}::{name}" for file, name in links if name not in guards_in(file)] == []


def test_every_class_of_holes_is_guarded_or_said_to_be_open() -> None:
    table = PAGE.read_text().partition("## Classes of holes")[2]
    rows = [line for line in table.splitlines() if re.match(r"\| (?!class|---)", line)]
    assert len(rows) >= 17
    assert [row for row in rows if not TEST_LINK.search(row) and "not yet" not in row] == []
