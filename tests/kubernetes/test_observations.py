"""What a pod's status means, row by row of the table; unknown wins over all that a silent node's pod still says."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from codehub.adapters.kubernetes import observations as o
from codehub.adapters.kubernetes.observations import Meaning, State, observe, observe_deleted_claim, observe_stuck

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def pod(
    phase: str = "Pending",
    *,
    state: Mapping[str, Any] | None = None,
    told: Mapping[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    own = {"containerStatuses": [{"name": "workspace", "image": "ide:1", "state": state}]} if state else {}
    metadata = {"name": "ws-1", "uid": "u-1", "creationTimestamp": at(-60), **(told or {})}
    return {"metadata": metadata, "spec": {"nodeName": "n-1"}, "status": {"phase": phase, **own, **status}}


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, **more}


RUNS = {"running": {"startedAt": at(-30)}}
SILENT = [condition("Ready", "False"), condition("ContainersReady", "True")]


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ends(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


UNKNOWN_IMAGE = "rpc error: Error response from daemon: manifest for ide:1 not found: manifest unknown"
ROWS: list[tuple[dict[str, Any], State, str]] = [
    (pod("Running", state=RUNS, podIP="10.0.0.1", conditions=SILENT), o.NODE_SILENT, "out-of-service"),
    (pod("Running", state=RUNS, podIP="10.0.0.1", told={"deletionTimestamp": at(-31)}), o.UNENDING, "--force"),
    (pod("Running", state=RUNS, podIP="10.0.0.1", told={"deletionTimestamp": at(-29)}), o.STOPPING, "is drained"),
    (
        pod(
            "Running",
            state=RUNS,
            conditions=[condition("DisruptionTarget", "True", message="Eviction API: evicting")],
            told={"deletionTimestamp": at(10)},
        ),
        o.STOPPING,
        "Eviction API: evicting",
    ),
    (pod("Unknown"), o.LOST, "node n-1"),
    (pod("Running", state=RUNS, podIP="10.0.0.1", reason="NodeLost"), o.LOST, "node n-1"),
    (pod("Failed", state=ends(137, "OOMKilled")), o.OUT_OF_MEMORY_STATE, "more memory than its share"),
    (pod("Failed", reason="Evicted", message="low on memory"), o.EVICTED, "low on memory"),
    (pod("Succeeded", state=ends(0, "Completed")), o.COMPLETED, "exit code 0"),
    (pod("Failed", state=ends(3, message="one\nno such file\n")), o.EXITED, "exit code 3: no such file"),
    (pod("Running", state=waits("CrashLoopBackOff", "back-off")), o.EXITED, "ended"),
    (
        pod(conditions=[condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes")]),
        o.UNSCHEDULABLE,
        "0/3 nodes",
    ),
    (pod(state=waits("ErrImagePull", UNKNOWN_IMAGE)), o.PULL_FAILED, "manifest unknown"),
    (pod(state=waits("InvalidImageName", "bad")), o.PULL_FAILED, "bad"),
    (pod(state=waits("ErrImageNeverPull", "is not present")), o.PULL_FAILED, "is not present"),
    (pod(state=waits("ErrImagePull", "dial tcp: i/o timeout")), o.PULL_WAITS, "i/o timeout"),
    (pod(state=waits("ImagePullBackOff", "Back-off pulling")), o.PULL_WAITS, "Back-off"),
    (pod(state=waits("CreateContainerConfigError", "secret not found")), o.CONFIG_WRONG, "secret not found"),
    (
        pod(state=waits("CreateContainerConfigError", "secret not found"), told={"creationTimestamp": at(-29)}),
        o.CREATION_FAILS,
        "secret not found",
    ),
    (pod(state=waits("CreateContainerError", "context deadline exceeded")), o.CREATION_FAILS, "deadline exceeded"),
    (pod(state=waits("RunContainerError", "busy"), told={"creationTimestamp": at(-119)}), o.CREATION_FAILS, "busy"),
    (pod(state=waits("RunContainerError", "no such file"), told={"creationTimestamp": at(-121)}), o.CONFIG_WRONG, "no"),
    (pod("Running", state=RUNS, podIP="10.0.0.1"), o.RUNNING, ""),
    (pod() | {"spec": {}}, o.SCHEDULING, "waits for a node"),
    (pod(state=waits("ContainerCreating")), o.CREATING, "being made"),
    (pod("Running", state=RUNS), o.CREATING, "being made"),
]


@pytest.mark.parametrize(("seen", "state", "words"), ROWS, ids=[f"{i}-{row[1].name}" for i, row in enumerate(ROWS)])
def test_what_is_seen_means_one_thing(seen: dict[str, Any], state: State, words: str) -> None:
    found = observe(seen, NOW)
    assert found.state is state
    assert words in found.detail


def test_every_row_of_the_table_is_tried() -> None:
    by_more_than_the_pod = {o.CLAIM_LEAVING.name, o.FAILED_MOUNT.name, o.MULTI_ATTACH.name, o.PULLING.name}
    assert {state.name for _, state, _ in ROWS} | by_more_than_the_pod == {state.name for state in o.TABLE}
    assert len({state.name for state in o.TABLE}) == len(o.TABLE)


def test_what_is_unknown_says_what_an_operator_does() -> None:
    unknown = [state for state in o.TABLE if state.meaning is Meaning.UNKNOWN]
    assert len(unknown) == 4
    assert all(state.advice for state in unknown)
    assert all(state.advice for state in o.TABLE if state.meaning is Meaning.REFUSED)


def test_a_silent_node_s_pod_is_unknown_even_if_it_says_that_it_is_ending() -> None:
    seen = pod("Running", state=RUNS, podIP="10.0.0.1", conditions=SILENT, told={"deletionTimestamp": at(5)})
    assert observe(seen, NOW).state.meaning is Meaning.UNKNOWN


def test_a_deleted_claim_lives_only_as_long_as_its_pod() -> None:
    found = observe_deleted_claim(pod("Running", state=RUNS, podIP="10.0.0.1"))
    assert found.state.meaning is Meaning.UNKNOWN
    assert "lives only as long as the pod" in found.detail


@pytest.mark.parametrize(
    ("reason", "message", "state", "words"),
    [
        ("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1"', o.MULTI_ATTACH, "pvc-1"),
        ("FailedMount", "Unable to attach or mount volumes", o.FAILED_MOUNT, "Unable to attach"),
        ("Pulling", 'Pulling image "ide:1"', o.PULLING, 'pulling image "ide:1"'),
        ("Scheduled", "assigned", o.CREATING, "being made"),
    ],
)
def test_events_say_what_a_pod_is_stuck_at(reason: str, message: str, state: State, words: str) -> None:
    seen = observe(pod(state=waits("ContainerCreating")), NOW)
    found = observe_stuck(seen, [{"reason": reason, "message": message, "lastTimestamp": at(-1)}])
    assert found.state is state
    assert words in found.detail


def test_the_pull_that_failed_is_in_the_events_while_the_status_only_waits() -> None:
    seen = observe(pod(state=waits("ImagePullBackOff", "Back-off pulling")), NOW)
    no = {"reason": "Failed", "message": f"Failed to pull image: {UNKNOWN_IMAGE}", "lastTimestamp": at(-9)}
    later = {"reason": "BackOff", "message": "Back-off pulling image", "lastTimestamp": at(-1)}
    assert observe_stuck(seen, [no, later]).state is o.PULL_FAILED
    silent = {"reason": "Failed", "message": "Failed to pull image: dial tcp: timeout", "lastTimestamp": at(-9)}
    assert observe_stuck(seen, [silent, later]).state is o.PULL_WAITS


def test_events_are_asked_for_when_they_can_tell_more() -> None:
    waiting = pod(state=waits("ImagePullBackOff"))
    assert o.needs_events(waiting, observe(waiting, NOW), NOW)
    creating = pod(state=waits("ContainerCreating"))
    assert o.needs_events(creating, observe(creating, NOW), NOW)
    young = pod(state=waits("ContainerCreating"), told={"creationTimestamp": at(-2)})
    assert not o.needs_events(young, observe(young, NOW), NOW)
    running = pod("Running", state=RUNS, podIP="10.0.0.1")
    assert not o.needs_events(running, observe(running, NOW), NOW)


def test_a_container_has_stopped_when_its_node_has_said_how() -> None:
    assert o.has_stopped(pod("Failed", state=ends(3)))
    assert not o.has_stopped(pod("Failed", reason="Evicted")), "its container may still be ending"
    assert not o.has_stopped(pod("Running", state=RUNS))
    assert not o.has_stopped(pod("Running", state=ends(3))), "another container of the pod still runs"


def test_a_sidecar_is_not_taken_for_the_pod_s_own_container() -> None:
    sidecar = {"name": "istio-proxy", "state": ends(0, "Completed")}
    seen = pod("Running", podIP="10.0.0.1", containerStatuses=[sidecar, {"name": "workspace", "state": RUNS}])
    assert observe(seen, NOW).state is o.RUNNING
    assert o.exit_code(seen) is None
    job = pod("Failed", containerStatuses=[sidecar, {"name": "job", "state": ends(3)}])
    assert o.exit_code(job) == 3
    assert o.main_status(pod(containerStatuses=[sidecar])) == {}


def test_an_image_that_was_pulled_is_not_what_a_pod_waits_for() -> None:
    seen = observe(pod(state=waits("ContainerCreating")), NOW)
    told = [
        {"reason": reason, "message": "", "lastTimestamp": at(when)}
        for reason, when in (("Pulling", -9), ("Pulled", -5))
    ]
    assert observe_stuck(seen, told).state is o.CREATING
