"""docs/ARCHITECTURE.md against the code: every step of its walks names a file and something that is defined there."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.project import ROOT, SOURCE

TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
STEPS = re.findall(r"`([\w/]+\.py)` → `([\w.]+)`", TEXT)
ROOMS = re.findall(r"^\| (`[^|]+`) \|", TEXT, re.MULTILINE)


def definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name"))


def test_the_walks_are_there() -> None:
    assert len(re.findall(r"^## Walk \d", TEXT, re.MULTILINE)) == 3
    assert len(STEPS) > 20


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_each_step_of_a_walk_is_in_the_file_it_names(file: str, name: str) -> None:
    assert name in set(definitions(ast.parse((SOURCE / file).read_text())))


def test_every_room_is_in_the_table() -> None:
    listed = {name.rstrip("/") for row in ROOMS for name in re.findall(r"`([\w./]+)`", row)}
    there = {path.name for path in SOURCE.iterdir() if path.name not in {"__init__.py", "__pycache__"}}
    assert there - listed == set()
