"""Documents that point somewhere point at something that is there."""

import ast
import re

import pytest

from tests.house.project import ROOT, project_files, shown, tree

CONTRACTS = ROOT / "docs" / "CONTRACTS.md"
DEPARTURES = ROOT / "docs" / "DEPARTURES.md"
ADRS = ROOT / "docs" / "adr"
TEST_LINK = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def contracts() -> dict[str, str]:
    """The title and the text of each numbered section."""
    parts = re.split(r"^## (\d+\. .+)$", CONTRACTS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_ten_contracts() -> None:
    assert [title.split(".")[0] for title in contracts()] == [str(n) for n in range(1, 11)]


@pytest.mark.parametrize("title", contracts())
def test_contract_names_the_tests_that_guard_it(title: str) -> None:
    links = TEST_LINK.findall(contracts()[title])
    assert links, f"contract {title} names no test"
    assert [f"{file}::{name}" for file, name in links if name not in guards_in(file)] == []


def departures() -> list[list[str]]:
    """The cells of each row of docs/DEPARTURES.md."""
    rows = [line for line in DEPARTURES.read_text().splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


@pytest.mark.parametrize("row", departures(), ids=lambda row: row[0])
def test_a_departure_is_told_in_both_languages_and_names_its_tests(row: list[str]) -> None:
    _number, specification, ours, korean, tests = row
    assert specification
    assert ours
    assert re.search(r"[가-힣]", korean)
    links = TEST_LINK.findall(tests)
    assert links
    assert [f"{file}::{name}" for file, name in links if name not in guards_in(file)] == []


def test_departures_are_numbered_without_a_gap() -> None:
    numbers = [row[0] for row in departures()]
    letters = dict.fromkeys(number[0] for number in numbers)
    counts = {letter: sum(number[0] == letter for number in numbers) for letter in letters}
    assert numbers == [f"{letter}{count + 1}" for letter in letters for count in range(counts[letter])]


def guards_in(file: str) -> set[str]:
    path = ROOT / file
    if not path.exists():
        return set()
    functions = (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_adr_index_is_complete() -> None:
    decisions = {path.name for path in ADRS.glob("[0-9]*.md")}
    indexed = set(LINK.findall((ADRS / "README.md").read_text()))
    assert decisions == {name for name in indexed if name[0].isdigit()}
    numbers = sorted(int(name.split("-")[0]) for name in decisions)
    assert numbers == list(range(1, len(numbers) + 1))


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{shown(path)} → {target}"
        for path in project_files()
        if path.suffix == ".md"
        for target in LINK.findall(path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []
