"""What a person sees instead of a workspace, already in their language, and the views that depend on no phase.

A view is plain data: rendered as a page, as JSON for the page that is already open, or as a problem for a program.
What a workspace's own row has to tell is in `workspace_view`.

What a workspace's row tells the person at its door: where it is, what it is at, and what they can do about it. Pure.

Nothing here is a name of ours in capitals: what people read is said in their words (`texts`), whatever the row holds.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from codehub.domain.access import Access, AccessAction
from codehub.domain.errors import REASONS, ErrorReason
from codehub.domain.judge import CONTAINER_STARTING, container_reason
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.proxy.access.verdicts import Cap, UpstreamFailure
from codehub.proxy.http.responses import plain_crowded, plain_failure
from codehub.proxy.pages.texts import Language, amount, day, say


class Emblem(StrEnum):
    """The picture of a view."""

    BUSY = "busy"
    MOON = "moon"
    BOX = "box"
    SPARK = "spark"
    WARNING = "warning"
    FULL = "full"
    KEY = "key"
    NOWHERE = "nowhere"
    PLUG = "plug"


class PageKind(StrEnum):
    PRIMARY = "primary"
    SECONDARY = "secondary"


WAKE: Final = "wake"
INSTEAD: Final = "instead:"
DASHBOARD: Final = "dashboard"


@dataclass(frozen=True, slots=True)
class Action:
    """A button. Without a link, the page posts it: `wake`, or `instead:{id}` of the workspace to stop first."""

    id: str
    label: str
    kind: PageKind = PageKind.PRIMARY
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """`fraction`: 0 to 1; None when nobody knows how much there is to do."""

    fraction: float | None
    text: str


class Reached(StrEnum):
    DONE = "done"
    NOW = "now"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class ProgressStep:
    label: str
    reached: Reached


@dataclass(frozen=True, slots=True)
class PageModel:
    """`text`: what is going on. `detail`: why, and what to do. `report`: a failure's own words, as they were written.

    `wakes`: the page asks for the wake by itself, once, as soon as somebody sees it; with `unless_reloaded`, only if
    the browser calls its arrival no reload. `settled`: nothing changes unless somebody does something.
    `retry_seconds`: the page asks for its own address again until something else answers. `inert`: the page does
    nothing by itself, it waits for a choice between links.
    """

    name: str
    status: int
    title: str
    text: str
    emblem: Emblem
    detail: str = ""
    report: str = ""
    progress: Bar | None = None
    steps: tuple[ProgressStep, ...] = ()
    actions: tuple[Action, ...] = ()
    wakes: bool = False
    unless_reloaded: bool = False
    settled: bool = False
    retry_seconds: float | None = None
    inert: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def version(self) -> str:
        """The same for views that look the same, on whichever front door."""
        content = json.dumps(self.to_json(), sort_keys=True).encode()
        return hashlib.blake2b(content, digest_size=12).hexdigest()


def dashboard(language: Language, link: str, kind: PageKind = PageKind.SECONDARY) -> Action:
    return Action(DASHBOARD, say(language, "action.dashboard"), kind, link)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit_view(
    workspace: Workspace, running: Sequence[Workspace], language: Language, *, limit: int | None = None
) -> PageModel:
    """`running`: the person's own that hold a slot. `limit`: how many of them may; fewer than that means that others
    fill the installation. None: as many as are running."""
    others = [other for other in running if other.id != workspace.id]
    staying = [other for other in others if not _leaving(other)]
    leaving = len(staying) < len(others)
    kind = PageKind.PRIMARY if len(staying) == 1 else PageKind.SECONDARY
    actions = [
        Action(f"{INSTEAD}{other.id}", say(language, "action.instead", name=other.name), kind) for other in staying
    ]
    if limit != 0:
        actions.append(Action(WAKE, say(language, "action.again"), PageKind.SECONDARY if staying else PageKind.PRIMARY))
    choices = ["limit.leaving"] if leaving else []
    choices += ["limit.choose"] if staying and limit != 0 else []
    if not choices and limit != 0:
        choices = ["limit.wait"]
    return PageModel(
        name="limit",
        status=429,
        title=say(language, "limit.title", name=workspace.name),
        text=_why_full(len(others), limit, language),
        detail=" ".join(say(language, key) for key in choices),
        emblem=Emblem.FULL,
        actions=tuple(actions),
        settled=not leaving,
    )


def owner_limit_view(workspace: Workspace, language: Language) -> PageModel:
    """For an admin at somebody else's workspace: what else of the owner's runs is not for this page."""
    return PageModel(
        name="limit",
        status=429,
        title=say(language, "limit.title", name=workspace.name),
        text=say(language, "limit.owner"),
        detail=say(language, "limit.owner_todo"),
        emblem=Emblem.FULL,
        actions=(Action(WAKE, say(language, "action.again")),),
        settled=True,
    )


def making_room(workspace: Workspace, other: Workspace, language: Language) -> PageModel:
    """`other` was asked to stop; the page asks again until there is room."""
    return PageModel(
        name="making_room",
        status=200,
        title=say(language, "room.title", name=workspace.name),
        text=say(language, "room.text", name=workspace.name, other=other.name),
        emblem=Emblem.BUSY,
    )


def _leaving(other: Workspace) -> bool:
    return other.desired_state is not Desired.RUNNING or other.operation is Operation.STOPPING


def _why_full(holding: int, limit: int | None, language: Language) -> str:
    if limit == 0:
        return say(language, "limit.none")
    if holding == 0 or (limit is not None and holding < limit):
        return say(language, "limit.full")
    most = limit or holding
    return say(language, "limit.own_one") if most == 1 else say(language, "limit.own", count=most)


# ── not in, not there, no answer ─────────────────────────────────────────────────────────────────────────────────────


def signed_out(language: Language, sign_in: str) -> PageModel:
    """`sign_in`: the address of the sign-in page, with the way back."""
    return PageModel(
        name="signed_out",
        status=401,
        title=say(language, "signed_out.title"),
        text=say(language, "signed_out.text"),
        emblem=Emblem.KEY,
        actions=(Action("sign_in", say(language, "action.sign_in"), link=sign_in),),
        settled=True,
    )


def no_cookie(language: Language) -> PageModel:
    """The browser did not keep what lets it in: it takes such cookies over https, and from localhost."""
    return PageModel(
        name="no_cookie",
        status=403,
        title=say(language, "no_cookie.title"),
        text=say(language, "no_cookie.text"),
        detail=say(language, "no_cookie.detail"),
        emblem=Emblem.KEY,
        settled=True,
    )


def own_address(name: str, own: str, here: str, language: Language) -> PageModel:
    """Asked for within the platform's origin, though it has a host of its own. `own`, `here`: the two addresses."""
    return PageModel(
        name="own_address",
        status=403,
        title=say(language, "own_address.title", name=name),
        text=say(language, "own_address.text"),
        detail=say(language, "own_address.detail"),
        emblem=Emblem.WARNING,
        actions=(
            Action("own", say(language, "own_address.own"), link=own),
            Action("here", say(language, "own_address.here"), PageKind.SECONDARY, here),
        ),
        settled=True,
        inert=True,
    )


def not_found(language: Language, public_url: str = "") -> PageModel:
    """The same to the last byte whether there is no such workspace or it is somebody else's."""
    return PageModel(
        name="not_found",
        status=404,
        title=say(language, "not_found.title"),
        text=say(language, "not_found.text"),
        detail=say(language, "not_found.detail"),
        emblem=Emblem.NOWHERE,
        actions=(dashboard(language, f"{public_url}/", PageKind.PRIMARY),),
        settled=True,
    )


def unavailable(language: Language) -> PageModel:
    """We cannot look the workspace up: our own database does not answer."""
    return PageModel(
        name="unavailable",
        status=503,
        title=say(language, "unavailable.title"),
        text=say(language, "unavailable.text"),
        detail=say(language, "unavailable.detail"),
        emblem=Emblem.PLUG,
        retry_seconds=3.0,
    )


_RETRIES: Final[dict[UpstreamFailure, float | None]] = {
    UpstreamFailure.UNREACHABLE: 2.0,
    UpstreamFailure.BUSY: 5.0,
    UpstreamFailure.CLOSED_EARLY: 3.0,
    UpstreamFailure.GARBAGE: None,
    UpstreamFailure.TOO_SLOW: None,
}
"""Asking again and again does not mend what speaks no HTTP, and keeps busy what is too busy."""


def failure_view(failure: UpstreamFailure, language: Language, name: str = "") -> PageModel:
    subject = name or say(language, "workspace")
    return PageModel(
        name=failure.value,
        status=plain_failure(failure).status,
        title=say(language, f"{failure.value}.title", name=subject),
        text=say(language, f"{failure.value}.text"),
        detail=say(language, f"{failure.value}.detail"),
        emblem=Emblem.PLUG,
        actions=(Action("reload", say(language, "action.again")),),
        settled=True,
        retry_seconds=_RETRIES[failure],
    )


def crowded_view(cap: Cap, language: Language) -> PageModel:
    return PageModel(
        name=cap.value,
        status=plain_crowded(cap).status,
        title=say(language, f"{cap.value}.title"),
        text=say(language, f"{cap.value}.text"),
        detail=say(language, f"{cap.value}.detail"),
        emblem=Emblem.FULL,
        actions=(Action("reload", say(language, "action.again")),),
        settled=True,
        retry_seconds=10.0,
    )


def no_listener(port: int, name: str, language: Language) -> PageModel:
    return PageModel(
        name="no_listener",
        status=502,
        title=say(language, "no_listener.title", port=port),
        text=say(language, "no_listener.text", port=port, name=name),
        detail=say(language, "no_listener.detail"),
        emblem=Emblem.PLUG,
        actions=(Action("reload", say(language, "action.again")),),
        settled=True,
        retry_seconds=3.0,
    )


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


def view_of(
    workspace: Workspace, access: Access, language: Language, *, wakes: bool, public_url: str = ""
) -> PageModel:
    """`wakes`: the page may ask for the wake by itself; it is taken up only where the access lets it.
    `public_url`: the dashboard's, without a slash at its end."""
    return _Teller(workspace, access, language, f"{public_url}/workspaces/{workspace.id}").view(wakes=wakes)


@dataclass(frozen=True, slots=True)
class _Teller:
    row: Workspace
    access: Access
    language: Language
    link: str

    def view(self, *, wakes: bool) -> PageModel:
        row = self.row
        if row.phase is Phase.DELETED:
            return self._deleted()
        if self.access.action is AccessAction.FORWARD:
            return self._view("running", Emblem.BUSY, steps=self._steps())
        if row.desired_state is Desired.DELETED:
            return self._deleting()
        if row.phase is Phase.ERROR:
            return self._recovering() if row.recover_pending else self._error()
        if row.desired_state is Desired.RUNNING:
            return self._coming_up()
        return self._at_rest(wakes=wakes and self.access.may_wake)

    # ── coming up ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _coming_up(self) -> PageModel:
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

    def _steps(self) -> tuple[ProgressStep, ...]:
        """The same three from wherever it begins, so that the list stays while the phases pass."""
        row = self.row
        home = row.phase is Phase.RUNNING or (row.phase is Phase.STANDBY and row.operation is not Operation.ARCHIVING)
        up = row.phase is Phase.RUNNING or (home and row.operation is Operation.STARTING and self._is_up)
        if row.operation is Operation.STOPPING:
            up = False
        reached = 2 if up else 1 if home else 0
        labels = ("step.files", "step.start", "step.editor")
        states = [Reached.DONE] * reached + [Reached.NOW] + [Reached.NEXT] * (2 - reached)
        return tuple(ProgressStep(self._say(label), state) for label, state in zip(labels, states, strict=True))

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

    def _at_rest(self, *, wakes: bool) -> PageModel:
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

    def _deleting(self) -> PageModel:
        view = self._view("deleting", Emblem.BUSY, detail="deleting.detail", progress=self._bar())
        return replace(view, actions=(self._dashboard(),))

    def _deleted(self) -> PageModel:
        if self.row.undelete_pending:
            return self._view("returning", Emblem.BUSY)
        gone = self.row.purged_at is not None
        view = self._view("deleted", Emblem.NOWHERE, text="deleted.gone" if gone else "deleted.text")
        return replace(view, actions=() if gone else (self._dashboard(PageKind.PRIMARY),), settled=True)

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recovering(self) -> PageModel:
        return replace(self._view("recovering", Emblem.BUSY), actions=(self._dashboard(),))

    def _error(self) -> PageModel:
        row, reason = self.row, _reason(self.row)
        about = reason.value if reason else "unknown"
        operation = row.error_info.operation if row.error_info else Operation.NONE.value
        key = f"doing.{operation if operation in Operation.__members__ else Operation.NONE.value}"
        whereabouts = self._whereabouts(reason)
        return PageModel(
            name="error",
            status=self.access.http_status,
            title=self._say("error.title", name=row.name),
            text=self._say(f"error.{about}.text", doing=self._say(key)),
            detail=" ".join(part for part in (whereabouts, self._say(f"error.{about}.todo")) if part),
            report=_plain(row.error_info.message if row.error_info else ""),
            emblem=Emblem.WARNING,
            actions=(self._dashboard(PageKind.PRIMARY),),
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
        steps: tuple[ProgressStep, ...] = (),
        progress: Bar | None = None,
    ) -> PageModel:
        row = self.row
        return PageModel(
            name=name,
            status=self.access.http_status,
            title=self._say(f"{name}.title", name=row.name),
            text=self._say(text or f"{name}.text", name=row.name, since=day(self.language, row.phase_changed_at)),
            detail=self._say(detail) if detail else "",
            emblem=emblem,
            steps=steps,
            progress=progress,
        )

    def _say(self, key: str, **values: object) -> str:
        return say(self.language, key, **values)

    def _dashboard(self, kind: PageKind = PageKind.SECONDARY) -> Action:
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
