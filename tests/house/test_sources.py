"""Habits of this code base that a reader would otherwise have to watch for."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.project import SOURCE, project_files, python_files, shown, tree

VAGUE = re.compile(r"(^|_)(utils?|helpers?|base|common|managers?|misc)($|_)")
PURE_IMPORTS = {
    "__future__",
    "abc",
    "base64",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "hashlib",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "re",
    "string",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
    "uuid",
}
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "print", "input"}


def test_no_module_has_a_vague_name() -> None:
    assert [shown(path) for path in python_files() if VAGUE.search(path.stem) or VAGUE.search(path.parent.name)] == []


def test_every_module_of_src_says_why_it_exists() -> None:
    assert [shown(path) for path in python_files("src") if not ast.get_docstring(tree(path))] == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")
    marked = [
        f"{shown(path)}:{number}"
        for path in project_files()
        if path.suffix in {".py", ".js", ".md", ".toml", ".sh", ""}
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if later.search(line)
    ]
    assert marked == []


def test_our_ports_are_never_mocked() -> None:
    mocks = {"unittest.mock", "mock", "pytest_mock"}
    assert [shown(path) for path in python_files("tests", "bench") if mocks & set(imported(tree(path)))] == []


def test_domain_imports_only_what_is_pure() -> None:
    wrong = [
        f"{shown(path)}: {name}"
        for path in (SOURCE / "domain").rglob("*.py")
        for name in imported(tree(path))
        if not {name, name.split(".")[0]} & PURE_IMPORTS and not name.startswith("codehub.domain") and name != "codehub"
    ]
    assert wrong == []


def test_domain_reads_no_clock_and_makes_no_ids() -> None:
    assert [f"{shown(path)}:{line}" for path in (SOURCE / "domain").rglob("*.py") for line in impure_calls(path)] == []


def imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "unittest")


def impure_calls(path: Path) -> Iterator[int]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in IMPURE_CALLS:
                yield node.lineno
