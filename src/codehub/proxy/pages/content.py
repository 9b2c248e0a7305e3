"""The pages that a person sees instead of a workspace, as plain data, already in their language. Pure.

A page model is rendered as a page, as JSON for the page that is already open, or as a problem for a program. Some pages
depend on no phase; `workspace_page` tells what a workspace's row tells the person who came for it: where it is, what it
is at, and what they can do about it. Nothing here is a name of ours in capitals: what people read is said in their
words (`texts`), whatever the row holds.
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
from codehub.proxy.http.responses import failure_problem, overload_problem
from codehub.proxy.pages.texts import Language, amount, day, say


class Icon(StrEnum):
    """The picture on a page."""

    BUSY = "busy"
    MOON = "moon"
    BOX = "box"
    SPARK = "spark"
    WARNING = "warning"
    FULL = "full"
    KEY = "key"
    NOWHERE = "nowhere"
    PLUG = "plug"


class ActionKind(StrEnum):
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
    kind: ActionKind = ActionKind.PRIMARY
    link: str | None = None


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """How far an operation is. `fraction`: 0 to 1; None when nobody knows how much there is to do."""

    fraction: float | None
    text: str


class StepState(StrEnum):
    DONE = "done"
    NOW = "now"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class ProgressStep:
    label: str
    reached: StepState


@dataclass(frozen=True, slots=True)
class PageModel:
    """What a page says. `text`: what is going on. `detail`: why, and what to do. `report`: a failure's own words, as
    they were written.

    `wakes`: the page asks for the wake by itself, once, as soon as somebody sees it; with `unless_reloaded`, only if
    the browser calls its arrival no reload. `settled`: nothing changes unless somebody does something. `retry_seconds`:
    the page asks for its own address again until something else answers. `inert`: the page does nothing by itself, it
    waits for a choice between links.
    """

    name: str
    status: int
    title: str
    text: str
    emblem: Icon
    detail: str = ""
    report: str = ""
    progress: ProgressBar | None = None
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
        """A hash that is the same for pages that look the same, on whichever worker."""
        content = json.dumps(self.to_json(), sort_keys=True).encode()
        return hashlib.blake2b(content, digest_size=12).hexdigest()


_RETRIES: Final[dict[UpstreamFailure, float | None]] = {
    UpstreamFailure.UNREACHABLE: 2.0,
    UpstreamFailure.BUSY: 5.0,
    UpstreamFailure.CLOSED_EARLY: 3.0,
    UpstreamFailure.GARBAGE: None,
    UpstreamFailure.TOO_SLOW: None,
}
"""After how many seconds the page asks again; None: never. Asking again does not mend what speaks no HTTP, and keeps
busy what is too busy.
"""

_STARTED: Final = ("", "started")
"""The steps of a start that say nothing of an image."""
_WAITS: Final = ("pulling", "held")
"""The steps of a start that waits for something, which its progress names."""

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

_WAYS_DOWN: Final[Mapping[Operation, str]] = {
    Operation.STOPPING: "stopping",
    Operation.ARCHIVING: "archiving",
    Operation.RESTORING: "restoring",
    Operation.PROVISIONING: "preparing",
    Operation.CREATE_EMPTY_ARCHIVE: "preparing",
    Operation.DISCARDING: "discarding",
    Operation.DELETING: "deleting",
}
_RESTING: Final[Mapping[Phase, tuple[str, Icon]]] = {
    Phase.STANDBY: ("asleep", Icon.MOON),
    Phase.ARCHIVED: ("archived", Icon.BOX),
    Phase.PENDING: ("empty", Icon.SPARK),
}


def dashboard_action(language: Language, link: str, kind: ActionKind = ActionKind.SECONDARY) -> Action:
    return Action(DASHBOARD, say(language, "action.dashboard"), kind, link)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit_page(
    workspace: Workspace, running: Sequence[Workspace], language: Language, *, limit: int | None = None
) -> PageModel:
    """The page of a limit that is reached. `running`: the person's own workspaces that hold a slot. `limit`: how many
    of them may; fewer than that means that others fill the installation. None: as many as are running."""
    others = [other for other in running if other.id != workspace.id]
    staying = [other for other in others if not _leaving(other)]
    leaving = len(staying) < len(others)
    kind = ActionKind.PRIMARY if len(staying) == 1 else ActionKind.SECONDARY
    actions = [
        Action(f"{INSTEAD}{other.id}", say(language, "action.instead", name=other.name), kind) for other in staying
    ]
    if limit != 0:
        actions.append(
            Action(WAKE, say(language, "action.again"), ActionKind.SECONDARY if staying else ActionKind.PRIMARY)
        )
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
        emblem=Icon.FULL,
        actions=tuple(actions),
        settled=not leaving,
    )


def owner_limit_page(workspace: Workspace, language: Language) -> PageModel:
    """The page of a limit for an admin at somebody else's workspace: what else of the owner's runs is not for this
    page."""
    return PageModel(
        name="limit",
        status=429,
        title=say(language, "limit.title", name=workspace.name),
        text=say(language, "limit.owner"),
        detail=say(language, "limit.owner_todo"),
        emblem=Icon.FULL,
        actions=(Action(WAKE, say(language, "action.again")),),
        settled=True,
    )


def making_room_page(workspace: Workspace, other: Workspace, language: Language) -> PageModel:
    """The page while `other` was asked to stop: it asks again until there is room."""
    return PageModel(
        name="making_room",
        status=200,
        title=say(language, "room.title", name=workspace.name),
        text=say(language, "room.text", name=workspace.name, other=other.name),
        emblem=Icon.BUSY,
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


def _page(
    name: str,
    status: int,
    language: Language,
    emblem: Icon,
    /,
    *actions: Action,
    retry_seconds: float | None = None,
    **values: object,
) -> PageModel:
    """A page whose sentences are all found under its name."""
    title, text, detail = (say(language, f"{name}.{part}", **values) for part in ("title", "text", "detail"))
    return PageModel(
        name, status, title, text, emblem, detail, actions=actions, settled=True, retry_seconds=retry_seconds
    )


def _reload(language: Language) -> Action:
    return Action("reload", say(language, "action.again"))


def signed_out_page(language: Language, sign_in: str) -> PageModel:
    """The page for who is not signed in. `sign_in`: the address of the sign-in page, with the way back."""
    return PageModel(
        name="signed_out",
        status=401,
        title=say(language, "signed_out.title"),
        text=say(language, "signed_out.text"),
        emblem=Icon.KEY,
        actions=(Action("sign_in", say(language, "action.sign_in"), link=sign_in),),
        settled=True,
    )


def no_cookie_page(language: Language) -> PageModel:
    """The page for a browser that did not keep the cookie: it takes such cookies over https, and from localhost."""
    return _page("no_cookie", 403, language, Icon.KEY)


def own_address_page(name: str, own: str, here: str, language: Language) -> PageModel:
    """The page for a workspace that was asked for within the platform's origin, though it has a host of its own. `own`,
    `here`: the two addresses."""
    to_own = Action("own", say(language, "own_address.own"), link=own)
    to_here = Action("here", say(language, "own_address.here"), ActionKind.SECONDARY, here)
    return replace(_page("own_address", 403, language, Icon.WARNING, to_own, to_here, name=name), inert=True)


def not_found_page(language: Language, public_url: str = "") -> PageModel:
    """The page for no such workspace: the same to the last byte whether there is none or it is somebody else's."""
    to_dashboard = dashboard_action(language, f"{public_url}/", ActionKind.PRIMARY)
    return _page("not_found", 404, language, Icon.NOWHERE, to_dashboard)


def unavailable_page(language: Language) -> PageModel:
    """The page while the platform's own database does not answer."""
    return replace(_page("unavailable", 503, language, Icon.PLUG, retry_seconds=3.0), settled=False)


def failure_page(failure: UpstreamFailure, language: Language, name: str = "") -> PageModel:
    status, subject = failure_problem(failure).status, name or say(language, "workspace")
    retry = _RETRIES[failure]
    return _page(failure.value, status, language, Icon.PLUG, _reload(language), retry_seconds=retry, name=subject)


def overload_page(cap: Cap, language: Language) -> PageModel:
    status = overload_problem(cap).status
    return _page(cap.value, status, language, Icon.FULL, _reload(language), retry_seconds=10.0)


def no_listener_page(port: int, name: str, language: Language) -> PageModel:
    reload = _reload(language)
    return _page("no_listener", 502, language, Icon.PLUG, reload, retry_seconds=3.0, port=port, name=name)


def workspace_page(
    workspace: Workspace, access: Access, language: Language, *, wakes: bool, public_url: str = ""
) -> PageModel:
    """The page of a workspace as its row says. `wakes`: the page may ask for the wake by itself; it is taken up only
    where the access lets it. `public_url`: the dashboard's, without a slash at its end."""
    return _WorkspacePage(workspace, access, language, f"{public_url}/workspaces/{workspace.id}").view(wakes=wakes)


@dataclass(frozen=True, slots=True)
class _WorkspacePage:
    row: Workspace
    access: Access
    language: Language
    link: str

    def view(self, *, wakes: bool) -> PageModel:
        row = self.row
        if row.phase is Phase.DELETED:
            return self._deleted()
        if self.access.action is AccessAction.FORWARD:
            return self._view("running", Icon.BUSY, steps=self._steps())
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
        view = self._view("starting", Icon.BUSY, text=f"starting.{self._step()}", steps=self._steps())
        trouble, report = self._trouble()
        return replace(
            view,
            name="waiting",
            detail=trouble or self._say("starting.detail"),
            report=report or (row.op_progress.step if row.op_progress and self._step() in _WAITS else ""),
            progress=self._bar(),
        )

    def _step(self) -> str:
        """The step that a start is at, as the last part of its sentence's key."""
        row = self.row
        match row.operation:
            case Operation.STARTING if row.op_progress is not None and row.op_progress.step not in _STARTED:
                return "pulling" if row.op_progress.step.startswith("pulling ") else "held"
            case Operation.NONE | Operation.STARTING if row.home.evicted is not None:
                return "evicted"
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
        """Whether the container runs and has not answered yet."""
        progress = self.row.op_progress
        starting = container_reason(self.row.runtime, CONTAINER_STARTING)
        is_started = progress is not None and progress.step == "started"
        return is_started or self.row.conditions.container_ready.reason == starting

    def _steps(self) -> tuple[ProgressStep, ...]:
        """The steps of a start: always the same three, so that the list stays while the phases pass."""
        row = self.row
        home = row.phase is Phase.RUNNING or (row.phase is Phase.STANDBY and row.operation is not Operation.ARCHIVING)
        up = row.phase is Phase.RUNNING or (home and row.operation is Operation.STARTING and self._is_up)
        if row.container_is_ending:
            up = False
        reached = 2 if up else 1 if home else 0
        labels = ("step.files", "step.start", "step.editor")
        states = [StepState.DONE] * reached + [StepState.NOW] + [StepState.NEXT] * (2 - reached)
        return tuple(ProgressStep(self._say(label), state) for label, state in zip(labels, states, strict=True))

    def _bar(self) -> ProgressBar | None:
        progress = self.row.op_progress
        if progress is None or self.row.operation not in (Operation.RESTORING, Operation.ARCHIVING):
            return None
        if not progress.bytes and not progress.total_bytes:
            return None
        fraction = min(progress.bytes / progress.total_bytes, 1.0) if progress.total_bytes else None
        return ProgressBar(fraction, amount(self.language, progress.bytes, progress.total_bytes))

    def _trouble(self) -> tuple[str, str]:
        """What holds a start up, in our words and in the failure's own."""
        row, conditions = self.row, self.row.conditions
        needs_archive = row.phase is Phase.ARCHIVED or row.operation is Operation.RESTORING
        if conditions.container_ready.status is None or conditions.volume_ready.status is None:
            return self._say("trouble.runtime"), ""
        if needs_archive and conditions.archive_ready.status is None:
            return self._say("trouble.archive"), ""
        if row.error_info is not None and row.error_count:
            return self._say("trouble.retry", count=row.error_count), _plain(row.error_info.message)
        if row.home.evicted is not None and self._step() in _WAITS:
            return self._say("starting.evicted"), ""
        return "", ""

    # ── at rest, or on its way there ─────────────────────────────────────────────────────────────────────────────────

    def _at_rest(self, *, wakes: bool) -> PageModel:
        name, emblem = self._rest()
        if wakes:
            text = None if self.row.operation is Operation.NONE else f"starting.{self._step()}"
            view = self._view("waking", Icon.BUSY, text=text, steps=self._steps(), progress=self._bar())
            return replace(view, name="waiting", wakes=True)
        view = self._view(name, emblem, detail=f"{name}.detail", progress=self._bar())
        label = {"archived": "action.restore", "stopping": "action.start_again"}.get(name, "action.start")
        actions = (Action(WAKE, self._say(label)), self._dashboard())
        trouble, report = self._trouble() if self._is_busy else ("", "")
        return replace(view, actions=actions, detail=trouble or view.detail, report=report, settled=not self._is_busy)

    def _rest(self) -> tuple[str, Icon]:
        row = self.row
        if row.operation in _WAYS_DOWN:
            return _WAYS_DOWN[row.operation], Icon.BUSY
        if row.operation is Operation.STARTING or row.phase is Phase.RUNNING:
            return "stopping", Icon.BUSY
        if row.phase is not Phase.PENDING and row.desired_state is Desired.PENDING:
            return "discarding", Icon.BUSY
        return _RESTING[row.phase]

    @property
    def _is_busy(self) -> bool:
        return not self.row.is_at_rest

    def _deleting(self) -> PageModel:
        view = self._view("deleting", Icon.BUSY, detail="deleting.detail", progress=self._bar())
        return replace(view, actions=(self._dashboard(),))

    def _deleted(self) -> PageModel:
        if self.row.undelete_pending:
            return self._view("returning", Icon.BUSY)
        gone = self.row.purged_at is not None
        view = self._view("deleted", Icon.NOWHERE, text="deleted.gone" if gone else "deleted.text")
        return replace(view, actions=() if gone else (self._dashboard(ActionKind.PRIMARY),), settled=True)

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recovering(self) -> PageModel:
        return replace(self._view("recovering", Icon.BUSY), actions=(self._dashboard(),))

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
            emblem=Icon.WARNING,
            actions=(self._dashboard(ActionKind.PRIMARY),),
            settled=not (reason and REASONS[reason].clears_itself),
        )

    def _whereabouts(self, reason: ErrorReason | None) -> str:
        """The sentence that says where the files are, if that was seen."""
        conditions = self.row.conditions
        if conditions.volume_ready.status is True and self.row.home.live:
            return self._say("error.home_there")
        archived = conditions.archive_ready.status is True and not self.row.home.live
        return self._say("error.home_archived") if archived and reason is not ErrorReason.ARCHIVE_CORRUPTED else ""

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _view(
        self,
        name: str,
        emblem: Icon,
        *,
        text: str | None = None,
        detail: str | None = None,
        steps: tuple[ProgressStep, ...] = (),
        progress: ProgressBar | None = None,
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

    def _dashboard(self, kind: ActionKind = ActionKind.SECONDARY) -> Action:
        return dashboard_action(self.language, self.link, kind)


def _reason(row: Workspace) -> ErrorReason | None:
    """The reason of an error: the row's own, else the condition's, for what clears by itself is seen before it is
    written as an error."""
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
