"""What the server says by a code has words in Korean too: a new code without them fails here, not before a reader."""

import ast
import re
from collections.abc import Iterator

from codehub.adapters.postgres.connections import _CONFLICTS
from codehub.api.errors import BY_CODE, BY_KIND, BY_STATUS
from codehub.domain.errors import ErrorReason, LimitReached
from tests.house.project import SOURCE

TRANSLATIONS = SOURCE / "dashboard" / "static" / "translations"
RAISED = {"ConcurrencyLimit": 2, "Conflict": 1, "LimitReached": 2}
"""Which argument of the call holds the code."""
UNSEEN = {"internal", "offline"}
"""The codes that are named where they are made: a failure of our own, and a server that is not there."""


def words(language: str, start: str) -> set[str]:
    text = (TRANSLATIONS / f"{language}.js").read_text()
    return set(re.findall(rf'^  "{re.escape(start)}([^"]+)":', text, re.MULTILINE))


def nodes(*folders: str) -> Iterator[ast.AST]:
    for folder in folders or (".",):
        for path in (SOURCE / folder).rglob("*.py"):
            yield from ast.walk(ast.parse(path.read_text()))


def text_of(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def codes() -> Iterator[str | None]:
    for node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED:
            place = RAISED[node.func.id]
            yield from (text_of(word.value) for word in node.keywords if word.arg == "code")
            yield text_of(node.args[place]) if len(node.args) > place else None
        elif isinstance(node, ast.ClassDef):
            told = (line for line in node.body if isinstance(line, ast.Assign))
            yield from (text_of(line.value) for line in told if ast.unparse(line.targets[0]) == "code")


def reasons() -> Iterator[str | None]:
    """The reasons of commands: what the ledger says to whoever asks why."""
    for node in nodes("usecases"):
        if isinstance(node, ast.Call):
            yield from (text_of(word.value) for word in node.keywords if word.arg == "reason")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            yield from (text_of(default) for argument, default in named if argument.arg == "reason")


def test_every_refusal_is_told_in_korean() -> None:
    by_table = {*BY_CODE, *(code for _, code in BY_STATUS.values()), *(code for _, code in _CONFLICTS.values())}
    by_kind = {answer.code for _, answer in BY_KIND if answer.code}
    known = {code for code in codes() if code} | by_table | by_kind | {LimitReached("").code}
    assert len(known) > 35
    assert words("ko", "problem.") == known | UNSEEN


def test_every_reason_of_a_wish_has_words() -> None:
    known = {reason for reason in reasons() if reason} - {str(reason) for reason in ErrorReason}
    assert {"asked", "opened", "gave_way"} <= known
    for language in ("en", "ko"):
        assert known - words(language, "why.") == set()


def test_everything_we_stand_on_has_a_name() -> None:
    _, _, table = (SOURCE / "bootstrap" / "api.py").read_text().partition("checks={")
    checks = set(re.findall(r'"(\w+)": ', table.partition("},\n")[0])) | {"controller"}
    assert checks > {"postgresql", "redis", "runtime"}
    for language in ("en", "ko"):
        assert checks - words(language, "health.") == set()
