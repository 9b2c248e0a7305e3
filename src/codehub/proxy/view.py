"""What a person sees instead of a workspace, already in their language, and the views that depend on no phase.

A view is plain data: rendered as a page, as JSON for the page that is already open, or as a problem for a program.
What a workspace's own row has to tell is in `workspace_view`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from codehub.domain.workspace import Desired, Operation, Workspace
from codehub.proxy.gate import Cap, Failure
from codehub.proxy.responses import plain_crowded, plain_failure
from codehub.proxy.texts import Language, say


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


class Kind(StrEnum):
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
    kind: Kind = Kind.PRIMARY
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
class Step:
    label: str
    reached: Reached


@dataclass(frozen=True, slots=True)
class View:
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
    steps: tuple[Step, ...] = ()
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


def dashboard(language: Language, link: str, kind: Kind = Kind.SECONDARY) -> Action:
    return Action(DASHBOARD, say(language, "action.dashboard"), kind, link)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit_view(
    workspace: Workspace, running: Sequence[Workspace], language: Language, *, limit: int | None = None
) -> View:
    """`running`: the person's own that hold a slot. `limit`: how many of them may; fewer than that means that others
    fill the installation. None: as many as are running."""
    others = [other for other in running if other.id != workspace.id]
    staying = [other for other in others if not _leaving(other)]
    leaving = len(staying) < len(others)
    kind = Kind.PRIMARY if len(staying) == 1 else Kind.SECONDARY
    actions = [
        Action(f"{INSTEAD}{other.id}", say(language, "action.instead", name=other.name), kind) for other in staying
    ]
    if limit != 0:
        actions.append(Action(WAKE, say(language, "action.again"), Kind.SECONDARY if staying else Kind.PRIMARY))
    choices = ["limit.leaving"] if leaving else []
    choices += ["limit.choose"] if staying and limit != 0 else []
    if not choices and limit != 0:
        choices = ["limit.wait"]
    return View(
        name="limit",
        status=429,
        title=say(language, "limit.title", name=workspace.name),
        text=_why_full(len(others), limit, language),
        detail=" ".join(say(language, key) for key in choices),
        emblem=Emblem.FULL,
        actions=tuple(actions),
        settled=not leaving,
    )


def owner_limit_view(workspace: Workspace, language: Language) -> View:
    """For an admin at somebody else's workspace: what else of the owner's runs is not for this page."""
    return View(
        name="limit",
        status=429,
        title=say(language, "limit.title", name=workspace.name),
        text=say(language, "limit.owner"),
        detail=say(language, "limit.owner_todo"),
        emblem=Emblem.FULL,
        actions=(Action(WAKE, say(language, "action.again")),),
        settled=True,
    )


def making_room(workspace: Workspace, other: Workspace, language: Language) -> View:
    """`other` was asked to stop; the page asks again until there is room."""
    return View(
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


def signed_out(language: Language, sign_in: str) -> View:
    """`sign_in`: the address of the sign-in page, with the way back."""
    return View(
        name="signed_out",
        status=401,
        title=say(language, "signed_out.title"),
        text=say(language, "signed_out.text"),
        emblem=Emblem.KEY,
        actions=(Action("sign_in", say(language, "action.sign_in"), link=sign_in),),
        settled=True,
    )


def no_cookie(language: Language) -> View:
    """The browser did not keep what lets it in: it takes such cookies over https, and from localhost."""
    return View(
        name="no_cookie",
        status=403,
        title=say(language, "no_cookie.title"),
        text=say(language, "no_cookie.text"),
        detail=say(language, "no_cookie.detail"),
        emblem=Emblem.KEY,
        settled=True,
    )


def own_address(name: str, own: str, here: str, language: Language) -> View:
    """Asked for within the platform's origin, though it has a host of its own. `own`, `here`: the two addresses."""
    return View(
        name="own_address",
        status=403,
        title=say(language, "own_address.title", name=name),
        text=say(language, "own_address.text"),
        detail=say(language, "own_address.detail"),
        emblem=Emblem.WARNING,
        actions=(
            Action("own", say(language, "own_address.own"), link=own),
            Action("here", say(language, "own_address.here"), Kind.SECONDARY, here),
        ),
        settled=True,
        inert=True,
    )


def not_found(language: Language, public_url: str = "") -> View:
    """The same to the last byte whether there is no such workspace or it is somebody else's."""
    return View(
        name="not_found",
        status=404,
        title=say(language, "not_found.title"),
        text=say(language, "not_found.text"),
        detail=say(language, "not_found.detail"),
        emblem=Emblem.NOWHERE,
        actions=(dashboard(language, f"{public_url}/", Kind.PRIMARY),),
        settled=True,
    )


def unavailable(language: Language) -> View:
    """We cannot look the workspace up: our own database does not answer."""
    return View(
        name="unavailable",
        status=503,
        title=say(language, "unavailable.title"),
        text=say(language, "unavailable.text"),
        detail=say(language, "unavailable.detail"),
        emblem=Emblem.PLUG,
        retry_seconds=3.0,
    )


_RETRIES: Final[dict[Failure, float | None]] = {
    Failure.UNREACHABLE: 2.0,
    Failure.BUSY: 5.0,
    Failure.CLOSED_EARLY: 3.0,
    Failure.GARBAGE: None,
    Failure.TOO_SLOW: None,
}
"""Asking again and again does not mend what speaks no HTTP, and keeps busy what is too busy."""


def failure_view(failure: Failure, language: Language, name: str = "") -> View:
    subject = name or say(language, "workspace")
    return View(
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


def crowded_view(cap: Cap, language: Language) -> View:
    return View(
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


def no_listener(port: int, name: str, language: Language) -> View:
    return View(
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
