"""Whatever a row holds, whoever comes for it is told something true, in words, with something to do about it."""

import re
from dataclasses import replace
from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest

from codehub.domain.access import AccessAction, access_to
from codehub.domain.errors import REASONS, ErrorReason
from codehub.domain.judge import CONTAINER_STARTING, container_reason
from codehub.domain.workspace import (
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Progress,
    RecoverAction,
    Workspace,
)
from codehub.proxy.access.verdicts import UpstreamFailure
from codehub.proxy.pages.content import (
    ActionKind,
    Icon,
    PageModel,
    StepState,
    failure_page,
    limit_page,
    making_room_page,
    no_listener_page,
    not_found_page,
    signed_out_page,
    unavailable_page,
    workspace_page,
)
from codehub.proxy.pages.texts import Language
from tests import rows
from tests.rows import NOW

ENGLISH, KOREAN = Language.ENGLISH, Language.KOREAN
RAW = re.compile(rf"\b(?:{'|'.join([*Phase, *Operation, *ErrorReason])})\b|[{{}}]")
SITE = "https://hub.example"
UNKNOWN = Condition(None, "Unknown")


def told(row: Workspace, language: Language = ENGLISH, *, wakes: bool = False) -> PageModel:
    return workspace_page(row, access_to(row), language, wakes=wakes, public_url=SITE)


def sensible(view: PageModel) -> None:
    """Check what holds for every page."""
    said = [view.title, view.text, view.detail, view.report, *(step.label for step in view.steps)]
    said += [action.label for action in view.actions] + ([view.progress.text] if view.progress else [])
    assert view.title
    assert view.text
    assert [text for text in said if RAW.search(text)] == []
    assert all(action.label and action.id for action in view.actions)
    assert len({action.id for action in view.actions}) == len(view.actions)
    assert sum(action.kind is ActionKind.PRIMARY for action in view.actions) <= 1
    assert view.progress is None or view.progress.fraction is None or 0 <= view.progress.fraction <= 1
    assert not (view.wakes and view.settled)
    assert view.to_json()["title"] == view.title


@pytest.mark.parametrize("phase", Phase)
def test_every_row_has_a_view(phase: Phase) -> None:
    reasons: tuple[ErrorReason | None, ...] = (None, *ErrorReason)
    for operation, desired, reason in product(Operation, Desired, reasons):
        info = rows.error_info(reason, message=f"{operation} failed", operation=operation.value) if reason else None
        row = rows.workspace(
            phase=phase,
            operation=operation,
            desired_state=desired,
            error_reason=reason,
            error_info=info,
            error_count=1 if reason else 0,
            op_progress=Progress(1_000, 3, 4_000, "pack"),
        )
        way = access_to(row)
        for language, wakes in product(Language, (False, True)):
            view = told(row, language, wakes=wakes)
            sensible(view)
            assert view.status == way.http_status
            assert (view.name == "running") == (way.action is AccessAction.FORWARD)
            may_wake = way.may_wake and desired is not Desired.RUNNING
            assert view.wakes == (wakes and may_wake)
            if way.action in (AccessAction.OFFER_START, AccessAction.OFFER_RESTORE) or (may_wake and not wakes):
                assert view.actions[0].id == "wake"
            if way.action is AccessAction.EXPLAIN_ERROR:
                assert f"{SITE}/workspaces/{row.id}" in [action.link for action in view.actions]
                assert "wake" not in [action.id for action in view.actions]


@pytest.mark.parametrize("reason", ErrorReason)
def test_each_error_says_why_and_what_to_do(reason: ErrorReason) -> None:
    row = rows.broken(rows.with_home(), reason)
    view, korean = told(row), told(row, KOREAN)
    assert view.name == "error"
    assert view.emblem is Icon.WARNING
    if not REASONS[reason].is_outage:  # which ends without anybody's doing
        assert "dashboard" in view.detail
        assert "대시보드" in korean.detail
    assert view.report == "It broke"
    assert view.settled != REASONS[reason].clears_itself
    others = {told(rows.broken(rows.with_home(), other)).text for other in ErrorReason if other is not reason}
    assert view.text not in others


def test_an_error_that_only_the_condition_shows_is_explained_too() -> None:
    unhealthy = Condition(status=False, reason="ContainerWithoutVolume")
    row = rows.workspace(phase=Phase.ERROR, conditions=Conditions(healthy=unhealthy))
    assert told(row).text == "It is running although its home directory is gone."
    odd = replace(row, conditions=Conditions(healthy=Condition(status=False, reason="Odd")))
    assert told(odd).text == "It cannot be used at the moment."


def test_files_are_called_safe_only_if_they_were_seen() -> None:
    row = rows.broken(rows.with_home())
    assert "still in" not in told(row).detail
    there = replace(row.conditions, volume_ready=Condition(status=True, reason="VolumeProvisioned"))
    assert "still in its home directory" in told(replace(row, conditions=there)).detail
    assert "still in" not in told(replace(row, home=HomeContext(), conditions=there)).detail, "a volume, but no home"
    stored = replace(row.conditions, archive_ready=Condition(status=True, reason="ArchiveUploaded"))
    assert "still in" not in told(replace(row, conditions=stored)).detail, "the live home is the newer one"
    assert "still in the archive" in told(replace(row, home=HomeContext(), conditions=stored)).detail


def test_names_of_ours_in_a_failure_s_words_become_plain() -> None:
    info = rows.error_info(ErrorReason.RETRY_EXCEEDED, message="STARTING failed 3 times; the last time: disk full")
    row = rows.broken(rows.with_home(), ErrorReason.RETRY_EXCEEDED, error_info=info)
    assert told(row).report == "Starting failed 3 times; the last time: disk full"
    endless = replace(row, error_info=replace(info, message="x" * 100_000))
    assert len(told(endless).report) < 1_000


def test_recovery_and_deletion_are_seen_in_error_too() -> None:
    row = rows.broken(rows.with_home())
    asked = replace(row, recover_action=RecoverAction.RETRY, recover_requested_at=NOW)
    assert told(asked).name == "recovering"
    assert not told(asked).settled
    assert told(replace(row, desired_state=Desired.DELETED)).name == "deleting"


def coming_up(row: Workspace, **changes: object) -> Workspace:
    return replace(row, desired_state=Desired.RUNNING, **changes)  # type: ignore[arg-type]


def reached(view: PageModel) -> list[StepState]:
    return [step.reached for step in view.steps]


def test_restoring_shows_how_far_it_is() -> None:
    row = coming_up(rows.busy(rows.archived(), Operation.RESTORING))
    view = told(replace(row, op_progress=Progress(1_200_000_000, 10, 3_400_000_000, "unpack")))
    assert view.name == "waiting"
    assert view.status == 200
    assert view.progress is not None
    assert view.progress.text == "1.2 of 3.4 GB"
    assert view.progress.fraction == pytest.approx(12 / 34)
    assert reached(view) == [StepState.NOW, StepState.NEXT, StepState.NEXT]
    unmeasured = told(replace(row, op_progress=Progress(1_200, 1)))
    assert unmeasured.progress is not None
    assert unmeasured.progress.fraction is None
    assert told(row).progress is None


def test_starting_tells_its_steps_apart() -> None:
    row = coming_up(rows.busy(rows.with_home(), Operation.STARTING))
    pulling = told(replace(row, op_progress=Progress(step="pulling alpine:3")))
    starting = Condition(status=False, reason=container_reason(row.runtime, CONTAINER_STARTING))
    answering = told(replace(row, conditions=replace(row.conditions, container_ready=starting)))
    held = told(replace(row, op_progress=Progress(step="Unschedulable: 0/3 nodes are available")))
    assert len({told(row).text, pulling.text, answering.text, held.text}) == 4
    assert pulling.report == "pulling alpine:3"
    assert held.report == "Unschedulable: 0/3 nodes are available"
    assert reached(pulling) == reached(told(row)) == [StepState.DONE, StepState.NOW, StepState.NEXT]
    assert reached(answering) == [StepState.DONE, StepState.DONE, StepState.NOW]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (rows.busy(rows.with_home(phase=Phase.RUNNING), Operation.STOPPING), "still stopping"),
        (rows.busy(rows.with_home(), Operation.ARCHIVING), "That ends here"),
        (
            rows.busy(rows.with_home(home=HomeContext(incarnation=1, deleting_volume=True)), Operation.ARCHIVING),
            "brought right back",
        ),
        (rows.busy(rows.archived(), Operation.DISCARDING), "finished first"),
        (rows.busy(rows.workspace(), Operation.PROVISIONING), "being made"),
        (rows.with_home(), "about to begin"),
    ],
    ids=["stopping", "archiving", "leaving", "discarding", "provisioning", "planned"],
)
def test_a_start_that_must_wait_says_for_what(row: Workspace, said: str) -> None:
    view = told(coming_up(row))
    assert view.name == "waiting"
    assert said in view.text
    assert not view.settled


def test_what_holds_a_start_up_is_said() -> None:
    row = coming_up(rows.busy(rows.with_home(), Operation.STARTING))
    failed = replace(row, error_count=2, error_info=rows.error_info(), retry_at=NOW + timedelta(seconds=2))
    assert told(failed).report == "It broke"
    assert "tried again by itself (2 so far)" in told(failed).detail
    unknown = replace(row, conditions=replace(row.conditions, container_ready=UNKNOWN))
    assert "does not answer" in told(unknown).detail
    archived = coming_up(rows.archived(conditions=Conditions(archive_ready=UNKNOWN)))
    assert "archive storage does not answer" in told(archived).detail
    assert "archive storage" not in told(coming_up(rows.with_home(conditions=archived.conditions))).detail


def test_a_sleeper_wakes_or_offers_to() -> None:
    row = rows.with_home(desired_state=Desired.STANDBY)
    asleep = told(row)
    assert (asleep.name, asleep.status, asleep.settled, asleep.wakes) == ("asleep", 200, True, False)
    assert asleep.actions[0].label == "Start"
    waking = told(row, wakes=True)
    assert (waking.name, waking.wakes, waking.actions) == ("waiting", True, ())
    assert "asleep" in waking.text
    stopping = rows.busy(rows.with_home(phase=Phase.RUNNING, desired_state=Desired.STANDBY), Operation.STOPPING)
    assert "still stopping" in told(stopping, wakes=True).text
    assert told(stopping).actions[0].label == "Start again"


def test_the_archive_never_wakes_by_itself() -> None:
    row = rows.archived(desired_state=Desired.ARCHIVED)
    view = told(row, wakes=True)
    assert (view.name, view.status, view.wakes) == ("archived", 502, False)
    assert view.actions[0].label == "Restore and start"
    assert "30 January 2026" in view.text
    assert "2026년 1월 30일" in told(row, KOREAN).text
    assert told(rows.workspace()).name == "empty"


def test_the_deleted_can_be_brought_back_unless_they_are_gone() -> None:
    row = rows.workspace(phase=Phase.DELETED, desired_state=Desired.DELETED, deleted_at=NOW)
    assert told(row).actions[0].link == f"{SITE}/workspaces/{row.id}"
    assert told(replace(row, purged_at=NOW)).actions == ()
    assert told(replace(row, undelete_requested_at=NOW)).name == "returning"


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────

OTHERS = [
    rows.workspace(id=UUID(int=n), name=name, phase=Phase.RUNNING, desired_state=Desired.RUNNING)
    for n, name in enumerate(("one", "<b>two</b>"), 1)
]


@pytest.mark.parametrize("language", Language)
def test_limit_offers_each_that_runs(language: Language) -> None:
    view = limit_page(rows.workspace(), [*OTHERS, rows.workspace()], language)
    sensible(view)
    assert (view.name, view.status, view.settled) == ("limit", 429, True)
    assert [action.id for action in view.actions] == [*(f"instead:{other.id}" for other in OTHERS), "wake"]
    assert all(other.name in action.label for other, action in zip(OTHERS, view.actions, strict=False))
    assert "2" in view.text
    sensible(making_room_page(rows.workspace(), OTHERS[0], language))
    assert OTHERS[0].name in making_room_page(rows.workspace(), OTHERS[0], language).text


def test_limit_knows_whose_fault_it_is() -> None:
    row = rows.workspace()
    full = limit_page(row, [], ENGLISH)
    assert "installation" in full.text
    assert [action.id for action in full.actions] == ["wake"]
    both = limit_page(row, OTHERS, ENGLISH, limit=5)
    assert "installation" in both.text
    assert len(both.actions) == 3
    assert "one workspace at a time" in limit_page(row, OTHERS[:1], ENGLISH).text
    barred = limit_page(row, [], ENGLISH, limit=0)
    assert "may not run any" in barred.text
    assert barred.actions == ()


def test_limit_sees_who_is_leaving() -> None:
    leaving = replace(OTHERS[0], desired_state=Desired.STANDBY)
    view = limit_page(rows.workspace(), [leaving, OTHERS[1]], ENGLISH, limit=2)
    assert not view.settled
    assert "stopping already" in view.detail
    assert [action.id for action in view.actions] == [f"instead:{OTHERS[1].id}", "wake"]


# ── the others ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("language", Language)
def test_failures_have_views(language: Language) -> None:
    for failure in UpstreamFailure:
        for name in ("demo", ""):
            view = failure_page(failure, language, name)
            sensible(view)
            assert view.name == failure.value
            assert view.status in (502, 503, 504)
    for view in (
        no_listener_page(3000, "demo", language),
        not_found_page(language, SITE),
        signed_out_page(language, f"{SITE}/signin?next=%2F"),
        unavailable_page(language),
    ):
        sensible(view)
    assert "3000" in no_listener_page(3000, "demo", language).text


def test_versions_are_the_same_for_what_looks_the_same() -> None:
    row = rows.with_home(desired_state=Desired.STANDBY)
    assert told(row).version == told(replace(row, memo="unseen")).version
    assert len({told(row).version, told(row, KOREAN).version, told(replace(row, name="other")).version}) == 3


def test_one_that_is_evicted_is_said_to_start_again_while_its_editor_can_still_save() -> None:
    home = HomeContext(incarnation=1, live=True, evicted="its node is drained")
    row = rows.with_home(phase=Phase.RUNNING, desired_state=Desired.RUNNING, home=home)
    assert access_to(row).action is AccessAction.WAIT
    for language, word in ((ENGLISH, "needed its place"), (KOREAN, "자리를 비워야")):
        for changes in ({}, {"phase": Phase.STANDBY}, {"phase": Phase.STANDBY, "operation": Operation.STARTING}):
            view = told(replace(row, **changes), language)
            sensible(view)
            assert word in view.text


def test_one_that_was_evicted_and_finds_no_room_says_both() -> None:
    home = HomeContext(incarnation=1, live=True, evicted="its node is drained")
    held = Progress(step="Unschedulable: 0/1 nodes are available")
    row = rows.with_home(desired_state=Desired.RUNNING, home=home, operation=Operation.STARTING, op_progress=held)
    view = told(row)
    assert "cannot start yet" in view.text
    assert "needed its place" in view.detail
    assert "0/1 nodes" in view.report
