"""Every case × every wish: one decision each, and each obeys the rules.

The rules are written here a second time, from the design and not from the code, and all violations are counted
before the test fails, so that one run shows every broken rule with an example.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import Any, get_args

from codehub.domain.errors import ErrorReason
from codehub.domain.failures import Policy, settle_health
from codehub.domain.judge import ArchiveState, Facts, judge
from codehub.domain.plan import (
    Abandon,
    Begin,
    Complete,
    Continue,
    CrashedAfterStart,
    Decision,
    Recover,
    Settled,
    TakeRestorePoint,
    TimedOut,
    Wait,
    plan,
)
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from tests.domain import state_space
from tests.domain.conftest import Tally
from tests.rows import KEY, NOW, OP_ID, VOLUME, workspace

LEVEL = {"DELETED": -1, "PENDING": 0, "ARCHIVED": 5, "STANDBY": 10, "RUNNING": 20}
LEADS_TO = {
    (Phase.PENDING, Operation.PROVISIONING): "STANDBY",
    (Phase.PENDING, Operation.CREATE_EMPTY_ARCHIVE): "ARCHIVED",
    (Phase.PENDING, Operation.DELETING): "DELETED",
    (Phase.ARCHIVED, Operation.RESTORING): "STANDBY",
    (Phase.ARCHIVED, Operation.DISCARDING): "PENDING",
    (Phase.ARCHIVED, Operation.DELETING): "DELETED",
    (Phase.STANDBY, Operation.STARTING): "RUNNING",
    (Phase.STANDBY, Operation.ARCHIVING): "ARCHIVED",
    (Phase.RUNNING, Operation.STOPPING): "STANDBY",
    (Phase.ERROR, Operation.DELETING): "DELETED",
}
"""The table's edges. Anything else would skip a level."""

DEFINITE_ACTS = (Begin, Continue, TimedOut, Abandon, CrashedAfterStart, Recover, TakeRestorePoint)
NEEDS_STORE = (Operation.RESTORING, Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE)
ENDS_CONTAINER = (Operation.STOPPING, Operation.ARCHIVING, Operation.RESTORING, Operation.DELETING)
LOST_HOME = {ErrorReason.DATA_LOST, ErrorReason.CONTAINER_WITHOUT_VOLUME, ErrorReason.ARCHIVE_ACCESS_ERROR}
POLICY = Policy()


def goal(ws: Workspace) -> str:
    """A chosen restore point sends a present home through ARCHIVED first."""
    has_home = ws.phase in (Phase.STANDBY, Phase.RUNNING)
    return "ARCHIVED" if ws.restore_pending and has_home and ws.desired_state != "DELETED" else ws.desired_state.value


def whole_volume(ws: Workspace, facts: Facts) -> bool:
    """Whether the volume is a home: present, not half restored, not leaving, and not one that a stalled leader made
    late."""
    home = ws.home
    made = home.live or ws.operation is Operation.PROVISIONING or home.marker == (ws.archive_key, OP_ID)
    return bool(facts.volumes) and not gone(ws, facts) and home.restoring is None and not home.deleting_volume and made


def gone(ws: Workspace, facts: Facts) -> bool:
    """Whether the volume is absent, or another one stands under its name."""
    return facts.volumes is not None and facts.volumes.get(VOLUME) != ws.home.volume_instance


def is_ours(ws: Workspace, facts: Facts) -> bool:
    return ws.archive_key == KEY and ws.archive_op_id == OP_ID and facts.archive is ArchiveState.READABLE


DONE: dict[Operation, Callable[[Workspace, Facts], bool]] = {
    Operation.PROVISIONING: whole_volume,
    Operation.CREATE_EMPTY_ARCHIVE: is_ours,
    Operation.RESTORING: lambda ws, f: whole_volume(ws, f) and ws.home.marker == (ws.archive_key, OP_ID),
    Operation.STARTING: lambda _, f: f.container is not None and f.container.answered,
    Operation.STOPPING: lambda _, f: f.container_known and f.container is None,
    Operation.ARCHIVING: lambda ws, f: gone(ws, f) and is_ours(ws, f),
    Operation.DISCARDING: lambda ws, _: ws.archive_key is None,
    Operation.DELETING: lambda ws, _: ws.deleted_at is not None,
}


# ── rules of the judged row ────────────────────────────────────────────────────────────────────────────────────────


def broken_by_judge(before: Workspace, ws: Workspace, facts: Facts, possible: set[Phase]) -> Iterator[str]:
    yield from _error_is_written_whole(before, ws)
    yield from _phase_tells_the_truth(before, ws, facts)
    if len(possible) == 1 and ws.phase not in possible:
        yield "the unknown does not matter, yet the phase is another"
    if len(possible) > 1 and ws.phase is not before.phase:
        yield "the phase moved although the unknown decides it"
    if len(possible) > 1 and before.error_info is None and ws.error_info is not None:
        yield "an outage sends a workspace (back) to ERROR"


def _error_is_written_whole(before: Workspace, ws: Workspace) -> Iterator[str]:
    if ws.phase is not Phase.ERROR:
        return
    info = ws.error_info
    if ws.operation not in (Operation.NONE, Operation.DELETING):
        yield "an operation other than DELETING stands in ERROR"
    if ws.conditions.healthy.status is not False:
        yield "ERROR although healthy"
    if info is None or not info.is_terminal or ws.error_reason is not info.reason:
        yield "ERROR without a terminal error_reason and error_info"
    elif info.previous_phase == Phase.ERROR:
        yield "ERROR forgets the phase before it"


def _phase_tells_the_truth(before: Workspace, ws: Workspace, facts: Facts) -> Iterator[str]:
    if ws.conditions.healthy.reason == ErrorReason.CONTAINER_WITHOUT_VOLUME and facts.container is None:
        yield "ContainerWithoutVolume although no container was seen"
    if before.home.live and gone(before, facts):
        reason = ws.conditions.healthy.reason
        if ws.phase is not Phase.ERROR or ErrorReason(reason) not in LOST_HOME:
            yield "a live home is gone and it is not an error of a lost home"
    if ws.phase in (Phase.STANDBY, Phase.RUNNING) and ws.phase is not before.phase and not whole_volume(ws, facts):
        yield "a home is announced that was not seen whole"
    if facts.container_known and facts.volumes is not None and facts.container and facts.container.answered:
        orphan = gone(before, facts) and before.operation not in ENDS_CONTAINER
        if orphan and ws.phase is not Phase.ERROR:
            yield "a container runs without a volume and it is not an error"


# ── rules of the decision ──────────────────────────────────────────────────────────────────────────────────────────


def broken_by_decision(
    ws: Workspace, facts: Facts, possible: set[Phase], decision: Decision, *, late: bool
) -> str | None:
    kind = type(decision)
    if kind in DEFINITE_ACTS and not facts.runtime_known:
        return f"{kind.__name__} although the runtime does not answer"
    if ws.phase is Phase.ERROR and (wrong := _wrong_in_error(ws, decision)):
        return wrong
    if isinstance(decision, Begin):
        return _wrong_begin(ws, facts, possible, decision.operation)
    if isinstance(decision, Settled):
        return _wrong_rest(ws, facts, possible)
    if ws.operation is Operation.NONE:
        return f"{kind.__name__} without an operation" if kind in (Continue, Complete, TimedOut, Abandon) else None
    return _wrong_course(ws, facts, decision, late=late)


def _wrong_in_error(ws: Workspace, decision: Decision) -> str | None:
    deleting = ws.operation is Operation.DELETING or decision == Begin(Operation.DELETING)
    if deleting or isinstance(decision, Settled | Wait | Recover):
        return None
    return f"{decision} in ERROR"


def _wrong_begin(  # noqa: PLR0911 - a table of wrongs
    ws: Workspace, facts: Facts, possible: set[Phase], operation: Operation
) -> str | None:
    if ws.operation is not Operation.NONE:
        return "an operation begins while another runs"
    if ws.retry_at is not None and ws.retry_at > NOW:
        return "an operation begins before its next try is due"
    if operation in (Operation.STARTING, Operation.ARCHIVING) and not whole_volume(ws, facts):
        return f"{operation} begins on a volume that is absent, half restored or leaving"
    if operation in (Operation.PROVISIONING, Operation.RESTORING) and ws.home.live:
        return f"{operation} begins although a live home is expected"
    if operation is Operation.STOPPING and facts.container is not None:
        return None if goal(ws) != "RUNNING" else "a container is removed although RUNNING is wanted"
    if any((phase, operation) not in LEADS_TO for phase in possible):
        return f"{operation} begins although the phase is not known to be one it fits"
    return _wrong_direction(ws, operation)


def _wrong_direction(ws: Workspace, operation: Operation) -> str | None:
    if (ws.phase, operation) not in LEADS_TO:
        return f"{operation} skips a level from {ws.phase}"
    if ws.phase is Phase.ERROR:
        return None if ws.desired_state is Desired.DELETED else "DELETING although nobody asked"
    wanted, here, there = LEVEL[goal(ws)], LEVEL[ws.phase.value], LEVEL[LEADS_TO[ws.phase, operation]]
    return None if abs(there - wanted) < abs(here - wanted) else f"{operation} leads away from {goal(ws)}"


def _wrong_rest(ws: Workspace, facts: Facts, possible: set[Phase]) -> str | None:
    if ws.operation is not Operation.NONE:
        return "settled while an operation runs"
    if ws.phase is Phase.ERROR:
        return "settled in ERROR although deletion is wanted" if ws.desired_state is Desired.DELETED else None
    if ws.phase.value != goal(ws):
        return f"settled in {ws.phase} although {goal(ws)} is wanted"
    if ws.recover_pending or ws.restore_pending:
        return "settled with a wish unheard"
    known = facts.runtime_known and len(possible) == 1
    if known and ws.phase is not Phase.RUNNING and facts.container is not None:
        return f"settled in {ws.phase} beside a container that nobody removes"
    return None


def _wrong_course(  # noqa: PLR0911 - a table of wrongs
    ws: Workspace, facts: Facts, decision: Decision, *, late: bool
) -> str | None:
    done = DONE[ws.operation](ws, facts)
    store_unknown = ws.archive_key is not None and facts.archive is ArchiveState.UNKNOWN
    waiting = ws.retry_at is not None and ws.retry_at > NOW
    match decision:
        case Complete():
            return None if done else f"{ws.operation} is called done and is not"
        case TimedOut() if not late:
            return f"{ws.operation} times out before its deadline"
        case TimedOut() if store_unknown and ws.operation in NEEDS_STORE:
            return f"{ws.operation} times out while the object store does not answer"
        case Continue() if done:
            return f"{ws.operation} goes on although done"
        case Continue() if waiting:
            return f"{ws.operation} goes on before its next try is due"
        case Abandon() if ws.home.deleting_volume:
            return f"{ws.operation} is given up past its safe point"
        case Abandon() if ws.retry_at is None and ws.archive_op_id is not None:
            return f"{ws.operation} is given up without a failed try"
        case Wait(excused=False) if not facts.runtime_known and not ws.recover_pending:
            return "an outage counts against the deadline"
        case _:
            return None


# ── the walk ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Findings:
    """How often each rule was broken, and the first time."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, str] = {}

    def add(self, rule: str, facts: Facts, row: Workspace, decision: Decision | None = None) -> None:
        self.counts[rule] = self.counts.get(rule, 0) + 1
        if rule not in self.examples:
            self.examples[rule] = f"{decision}\n      {facts}\n      {_told(row)}"

    def report(self) -> str:
        return "\n".join(f"{n:>8} × {rule}\n      {self.examples[rule]}" for rule, n in self.counts.items())


def _told(row: Workspace) -> str:
    plain = workspace()
    told = {f.name: getattr(row, f.name) for f in fields(row) if getattr(row, f.name) != getattr(plain, f.name)}
    return ", ".join(f"{name}={value}" for name, value in told.items())


def test_every_situation_has_one_lawful_decision(tally: Tally) -> None:
    findings, phases, judgements, combinations = Findings(), PossiblePhases(), 0, 0
    kinds = get_args(Decision)
    for case in state_space.cases():
        judgements += 1
        before, facts = case.row, case.facts
        judged = judge(before, facts, NOW)
        possible = phases.of(case) if in_doubt(judged) else {judged.phase}
        ws = settle_health(before, judged, NOW)
        for rule in broken_by_judge(before, ws, facts, possible):
            findings.add(rule, facts, before)
        for loaded, wished, late in _with_every_desired_state(before, ws):
            combinations += 1
            decision = plan(loaded, wished, facts, POLICY, NOW)
            if type(decision) not in kinds:
                findings.add("no decision", facts, wished)
            elif wrong := broken_by_decision(wished, facts, possible, decision, late=late):
                findings.add(wrong, facts, wished, decision)
    tally(f"{combinations:,} combinations of row, observation, wish and moment ({judgements:,} judgements)")
    assert (judgements, combinations) == (state_space.JUDGEMENTS, state_space.COMBINATIONS)
    assert findings.counts == {}, f"\n{findings.report()}"


class PossiblePhases:
    """The phases of all definite completions of a case; remembered for one row, since most completions recur."""

    def __init__(self) -> None:
        self._row: Workspace | None = None
        self._known: dict[object, Phase] = {}

    def of(self, case: state_space.Case) -> set[Phase]:
        if case.row is not self._row:
            self._row, self._known = case.row, {}
        return {self._phase(case.row, state) for state in case.completions}

    def _phase(self, row: Workspace, state: Facts) -> Phase:
        key = (state.container, str(state.volumes), state.archive)
        if key not in self._known:
            self._known[key] = judge(row, state, NOW).phase
        return self._known[key]


def in_doubt(ws: Workspace) -> bool:
    seen = ws.conditions
    return None in (seen.volume_ready.status, seen.archive_ready.status, seen.container_ready.status)


def _with_every_desired_state(before: Workspace, ws: Workspace) -> Iterator[tuple[Workspace, Workspace, bool]]:
    """The two rows under every wish and moment. Scratch copies are written over: `replace` would cost 20 × the plan."""
    loaded, judged = replace(before), replace(ws)
    for name, changes in state_space.MOMENTS.items():
        late = name == "overdue"
        originals = [(row, field, getattr(row, field)) for row in (loaded, judged) for field in changes]
        for row, field, _ in originals:
            if not late or row.operation is not Operation.NONE:
                _set(row, field, changes[field])
        for desired in Desired:
            _set(loaded, "desired_state", desired)
            _set(judged, "desired_state", desired)
            yield loaded, judged, late
        for row, field, value in originals:
            _set(row, field, value)


def _set(row: Workspace, field: str, value: Any) -> None:
    object.__setattr__(row, field, value)


def test_judgement_does_not_depend_on_wish_or_moment() -> None:
    for case in islice(state_space.cases(), 0, None, 97):
        judged = judge(case.row, case.facts, NOW)
        for desired in Desired:
            for changes in state_space.MOMENTS.values():
                wished = {"desired_state": desired, **changes}
                assert judge(replace(case.row, **wished), case.facts, NOW) == replace(judged, **wished)


def test_judging_twice_changes_nothing() -> None:
    for case in islice(state_space.cases(), 0, None, 13):
        once = settle_health(case.row, judge(case.row, case.facts, NOW), NOW)
        again = settle_health(once, judge(once, case.facts, NOW), NOW)
        if once.operation is case.row.operation:  # an operation that ends may uncover another reason
            assert again == once, (case.facts, case.row)
