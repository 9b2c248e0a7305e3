"""The dashboard's sources: nothing that could turn text into markup, nothing from elsewhere, nothing too long."""

import re
from pathlib import Path

import pytest

from codehub.dashboard import dashboard
from codehub.dashboard.state_labels import RECOVERIES, states
from codehub.domain.errors import REASONS, ErrorReason
from codehub.domain.transitions import TABLE
from codehub.domain.workspace import RecoverAction
from tests.house.project import SOURCE, project_files, shown

STATIC = SOURCE / "dashboard" / "static"
GENERATED = STATIC / "core" / "states.js"
TRANSLATIONS = {"translations/en.js", "translations/ko.js"}
"""The modules that are one dictionary each: a list, not a program."""

SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc"
    r"|\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:|\.cssText|setAttribute\(\s*[\"'`]on"
)
FOREIGN = re.compile(r"(?:src|href|url\(|from|import\()\s*=?\s*[\"'(]*(?:https?:)?//(?!www\.w3\.org)")


def sources(*suffixes: str) -> list[Path]:
    return [path for path in project_files() if path.is_relative_to(STATIC) and path.suffix in suffixes]


def test_text_can_become_markup_nowhere() -> None:
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in sources(".js", ".html")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SINKS.search(line)
    ]
    assert found == []


def test_pages_hold_no_inline_script_style_or_handler() -> None:
    for path in sources(".html"):
        page = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", page), shown(path)
        assert not re.search(r"<style|\bstyle=|\son\w+=", page), shown(path)


def test_nothing_is_fetched_from_elsewhere() -> None:
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in sources(".js", ".css", ".html", ".svg")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FOREIGN.search(line) or (path.suffix == ".css" and "@import" in line)
    ]
    assert found == []


def test_every_module_says_why_it_exists() -> None:
    modules = [path for path in sources(".js") if path != GENERATED]
    assert [shown(path) for path in modules if not path.read_text().startswith("/**")] == []


def test_everything_that_is_imported_is_served() -> None:
    served = dashboard().files
    missing = [
        f"{name}: {target}"
        for name, content in served.items()
        if name.endswith(".js")
        for target in re.findall(r'from "([^"]+)"', content.decode())
        if str((Path("/") / name).parent.joinpath(target).resolve().relative_to("/")) not in served
    ]
    assert missing == []
    assert {str(path.relative_to(STATIC)) for path in sources(".js", ".css", ".svg")} == set(served)


# ── the states cannot drift ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_action_is_allowed_exactly_where_the_table_knows_its_way() -> None:
    ways = {(row.phase.value, wish.value) for row in TABLE for wish in row.desired}
    for name, action in states()["ACTIONS"].items():
        if action["desired"] is not None:
            assert action["phases"], name
            assert {(phase, action["desired"]) for phase in action["phases"]} <= ways, name
    told = [
        (row["phase"], wish, row["operation"], row["leadsTo"])
        for row in states()["TRANSITIONS"]
        for wish in row["desired"]
    ]
    assert told == [(row.phase, wish, row.operation, row.leads_to) for row in TABLE for wish in row.desired]


@pytest.mark.parametrize("reason", ErrorReason, ids=str)
def test_the_ways_out_are_those_that_the_advice_names(reason: ErrorReason) -> None:
    advice = REASONS[reason].what_to_do
    assert set(RECOVERIES[reason]) == {action for action in RecoverAction if f"'{action}'" in advice}


def test_no_module_writes_a_state_s_label_itself() -> None:
    """Labels come from the generated file (English) and from the translations (Korean), by key."""
    labels = {words["label"] for words in states()["PHASES"].values()}
    quoted = re.compile("|".join(f'"{re.escape(label)}"' for label in labels))
    assert [
        f"{shown(path)}:{number}"
        for path in sources(".js")
        if path != GENERATED and str(path.relative_to(STATIC)) not in TRANSLATIONS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if quoted.search(line)
    ] == []
