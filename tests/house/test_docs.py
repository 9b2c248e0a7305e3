"""Documents that point somewhere point at something that is there."""

import ast
import re

import pytest

from tests.house.project import ROOT, project_files, shown, tree

CONTRACTS = ROOT / "docs" / "CONTRACTS.md"
ADRS = ROOT / "docs" / "adr"
TEST_LINK = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def contracts() -> dict[str, str]:
    """Title → text of each numbered section."""
    parts = re.split(r"^## (\d+\. .+)$", CONTRACTS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_ten_contracts() -> None:
    assert [title.split(".")[0] for title in contracts()] == [str(n) for n in range(1, 11)]


@pytest.mark.parametrize("title", contracts())
def test_contract_names_the_tests_that_guard_it(title: str) -> None:
    links = TEST_LINK.findall(contracts()[title])
    assert links, f"contract {title} names no test"
    assert [f"{file}::{name}" for file, name in links if name not in guards_in(file)] == []


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
