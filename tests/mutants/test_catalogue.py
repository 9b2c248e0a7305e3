"""Every planted bug can be planted in the source as it is now; whether the search finds it is `make sim-mutants`."""

import ast

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.patches import PACKAGE, ROOT, DoesNotApply, Mutant, Patch, patched


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_each_applies_once_and_leaves_python(mutant: Mutant) -> None:
    texts = {patch.file: (ROOT / PACKAGE / patch.file).read_text() for patch in mutant.patches}
    for patch in mutant.patches:
        texts[patch.file] = patched(texts[patch.file], patch)
    for name, text in texts.items():
        compile(text, name, "exec", flags=ast.PyCF_ONLY_AST)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.test], ids=lambda m: m.name)
def test_the_test_that_a_mutant_names_is_there(mutant: Mutant) -> None:
    file, _, name = (mutant.test or "").partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


def test_no_two_are_the_same_bug() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({m.patches for m in MUTANTS}) == len(MUTANTS)


def test_there_are_enough_to_trust_the_search() -> None:
    assert len(MUTANTS) >= 22


@pytest.mark.parametrize("text", ["", "twice twice"])
def test_a_text_that_is_not_there_exactly_once_is_refused(text: str) -> None:
    with pytest.raises(DoesNotApply):
        patched(text, Patch("some.py", "twice", "once"))
