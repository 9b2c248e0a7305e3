"""Judging a workspace: observations become conditions, and conditions become the phase (contract 1). Pure.

Unknown is a value: if every value of the unknowns gives the same phase, that phase; else the previous one stays. A
volume that is half restored or on its way out is no home, whatever its name says: `volume_ready` is false.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import product
from uuid import UUID, uuid5

from codehub.domain.errors import REASONS, ErrorReason
from codehub.domain.transitions import REMOVES_CONTAINER
from codehub.domain.workspace import (
    HEALTHY,
    NO_ARCHIVE,
    NO_CONTAINER,
    NO_VOLUME,
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Workspace,
)


class ArchiveState(StrEnum):
    READABLE = "ArchiveUploaded"
    NOT_FOUND = "ArchiveNotFound"
    CORRUPTED = "ArchiveCorrupted"
    EXPIRED = "ArchiveExpired"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """A container as observed. `instance`: the engine's own id of this incarnation; `volume`: the volume that it holds;
    `answered`: it answers HTTP now. Not `known`: a container may be there, `detail` says why that cannot be told, and
    nothing else of it counts. `state`: the engine's own name for what it does, where that says more than we would.
    `evicted`: the engine ends it, or has ended it, and not because of anything that it did."""

    instance: str
    running: bool
    volume: str = ""
    answered: bool = False
    detail: str = ""
    known: bool = True
    state: str = ""
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What was observed of one workspace. None for `volumes`, and `container_known` false: there was no answer, or one
    that leaves it open, and `container_unknown` says why.
    `volumes`: the name of each volume, and the engine's own mark of this very volume; another one of the same name has
    another mark."""

    container: ContainerSeen | None = None
    container_known: bool = True
    volumes: Mapping[str, str] | None = field(default_factory=dict)
    archive: ArchiveState = ArchiveState.UNKNOWN
    container_unknown: str = ""

    @property
    def runtime_known(self) -> bool:
        return self.container_known and self.volumes is not None


NOTHING_KNOWN = Facts(container_known=False, volumes=None)

VOLUME_RESTORING = "HalfRestored"
VOLUME_LEAVING = "BeingDeleted"
VOLUME_STRANGE = "UnexpectedVolume"
VOLUME_REPLACED = "another volume stands under its name"
CONTAINER_STARTING = "Starting"
CONTAINER_ON_OLD_VOLUME = "OnOldVolume"
CONTAINER_EXITED = "Exited"
CONTAINER_READY = "Running"
VOLUME_READY = "VolumeProvisioned"
ARCHIVE_CORRUPTED = Condition(
    status=False, reason=ArchiveState.CORRUPTED.value, message="a restore has read it and found its checksum wrong"
)
UNOBSERVED = "could not be observed: the backend did not answer"


def judge(ws: Workspace, facts: Facts, now: datetime) -> Workspace:
    """The row as it should stand after this observation; equal to `ws` when nothing changed."""
    container = _container_condition(ws, facts)
    volume = _volume_condition(ws, facts)
    archive = _archive_condition(ws, facts)
    home = _home(ws, facts, container, volume)
    if None in (container.status, volume.status, archive.status):
        phase, healthy = _phase_despite_unknowns(ws, home, volume, archive, container)
    else:
        healthy = _health(ws, home, volume, archive, container)
        phase = phase_of(ws.deleted_at, volume, archive, container, healthy)
    old = ws.conditions
    conditions = Conditions(
        volume_ready=_stamped(old.volume_ready, volume, now),
        archive_ready=_stamped(old.archive_ready, archive, now),
        container_ready=_stamped(old.container_ready, container, now),
        healthy=_stamped(old.healthy, healthy, now),
        others=old.others,
    )
    archive_op_id = _archive_op_id(replace(ws, home=home), facts.container)
    if (conditions, phase, home, archive_op_id) == (old, ws.phase, ws.home, ws.archive_op_id):
        return ws
    return replace(
        ws,
        conditions=conditions,
        phase=phase,
        home=home,
        archive_op_id=archive_op_id,
        observed_at=now,
        phase_changed_at=now if phase != ws.phase else ws.phase_changed_at,
    )


def phase_of(
    deleted_at: datetime | None,
    volume: Condition,
    archive: Condition,
    container: Condition,
    healthy: Condition,
) -> Phase:
    if deleted_at is not None:
        return Phase.DELETED
    if healthy.status is False:
        return Phase.ERROR
    if container.status and volume.status:
        return Phase.RUNNING
    if volume.status:
        return Phase.STANDBY
    if archive.status:
        return Phase.ARCHIVED
    return Phase.PENDING


def _archive_op_id(ws: Workspace, seen: ContainerSeen | None) -> UUID | None:
    """The id of the archive that is of this home. A container may have changed the home, whoever started it and even if
    it has ended: an archive begun before is not of it. Past the safe point the home is archived once more before it
    goes, under an id that every leader finds alike; giving it back instead would be worse, as a delete of it may be on
    its way."""
    if seen is None or seen.volume not in ("", ws.home_store_key):
        return ws.archive_op_id
    if ws.home.live:
        return None
    return uuid5(ws.op_id, seen.instance) if ws.home.deleting_volume and ws.op_id else ws.archive_op_id


def _container_condition(ws: Workspace, facts: Facts) -> Condition:
    seen = facts.container
    if not facts.container_known:
        return Condition(None, ws.conditions.container_ready.reason, facts.container_unknown or UNOBSERVED)
    if seen is None:
        return NO_CONTAINER
    if not seen.running:
        exited = container_reason(ws.runtime, seen.state or CONTAINER_EXITED)
        return Condition(status=False, reason=exited, message=seen.detail)
    if seen.volume and seen.volume != ws.home_store_key:
        old_volume = container_reason(ws.runtime, CONTAINER_ON_OLD_VOLUME)
        return Condition(status=False, reason=old_volume, message=seen.volume)
    if seen.answered or ws.home.ready_instance == seen.instance:
        ready = container_reason(ws.runtime, seen.state if seen.evicted else CONTAINER_READY)
        return Condition(status=True, reason=ready, message=seen.detail if seen.evicted else "")
    starting = container_reason(ws.runtime, seen.state or CONTAINER_STARTING)
    return Condition(status=False, reason=starting, message=seen.detail)


def container_reason(runtime: str, state: str) -> str:
    """The reason of `infra.container_ready` names the backend that holds the container: `docker.Running`."""
    return f"{runtime}.{state}"


def _volume_condition(ws: Workspace, facts: Facts) -> Condition:
    if ws.home_store_key is None:
        return NO_VOLUME
    if facts.volumes is None:
        return Condition(None, ws.conditions.volume_ready.reason, UNOBSERVED)
    instance = facts.volumes.get(ws.home_store_key)
    if instance is None:
        return NO_VOLUME
    if ws.home.volume_instance not in (None, instance):
        return replace(NO_VOLUME, message=VOLUME_REPLACED)
    return _present_volume(ws)


def _present_volume(ws: Workspace) -> Condition:
    """The condition of a volume that is there under the row's name. It is the home only if it is live, or the running
    operation has just made it so: one that a stalled leader created late is empty and not the home."""
    if ws.home.restoring is not None:
        return Condition(status=False, reason=VOLUME_RESTORING)
    if ws.home.deleting_volume:
        return Condition(status=False, reason=VOLUME_LEAVING)
    restored = ws.home.marker is not None and ws.home.marker == (ws.archive_key, ws.op_id)
    if ws.home.live or ws.operation is Operation.PROVISIONING or restored:
        return Condition(status=True, reason=VOLUME_READY)
    return Condition(status=False, reason=VOLUME_STRANGE)


def _archive_condition(ws: Workspace, facts: Facts) -> Condition:
    if ws.archive_key is None:
        return NO_ARCHIVE
    if ws.archive_key in ws.home.corrupted:
        return ARCHIVE_CORRUPTED
    if facts.archive is ArchiveState.UNKNOWN:
        return Condition(None, ws.conditions.archive_ready.reason, UNOBSERVED)
    return Condition(status=facts.archive is ArchiveState.READABLE, reason=facts.archive.value)


def _home(ws: Workspace, facts: Facts, container: Condition, volume: Condition) -> HomeContext:
    """What the home context remembers (latches): a whole volume that was seen is live, and stays the only one that is;
    the container that answered stays ready while it runs."""
    home = ws.home
    if volume.status and not home.live:
        home = replace(home, live=True)
    if home.volume_instance is None and volume.reason in (VOLUME_READY, VOLUME_RESTORING) and facts.volumes:
        home = replace(home, volume_instance=facts.volumes.get(ws.home_store_key or ""))
    if facts.container_known:
        ready = facts.container.instance if facts.container and container.status else None
        if ready != home.ready_instance:
            home = replace(home, ready_instance=ready)
    if (evicted := _eviction(ws, facts, container)) != home.evicted:
        home = replace(home, evicted=evicted)
    return home


def _eviction(ws: Workspace, facts: Facts, container: Condition) -> str | None:
    """What the backend said of the container that it takes away, until another has answered or none is wanted."""
    seen = facts.container
    if ws.desired_state is not Desired.RUNNING or ws.operation in REMOVES_CONTAINER:
        return None
    if seen is not None and seen.evicted:
        return seen.detail or seen.state
    return None if container.status else ws.home.evicted


def _health(
    ws: Workspace,
    home: HomeContext,
    volume: Condition,
    archive: Condition,
    container: Condition,
) -> Condition:
    """The health of a workspace; the first rule that matches wins. A lost archive beside a live volume is not an error:
    the controller points elsewhere."""
    gone = volume.status is False and volume.reason == NO_VOLUME.reason
    if container.status and gone and ws.operation not in REMOVES_CONTAINER:
        return _unhealthy(ErrorReason.CONTAINER_WITHOUT_VOLUME)
    if ws.archive_key is not None and archive.status is False and not volume_lives(volume):
        return _unhealthy(ErrorReason.ARCHIVE_ACCESS_ERROR, archive.reason)
    if home.live and gone:
        return _unhealthy(ErrorReason.DATA_LOST)
    error = ws.error_info
    if error is not None and error.is_terminal and not REASONS[error.reason].clears_itself:
        return Condition(status=False, reason=error.reason.value, message=error.message)
    return HEALTHY


def volume_lives(volume: Condition) -> bool:
    """Whether the volume is whole and present, even if it is about to be deleted: it is the home should the archive be
    lost."""
    return volume.status is True or (volume.status is False and volume.reason == VOLUME_LEAVING)


def _unhealthy(reason: ErrorReason, detail: str = "") -> Condition:
    meaning = REASONS[reason].meaning
    return Condition(status=False, reason=reason.value, message=f"{meaning} ({detail})" if detail else meaning)


def _phase_despite_unknowns(
    ws: Workspace,
    home: HomeContext,
    volume: Condition,
    archive: Condition,
    container: Condition,
) -> tuple[Phase, Condition]:
    outcomes: dict[Phase, Condition] = {}
    for v, a, c in product(
        _values(volume, _present_volume(ws), NO_VOLUME),
        _values(archive, Condition(status=True, reason=ArchiveState.READABLE.value), NO_ARCHIVE),
        _values(container, NO_CONTAINER, Condition(status=True, reason=container_reason(ws.runtime, CONTAINER_READY))),
    ):
        healthy = _health(ws, home, v, a, c)
        outcomes.setdefault(phase_of(ws.deleted_at, v, a, c, healthy), healthy)
    if len(outcomes) == 1:
        return next(iter(outcomes.items()))
    return ws.phase, ws.conditions.healthy


def _values(condition: Condition, present: Condition, absent: Condition) -> tuple[Condition, ...]:
    return (present, absent) if condition.status is None else (condition,)


def _stamped(old: Condition, new: Condition, now: datetime) -> Condition:
    """The new condition with its transition time, which moves only when the status does."""
    same_status = old.status is new.status
    if same_status and old.reason == new.reason and old.message == new.message:
        return old
    return replace(new, last_transition_time=old.last_transition_time if same_status else now)
