"""How a bug is planted: exact text in a copy of the source is replaced; the source itself is not changed."""

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/codehub")


@dataclass(frozen=True, slots=True)
class Patch:
    """One replacement. `file` is relative to the package; `old` must be in it exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. `test` must catch it, where the search over fault schedules cannot: it does not run that code."""

    name: str
    patches: tuple[Patch, ...]
    test: str | None = None


class DoesNotApply(Exception):
    """The text to replace is not there once: the source has changed, and the catalogue must follow it."""


def plant(mutant: Mutant, tree: Path) -> None:
    for patch in mutant.patches:
        path = tree / PACKAGE / patch.file
        path.write_text(patched(path.read_text(), patch))


def patched(text: str, patch: Patch) -> str:
    found = text.count(patch.old)
    if found != 1:
        raise DoesNotApply(f"{patch.file} holds {patch.old!r} {found} times, not once")
    return text.replace(patch.old, patch.new)


def copy_tree(to: Path) -> None:
    """Copy the package and the tests, without what an interpreter left beside them."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
