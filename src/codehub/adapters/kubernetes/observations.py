"""What a pod's status means to us: one table, of which docs/reference/kubernetes.md is generated. Pure.

The first row that fits a pod counts. Unknown comes first: a pod on a node that has fallen silent may still write to its
volume, whatever else its status says, and nothing starts beside it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from codehub.adapters.image_pull import pull_failure
from codehub.adapters.kubernetes.manifests import JOB, MAIN
from codehub.domain.errors import Unreachable

Pod = Mapping[str, Any]

SILENT_SECONDS = 30.0
"""How long after its last moment of grace a pod that is still there is one that nobody can end."""
STUCK_SECONDS = 10.0
"""How long a pod is being made before its events are asked for the reason."""
OUT_OF_MEMORY = "it took more memory than its share"
_LONGEST_DETAIL = 300
_ENDED_BY_OTHERS = "the cluster ends its pod: its node is drained, or somebody evicted or deleted it"
_PULL_TROUBLE = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
_CREATION_SECONDS = {"CreateContainerConfigError": 30.0, "CreateContainerError": 120.0, "RunContainerError": 120.0}
"""How long after a pod's creation the node may fail at making its container: a Secret may come late, a node be busy."""
_DEFINITE_PULL_TROUBLE = {"InvalidImageName", "ErrImageNeverPull"}
_WHAT_AN_OPERATOR_DOES = (
    "Bring the node back. If it is certain that it is off, taint it (`kubectl taint node NODE "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`) or remove the pod (`kubectl delete pod POD --force "
    "--grace-period=0`): then the workspace goes on by itself"
)


class Meaning(StrEnum):
    """What a state means. STARTING: the pod is on its way, which is no attempt yet. REFUSED: it never will run."""

    UNKNOWN = "unknown"
    STARTING = "starting"
    REFUSED = "refused"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class State:
    """One row of the table. `name`: stands in the condition's reason, after `kubernetes.`; `when`, for people: what
    Kubernetes shows; `fits`: whether a pod is in it at that time; `advice`: what people or operators do."""

    name: str
    when: str
    meaning: Meaning
    fits: Callable[[Pod, datetime], bool]
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod in our terms. `detail`: for people, with Kubernetes' own words."""

    state: State
    detail: str

    @property
    def words(self) -> str:
        """What the pod waits for, in one line."""
        return f"{self.state.name}: {self.detail}" if self.detail else self.state.name


def status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}


def main_status(pod: Pod) -> Mapping[str, Any]:
    """The status of the pod's own container. A cluster may put others beside it, and in any order."""
    every = status(pod).get("containerStatuses") or ()
    return next((one for one in every if one.get("name") in (MAIN, JOB)), {})


def waiting(pod: Pod) -> Mapping[str, Any]:
    """What a container of the pod waits for, the first that does: those that prepare it come before its own."""
    every = [*(status(pod).get("initContainerStatuses") or ()), *(status(pod).get("containerStatuses") or ())]
    found = [(one.get("state") or {}).get("waiting") for one in every]
    return next((one for one in found if one and one.get("reason") != "PodInitializing"), {})


def terminated(pod: Pod) -> Mapping[str, Any]:
    """How the pod's own container ended; empty while it has not."""
    state = main_status(pod).get("state") or {}
    last = main_status(pod).get("lastState") or {}
    return state.get("terminated") or (last.get("terminated") if waiting(pod) else None) or {}


def exit_code(pod: Pod) -> int | None:
    """The exit code of the pod's own container; None if it has not ended, or nobody knows how."""
    code = terminated(pod).get("exitCode")
    return None if code is None else int(code)


def condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    return next((one for one in status(pod).get("conditions") or () if one.get("type") == kind), {})


def moment(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def created_at(found: Mapping[str, Any]) -> datetime | None:
    return moment(found["metadata"].get("creationTimestamp"))


def scheduled_at(pod: Pod) -> datetime | None:
    """When the pod was given to its node."""
    return moment(condition(pod, "PodScheduled").get("lastTransitionTime"))


def is_terminating(found: Mapping[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def started(pod: Pod) -> bool:
    """Whether the pod's own container runs and has an address."""
    return bool((main_status(pod).get("state") or {}).get("running")) and bool(status(pod).get("podIP"))


def ended(pod: Pod) -> bool:
    return status(pod).get("phase") in ("Succeeded", "Failed")


def has_stopped(pod: Pod) -> bool:
    """Whether the pod's node has said that its container has ended, and how. Of a pod that was evicted or given up by
    somebody else, the container may still run."""
    return ended(pod) and exit_code(pod) is not None


def _on_silent_node(pod: Pod, _now: datetime) -> bool:
    """The node's own agent sets both conditions together: only who noticed its silence sets the first alone."""
    ready, containers = condition(pod, "Ready"), condition(pod, "ContainersReady")
    return ready.get("status") == "False" and containers.get("status") == "True"


def _is_lost(pod: Pod, _now: datetime) -> bool:
    return status(pod).get("reason") == "NodeLost" or status(pod).get("phase") == "Unknown"


def _cannot_be_ended(pod: Pod, now: datetime) -> bool:
    until = moment(pod["metadata"].get("deletionTimestamp"))
    return until is not None and now > until + timedelta(seconds=SILENT_SECONDS)


def _creation_fails(pod: Pod, _now: datetime) -> bool:
    return not ended(pod) and waiting(pod).get("reason") in _CREATION_SECONDS


def _creation_has_failed(pod: Pod, now: datetime) -> bool:
    begun, patience = created_at(pod), _CREATION_SECONDS.get(str(waiting(pod).get("reason")), 0.0)
    return _creation_fails(pod, now) and (begun is None or now - begun > timedelta(seconds=patience))


def _is_unschedulable(pod: Pod, _now: datetime) -> bool:
    scheduled = condition(pod, "PodScheduled")
    return not ended(pod) and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"


def _cannot_be_pulled(pod: Pod, _now: datetime) -> bool:
    reason, words = waiting(pod).get("reason"), str(waiting(pod).get("message", ""))
    return not ended(pod) and (reason in _DEFINITE_PULL_TROUBLE or (reason in _PULL_TROUBLE and _is_definite(words)))


def _registry_is_silent(pod: Pod, _now: datetime) -> bool:
    return not ended(pod) and waiting(pod).get("reason") in _PULL_TROUBLE


def _is_definite(words: str) -> bool:
    """Whether somebody who knows has said that the image is not to be had."""
    return not isinstance(pull_failure("", 0, words), Unreachable)


def image_in_trouble(pod: Pod) -> str:
    every = [*(status(pod).get("initContainerStatuses") or ()), *(status(pod).get("containerStatuses") or ())]
    found = [one.get("image") for one in every if (one.get("state") or {}).get("waiting") == waiting(pod)]
    return str(next(iter(found), ""))


def _ended_by(reason: str) -> Callable[[Pod, datetime], bool]:
    return lambda pod, _now: terminated(pod).get("reason") == reason


def _is_evicted(pod: Pod, _now: datetime) -> bool:
    return ended(pod) and status(pod).get("reason") in (
        "Evicted",
        "Preempting",
        "NodeAffinity",
        "Shutdown",
        "Terminated",
    )


NODE_SILENT = State(
    "NodeNotReady",
    "the pod's condition Ready is False while ContainersReady is True: its node no longer reports",
    Meaning.UNKNOWN,
    _on_silent_node,
    _WHAT_AN_OPERATOR_DOES,
)
LOST = State("NodeLost", "phase Unknown, or the reason NodeLost", Meaning.UNKNOWN, _is_lost, _WHAT_AN_OPERATOR_DOES)
UNENDING = State(
    "TerminatingTooLong",
    f"the pod is Terminating, {SILENT_SECONDS:.0f} s longer than its grace period",
    Meaning.UNKNOWN,
    _cannot_be_ended,
    _WHAT_AN_OPERATOR_DOES,
)
CLAIM_LEAVING = State(
    "ClaimDeleted",
    "the pod's claim is Terminating: somebody deleted it, and it lives only as long as the pod",
    Meaning.UNKNOWN,
    lambda _pod, _now: False,
    "Copy what is needed out of the running workspace, or take its home from the volume below the claim, before the "
    "pod ends: Kubernetes cannot take the deletion of a claim back",
)
UNSCHEDULABLE = State(
    "Unschedulable",
    "the condition PodScheduled is False with the reason Unschedulable",
    Meaning.STARTING,
    _is_unschedulable,
    "Give the cluster room, or the template less; it waits for CODEHUB_KUBERNETES_SCHEDULING_TIMEOUT",
)
PULL_FAILED = State(
    "ImagePullFailed",
    "ErrImagePull, ImagePullBackOff, InvalidImageName or ErrImageNeverPull, and the registry has said no",
    Meaning.REFUSED,
    _cannot_be_pulled,
    "Correct the template's image, or its pull secrets",
)
PULL_WAITS = State(
    "ImagePullWaiting",
    "ErrImagePull or ImagePullBackOff, and the registry has not answered",
    Meaning.STARTING,
    _registry_is_silent,
    "Bring the registry back; Kubernetes asks it again",
)
CONFIG_WRONG = State(
    "CreateContainerConfigError",
    "CreateContainerConfigError 30 s after the pod was made; CreateContainerError or RunContainerError 120 s after",
    Meaning.REFUSED,
    _creation_has_failed,
    "Read the message: most often something that the pod names is missing, or the image does not fit",
)
CREATION_FAILS = State(
    "CreateContainerWaiting",
    "CreateContainerConfigError, CreateContainerError or RunContainerError before that",
    Meaning.STARTING,
    _creation_fails,
    "Nothing yet: the node tries again",
)
FAILED_MOUNT = State(
    "FailedMount",
    "being made for long, and its events say FailedMount or FailedAttachVolume",
    Meaning.STARTING,
    lambda _pod, _now: False,
    "Look at the claim and its storage class; Kubernetes tries again until CODEHUB_KUBERNETES_CREATION_TIMEOUT",
)
MULTI_ATTACH = State(
    "MultiAttach",
    "being made for long, and its events say Multi-Attach error: another node still has the volume",
    Meaning.STARTING,
    lambda _pod, _now: False,
    "The other node lets go by itself within minutes; if it is off for good, taint it out-of-service",
)
PULLING = State(
    "Pulling",
    "being made for long, and its events say that its image is pulled",
    Meaning.STARTING,
    lambda _pod, _now: False,
    "Nothing: a large image takes its time",
)
OUT_OF_MEMORY_STATE = State(
    "OOMKilled",
    "its container ended with the reason OOMKilled",
    Meaning.ENDED,
    _ended_by("OOMKilled"),
    "Give the template more memory",
)
EVICTED = State(
    "Evicted",
    "phase Failed with the reason Evicted, Preempting or Shutdown",
    Meaning.ENDED,
    _is_evicted,
    "Nothing: it is started again, elsewhere if need be",
)
COMPLETED = State("Completed", "its container ended with exit code 0", Meaning.ENDED, _ended_by("Completed"), "Nothing")
EXITED = State(
    "Exited",
    "phase Failed or Succeeded, or CrashLoopBackOff, which our pods cannot have",
    Meaning.ENDED,
    lambda pod, _now: ended(pod) or bool(terminated(pod)) or waiting(pod).get("reason") == "CrashLoopBackOff",
    "Read what it printed last (`codehub ws logs`)",
)
STOPPING = State(
    "Terminating",
    "the pod is Terminating within its grace period",
    Meaning.RUNNING,
    lambda pod, _now: is_terminating(pod),
    "Nothing: if we did not end it, it is started again once it is gone, elsewhere if need be",
)
RUNNING = State("Running", "its container runs and has an address", Meaning.RUNNING, lambda pod, _now: started(pod))
SCHEDULING = State(
    "Scheduling",
    "Pending, and no node is chosen yet",
    Meaning.STARTING,
    lambda pod, _now: not (pod.get("spec") or {}).get("nodeName"),
)
CREATING = State(
    "ContainerCreating",
    "Pending on its node: the image is pulled, volumes are mounted, the network is set up",
    Meaning.STARTING,
    lambda _pod, _now: True,
)
TABLE: Sequence[State] = (
    *(NODE_SILENT, LOST, UNENDING, CLAIM_LEAVING),
    *(OUT_OF_MEMORY_STATE, EVICTED, COMPLETED, EXITED),
    *(UNSCHEDULABLE, PULL_FAILED, PULL_WAITS, CONFIG_WRONG, CREATION_FAILS),
    *(FAILED_MOUNT, MULTI_ATTACH, PULLING),
    *(STOPPING, RUNNING, SCHEDULING, CREATING),
)
"""The first that fits counts. Some need more than the pod: its events, or its claim."""
BEING_MADE = (CREATING, FAILED_MOUNT, MULTI_ATTACH)
"""The states of a pod on whose node a volume is being mounted or a container made, which has a deadline."""


def observe(pod: Pod, now: datetime) -> Seen:
    """What the pod's status means at that time, by the cluster's clock."""
    state = next(row for row in TABLE if row.fits(pod, now))
    return Seen(state, _detail(pod, state))


def observe_deleted_claim(pod: Pod) -> Seen:
    return Seen(CLAIM_LEAVING, _detail(pod, CLAIM_LEAVING))


def observe_stuck(seen: Seen, events: Sequence[Mapping[str, Any]]) -> Seen:
    """What the events of a pod add that is being made for long; the newest that tells something counts."""
    ordered = sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    for event in reversed(ordered):
        words = " ".join(str(event.get("message", "")).split())[:_LONGEST_DETAIL]
        if "Multi-Attach error" in words:
            return Seen(MULTI_ATTACH, words)
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            return Seen(FAILED_MOUNT, words)
        if seen.state is PULL_WAITS and event.get("reason") == "Failed" and _is_definite(words):
            return Seen(PULL_FAILED, words)
        if event.get("reason") == "Pulled":
            return seen
        if seen.state is CREATING and event.get("reason") == "Pulling":
            return Seen(PULLING, re.sub(r"^P", "p", words))
    return seen


def needs_events(pod: Pod, seen: Seen, now: datetime) -> bool:
    """Whether the pod's events may tell more than its status: it is being made for long, or its status only says that
    the pull of its image is tried again."""
    begun = created_at(pod)
    is_old = begun is not None and now - begun > timedelta(seconds=STUCK_SECONDS)
    return seen.state is PULL_WAITS or (seen.state is CREATING and is_old)


def _detail(pod: Pod, state: State) -> str:
    if state.meaning is Meaning.UNKNOWN:
        node = (pod.get("spec") or {}).get("nodeName") or "unknown"
        return f"pod {pod['metadata']['name']} on node {node}: {state.when}. {state.advice}"
    if state.meaning is Meaning.ENDED:
        return _ending(pod, state)[:_LONGEST_DETAIL]
    if state is STOPPING:
        return str(condition(pod, "DisruptionTarget").get("message") or _ENDED_BY_OTHERS)[:_LONGEST_DETAIL]
    if state is UNSCHEDULABLE:
        return str(condition(pod, "PodScheduled").get("message", ""))[:_LONGEST_DETAIL]
    words = " ".join(str(waiting(pod).get("message") or "").split())[:_LONGEST_DETAIL]
    return words or {SCHEDULING: "waits for a node", CREATING: "the pod is being made"}.get(state, "")


def _ending(pod: Pod, state: State) -> str:
    if state is EVICTED:
        return f"evicted: {status(pod).get('message', '')}".strip()
    code, said = exit_code(pod), str(terminated(pod).get("message") or "").strip().splitlines()[-1:]
    words = [f"exit code {code}" if code is not None else str(status(pod).get("message") or "ended")]
    if state is OUT_OF_MEMORY_STATE:
        words.append(OUT_OF_MEMORY)
    return ": ".join([*words, *said])
