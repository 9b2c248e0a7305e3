"""What a workspace's row tells the person at its door: where it is, what it is at, and what they can do about it. Pure.

Nothing here is a name of ours in capitals: what people read is said in their words (`texts`), whatever the row holds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from codehub.domain.access import Door, Doorway
from codehub.domain.errors import REASONS, ErrorReason
from codehub.domain.judge import CONTAINER_STARTING, container_reason
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.proxy.texts import Language, amount, day, say
from codehub.proxy.view import WAKE, Action, Bar, Emblem, Kind, Reached, Step, View, dashboard

_STARTED: Final = ("", "started")
"""The steps of a start that say nothing of an image."""

_PLAIN: Final[Mapping[str, str]] = {
    "NONE": "the last step",
    "PROVISIONING": "making the home directory",
    "CREATE_EMPTY_ARCHIVE": "making the archive",
    "RESTORING": "restoring",
    "STARTING": "starting",
    "STOPPING": "stopping",
    "ARCHIVING": "archiving",
    "DISCARDING": "discarding",
    "DELETING": "deleting",
    "PENDING": "empty",
    "ARCHIVED": "archived",
    "STANDBY": "asleep",
    "RUNNING": "running",
    "DELETED": "deleted",
    "ERROR": "an error",
}
_NAMES: Final = re.compile(rf"\b(?:{'|'.join(_PLAIN)})\b")
_LONGEST_REPORT: Final = 600


def view_of(workspace: Workspace, doorway: Doorway, language: Language, *, wakes: bool, public_url: str = "") -> View:
    """`wakes`: the page may ask for the wake by itself; it is taken up only where the doorway lets it.
    `public_url`: the dashboard's, without a slash at its end."""
    return _Teller(workspace, doorway, language, f"{public_url}/workspaces/{workspace.id}").view(wakes=wakes)


@dataclass(frozen=True, slots=True)
class _Teller:
    row: Workspace
    doorway: Doorway
    language: Language
    link: str

    def view(self, *, wakes: bool) -> View:
        row = self.row
        if row.phase is Phase.DELETED:
            return self._deleted()
        if self.doorway.door is Door.FORWARD:
            return self._view("running", Emblem.BUSY, steps=self._steps())
        if row.desired_state is Desired.DELETED:
            return self._deleting()
        if row.phase is Phase.ERROR:
            return self._recovering() if row.recover_pending else self._error()
        if row.desired_state is Desired.RUNNING:
            return self._coming_up()
        return self._at_rest(wakes=wakes and self.doorway.may_wake)

    # ── coming up ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _coming_up(self) -> View:
        row = self.row
        view = self._view("starting", Emblem.BUSY, text=f"starting.{self._step()}", steps=self._steps())
        trouble, report = self._trouble()
        return replace(
            view,
            name="waiting",
            detail=trouble or self._say("starting.detail"),
            report=report or (row.op_progress.step if row.op_progress and self._step() == "pulling" else ""),
            progress=self._bar(),
        )

    def _step(self) -> str:
        """The last part of the sentence's key."""
        row = self.row
        match row.operation:
            case Operation.STARTING if row.op_progress is not None and row.op_progress.step not in _STARTED:
                return "pulling"
            case Operation.STARTING if self._is_up:
                return "answering"
            case Operation.ARCHIVING if row.home.deleting_volume:
                return "leaving"
            case Operation.CREATE_EMPTY_ARCHIVE | Operation.DISCARDING | Operation.DELETING:
                return "other"
            case _:
                return row.operation.value

    @property
    def _is_up(self) -> bool:
        """Its container runs and has not answered yet."""
        progress = self.row.op_progress
        starting = container_reason(self.row.runtime, CONTAINER_STARTING)
        is_started = progress is not None and progress.step == "started"
        return is_started or self.row.conditions.container_ready.reason == starting

    def _steps(self) -> tuple[Step, ...]:
        """The same three from wherever it begins, so that the list stays while the phases pass."""
        row = self.row
        home = row.phase is Phase.RUNNING or (row.phase is Phase.STANDBY and row.operation is not Operation.ARCHIVING)
        up = row.phase is Phase.RUNNING or (home and row.operation is Operation.STARTING and self._is_up)
        if row.operation is Operation.STOPPING:
            up = False
        reached = 2 if up else 1 if home else 0
        labels = ("step.files", "step.start", "step.editor")
        states = [Reached.DONE] * reached + [Reached.NOW] + [Reached.NEXT] * (2 - reached)
        return tuple(Step(self._say(label), state) for label, state in zip(labels, states, strict=True))

    def _bar(self) -> Bar | None:
        progress = self.row.op_progress
        if progress is None or self.row.operation not in (Operation.RESTORING, Operation.ARCHIVING):
            return None
        if not progress.bytes and not progress.total_bytes:
            return None
        fraction = min(progress.bytes / progress.total_bytes, 1.0) if progress.total_bytes else None
        return Bar(fraction, amount(self.language, progress.bytes, progress.total_bytes))

    def _trouble(self) -> tuple[str, str]:
        """What holds it up, in our words and in the failure's own."""
        row, conditions = self.row, self.row.conditions
        needs_archive = row.phase is Phase.ARCHIVED or row.operation is Operation.RESTORING
        if conditions.container_ready.status is None or conditions.volume_ready.status is None:
            return self._say("trouble.runtime"), ""
        if needs_archive and conditions.archive_ready.status is None:
            return self._say("trouble.archive"), ""
        if row.error_info is not None and row.error_count:
            return self._say("trouble.retry", count=row.error_count), _plain(row.error_info.message)
        return "", ""

    # ── at rest, or on its way there ─────────────────────────────────────────────────────────────────────────────────

    def _at_rest(self, *, wakes: bool) -> View:
        name, emblem = self._rest()
        if wakes:
            text = None if self.row.operation is Operation.NONE else f"starting.{self._step()}"
            view = self._view("waking", Emblem.BUSY, text=text, steps=self._steps(), progress=self._bar())
            return replace(view, name="waiting", wakes=True)
        view = self._view(name, emblem, detail=f"{name}.detail", progress=self._bar())
        label = {"archived": "action.restore", "stopping": "action.start_again"}.get(name, "action.start")
        actions = (Action(WAKE, self._say(label)), self._dashboard())
        trouble, report = self._trouble() if self._is_busy else ("", "")
        return replace(view, actions=actions, detail=trouble or view.detail, report=report, settled=not self._is_busy)

    def _rest(self) -> tuple[str, Emblem]:
        row = self.row
        if row.operation in _WAYS_DOWN:
            return _WAYS_DOWN[row.operation], Emblem.BUSY
        if row.operation is Operation.STARTING or row.phase is Phase.RUNNING:
            return "stopping", Emblem.BUSY
        if row.phase is not Phase.PENDING and row.desired_state is Desired.PENDING:
            return "discarding", Emblem.BUSY
        return _RESTS[row.phase]

    @property
    def _is_busy(self) -> bool:
        row = self.row
        return row.operation is not Operation.NONE or row.phase.value != row.desired_state.value or row.wish_pending

    def _deleting(self) -> View:
        view = self._view("deleting", Emblem.BUSY, detail="deleting.detail", progress=self._bar())
        return replace(view, actions=(self._dashboard(),))

    def _deleted(self) -> View:
        if self.row.undelete_pending:
            return self._view("returning", Emblem.BUSY)
        gone = self.row.purged_at is not None
        view = self._view("deleted", Emblem.NOWHERE, text="deleted.gone" if gone else "deleted.text")
        return replace(view, actions=() if gone else (self._dashboard(Kind.PRIMARY),), settled=True)

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recovering(self) -> View:
        return replace(self._view("recovering", Emblem.BUSY), actions=(self._dashboard(),))

    def _error(self) -> View:
        row, reason = self.row, _reason(self.row)
        about = reason.value if reason else "unknown"
        operation = row.error_info.operation if row.error_info else Operation.NONE.value
        key = f"doing.{operation if operation in Operation.__members__ else Operation.NONE.value}"
        whereabouts = self._whereabouts(reason)
        return View(
            name="error",
            status=self.doorway.http_status,
            title=self._say("error.title", name=row.name),
            text=self._say(f"error.{about}.text", doing=self._say(key)),
            detail=" ".join(part for part in (whereabouts, self._say(f"error.{about}.todo")) if part),
            report=_plain(row.error_info.message if row.error_info else ""),
            emblem=Emblem.WARNING,
            actions=(self._dashboard(Kind.PRIMARY),),
            settled=not (reason and REASONS[reason].clears_itself),
        )

    def _whereabouts(self, reason: ErrorReason | None) -> str:
        """Said only of what was seen."""
        conditions = self.row.conditions
        if conditions.volume_ready.status is True and self.row.home.live:
            return self._say("error.home_there")
        archived = conditions.archive_ready.status is True and not self.row.home.live
        return self._say("error.home_archived") if archived and reason is not ErrorReason.ARCHIVE_CORRUPTED else ""

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _view(
        self,
        name: str,
        emblem: Emblem,
        *,
        text: str | None = None,
        detail: str | None = None,
        steps: tuple[Step, ...] = (),
        progress: Bar | None = None,
    ) -> View:
        row = self.row
        return View(
            name=name,
            status=self.doorway.http_status,
            title=self._say(f"{name}.title", name=row.name),
            text=self._say(text or f"{name}.text", name=row.name, since=day(self.language, row.phase_changed_at)),
            detail=self._say(detail) if detail else "",
            emblem=emblem,
            steps=steps,
            progress=progress,
        )

    def _say(self, key: str, **values: object) -> str:
        return say(self.language, key, **values)

    def _dashboard(self, kind: Kind = Kind.SECONDARY) -> Action:
        return dashboard(self.language, self.link, kind)


_WAYS_DOWN: Final[Mapping[Operation, str]] = {
    Operation.STOPPING: "stopping",
    Operation.ARCHIVING: "archiving",
    Operation.RESTORING: "restoring",
    Operation.PROVISIONING: "preparing",
    Operation.CREATE_EMPTY_ARCHIVE: "preparing",
    Operation.DISCARDING: "discarding",
    Operation.DELETING: "deleting",
}
_RESTS: Final[Mapping[Phase, tuple[str, Emblem]]] = {
    Phase.STANDBY: ("asleep", Emblem.MOON),
    Phase.ARCHIVED: ("archived", Emblem.BOX),
    Phase.PENDING: ("empty", Emblem.SPARK),
}


def _reason(row: Workspace) -> ErrorReason | None:
    """The row's own, else the condition's: what clears by itself is seen before it is written as an error."""
    if row.error_reason is not None:
        return row.error_reason
    try:
        return ErrorReason(row.conditions.healthy.reason)
    except ValueError:
        return None


def _plain(message: str) -> str:
    """A failure's own words, with ours for the names of operations and phases."""
    said = _NAMES.sub(lambda found: _PLAIN[found[0]], message[:_LONGEST_REPORT]).strip()
    return said[:1].upper() + said[1:]
