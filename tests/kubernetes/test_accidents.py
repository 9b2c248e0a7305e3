"""What happens to a real cluster behind our back: nothing starts twice, nothing is lost, and each has its reason."""

import asyncio
import json
import os
import signal
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from codehub.adapters.kubernetes import Access, Cluster, KubernetesRuntime
from codehub.adapters.kubernetes.cluster import PODS
from codehub.domain.errors import BackendError, Deferred, ErrorReason, Unreachable, VolumeInUse
from codehub.domain.judge import ContainerSeen
from codehub.domain.naming import container_name, volume_name
from codehub.domain.template import KubernetesOptions
from codehub.ports.jobs import JobKind, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec, Pulling, Resources
from tests.contracts.places import KubernetesPlace
from tests.eventually import eventually
from tests.kubernetes_cluster import KUBECONFIG

pytestmark = [pytest.mark.system, pytest.mark.kubernetes]

CLUSTER = Path(KUBECONFIG).parent
"""Where the cluster keeps the process numbers of its parts, if it runs on this machine."""


@pytest.fixture
def runtime(place: KubernetesPlace) -> KubernetesRuntime:
    return place.runtime()


@pytest.fixture
async def spec(runtime: KubernetesRuntime) -> ContainerSpec:
    key = uuid4()
    await runtime.create_volume(key, volume_name(key, 1))
    return ContainerSpec(key, volume_name(key, 1), "")


async def start(runtime: KubernetesRuntime, spec: ContainerSpec) -> None:
    async with asyncio.timeout(120):
        while await runtime.start_container(spec) is not None:
            await asyncio.sleep(0.1)
    await eventually(lambda: runtime.answers(spec.workspace_id))


async def refusal(runtime: KubernetesRuntime, spec: ContainerSpec) -> BackendError:
    """The error that a start comes to."""
    async with asyncio.timeout(120):
        while True:
            try:
                outcome = await runtime.start_container(spec)
            except BackendError as error:
                return error
            if outcome is None:  # the quota was not yet known
                await runtime.remove_container(spec.workspace_id)
            await asyncio.sleep(0.1)


async def seen(runtime: KubernetesRuntime, key: UUID) -> ContainerSeen | None:
    return (await runtime.containers([key])).get(key)


@contextmanager
def standing_still(part: str) -> Iterator[None]:
    """A part of the cluster does nothing meanwhile."""
    file = CLUSTER / f"{part}.pid"
    if not file.is_file():
        pytest.skip(f"the cluster's {part} is no process of this machine's that we know of")
    number = int(file.read_text())
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(number, signal.SIGCONT)


async def test_a_pod_deleted_by_hand_is_gone_and_started_anew_on_the_same_home(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    place.write(spec.volume, 7)
    before = await seen(runtime, spec.workspace_id)
    place.testbed.kubectl("delete", "pod", container_name(spec.workspace_id), "--wait=true")
    assert await seen(runtime, spec.workspace_id) is None
    await start(runtime, spec)
    after = await seen(runtime, spec.workspace_id)
    assert before is not None
    assert after is not None
    assert after.instance != before.instance
    assert place.content(spec.volume) == [7]


async def test_a_claim_deleted_by_hand_is_unknown_while_its_pod_has_it_and_then_lost(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    place.testbed.kubectl("delete", "pvc", spec.volume, "--wait=false")
    found = await seen(runtime, spec.workspace_id)
    assert found is not None
    assert (found.known, found.state) == (False, "ClaimDeleted")
    assert "lives only as long as the pod" in found.detail
    there = await runtime.volumes([spec.workspace_id])
    assert spec.volume in there[spec.workspace_id]
    with pytest.raises(BackendError) as refused:
        await runtime.start_container(spec)
    assert refused.value.reason is ErrorReason.MISMATCH

    async def whole_look_agrees() -> bool:
        return (await runtime.containers())[spec.workspace_id] == found and await runtime.volumes() == there

    await eventually(whole_look_agrees)
    await runtime.remove_container(spec.workspace_id)

    async def is_gone() -> bool:
        return not await runtime.volumes([spec.workspace_id]) and not await runtime.volumes()

    await eventually(is_gone)


async def test_a_claim_is_not_deleted_while_a_pod_of_anybody_s_names_it(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    name = f"stranger-{spec.workspace_id.hex[:8]}"
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"no": "such-node"},
            "containers": [{"name": "main", "image": "none:1"}],
            "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": spec.volume}}],
        },
    }
    place.testbed.kubectl("apply", "-f", "-", given=json.dumps(stranger))
    with pytest.raises(VolumeInUse, match="stranger-"):
        await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert spec.volume in (await runtime.volumes([spec.workspace_id]))[spec.workspace_id]
    place.testbed.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert not await runtime.volumes([spec.workspace_id])


class CuttingRelay:
    """Leads connections to a server, and cuts those that there are when asked."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(*self._upstream)
        both = {writer, ours}
        self._open |= both
        await asyncio.gather(self._carry(reader, ours), self._carry(theirs, writer))
        self._open -= both

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()


@asynccontextmanager
async def through_relay(
    place: KubernetesPlace, tmp_path: Path
) -> AsyncIterator[tuple[CuttingRelay, KubernetesRuntime]]:
    """A runtime whose connections to the API server can be cut."""
    view = kubeconfig(place)
    host, port = view["clusters"][0]["cluster"]["server"].removeprefix("https://").split(":")
    relay = CuttingRelay(host, int(port))
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    view["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with runtime_by(place, view, tmp_path) as runtime:
        yield relay, runtime
    relay.cut()
    server.close()


def kubeconfig(place: KubernetesPlace, token: str | None = None) -> dict[str, Any]:
    """The cluster's kubeconfig, for another user than its own if that one's token is given."""
    view: dict[str, Any] = json.loads(place.testbed.kubectl("config", "view", "--raw", "-o", "json"))
    if token is not None:
        view["users"][0]["user"] = {"token": token}
    return view


@asynccontextmanager
async def runtime_by(place: KubernetesPlace, view: dict[str, Any], tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    path = tmp_path / "kubeconfig.json"
    path.write_text(json.dumps(view))
    cluster = Cluster(Access(str(path), namespace=place.testbed.namespace))
    runtime = KubernetesRuntime(cluster, place.site)
    try:
        yield runtime
    finally:
        await runtime.close()
        await cluster.close()


async def test_an_api_server_that_stands_still_is_unknown_and_then_goes_on(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    before = await runtime.containers()
    with standing_still("apiserver"):
        with pytest.raises(Unreachable) as silent:
            await runtime.identity()
        assert silent.value.context["endpoint"] == "k8s-api"
        with pytest.raises(Unreachable):
            await runtime.containers([spec.workspace_id])

    async def as_before() -> bool:
        try:
            return await runtime.containers() == before and await runtime.containers([spec.workspace_id]) == before
        except Unreachable:
            return False

    await eventually(as_before)


async def test_a_node_that_falls_silent_leaves_its_pod_unknown_and_nothing_starts_beside_it(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    before = await seen(runtime, spec.workspace_id)
    assert before is not None

    async def is_unknown() -> bool:
        found = await seen(runtime, spec.workspace_id)
        return found is not None and not found.known

    with standing_still("kubelet"):
        await eventually(is_unknown)
        found = await seen(runtime, spec.workspace_id)
        assert found is not None
        assert (found.state, found.instance) == ("NodeNotReady", before.instance)
        assert "out-of-service" in found.detail
        with pytest.raises(Deferred):
            await runtime.start_container(spec)
        with pytest.raises(VolumeInUse):
            await runtime.delete_volume(spec.workspace_id, spec.volume)
        pods, _ = await runtime.cluster.list(PODS, f"codehub.workspace={spec.workspace_id}")
        assert [pod["metadata"]["uid"] for pod in pods] == [before.instance]

    async def is_back() -> bool:
        return await seen(runtime, spec.workspace_id) == before

    await eventually(is_back)


async def test_no_room_is_waited_for_in_the_scheduler_s_words_and_not_for_ever(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    huge = replace(spec, kubernetes=KubernetesOptions(node_selector={"no": "such-node"}))

    async def is_told() -> bool:
        outcome = await runtime.start_container(huge)
        return isinstance(outcome, Pulling) and outcome.detail.startswith("Unschedulable: 0/1 nodes")

    await eventually(is_told)
    found = await seen(runtime, spec.workspace_id)
    assert found is not None
    assert (found.running, found.known, found.state) == (True, True, "Unschedulable")
    impatient = place.runtime(replace(place.site, scheduling_seconds=1.0))
    with pytest.raises(BackendError) as given_up:
        await impatient.start_container(huge)
    assert given_up.value.reason is ErrorReason.TIMEOUT
    assert await seen(runtime, spec.workspace_id) is None, "nothing is left of it"


async def test_a_mount_that_never_ends_is_waited_for_in_the_kubelet_s_words_and_not_for_ever(
    place: KubernetesPlace, runtime: KubernetesRuntime
) -> None:
    """The claim is bound to a directory that its node does not have."""
    key = uuid4()
    name = volume_name(key, 1)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "64Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "hostPath": {"path": "/no/such/directory", "type": "Directory"},
            "claimRef": {"namespace": place.testbed.namespace, "name": name},
        },
    }
    place.testbed.kubectl("apply", "-f", "-", given=json.dumps(volume))
    await runtime.create_volume(key, name, None, "by-hand")
    spec = ContainerSpec(key, name, "")

    async def is_told() -> bool:
        outcome = await runtime.start_container(spec)
        return isinstance(outcome, Pulling) and outcome.detail.startswith("FailedMount: MountVolume.SetUp failed")

    await eventually(is_told)
    impatient = place.runtime(replace(place.site, creation_seconds=1.0))
    with pytest.raises(BackendError, match=r"did not make .* within 1 s: FailedMount: .*not a directory") as given_up:
        await impatient.start_container(spec)
    assert given_up.value.reason is ErrorReason.TIMEOUT

    async def is_gone() -> bool:
        return await seen(runtime, key) is None

    await eventually(is_gone)
    await runtime.delete_volume(key, name)
    place.testbed.kubectl("delete", "pv", name, "--wait=false")


async def test_a_home_that_is_not_writable_is_said_plainly(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    """As with a storage class that does not give volumes to the pod's group."""
    home = place.testbed.mountpoint(spec.volume)
    home.chmod(0o755)
    os.chown(home, 1, 1)
    while await runtime.start_container(spec) is not None:
        await asyncio.sleep(0.1)

    async def has_ended() -> bool:
        found = await seen(runtime, spec.workspace_id)
        return found is not None and not found.running

    await eventually(has_ended)
    found = await seen(runtime, spec.workspace_id)
    assert found is not None
    assert "the home /home/coder cannot be written to by user 1000" in found.detail
    assert "fsGroup" in found.detail


async def test_an_image_that_is_not_to_be_had_is_no_attempt_that_waits(
    place: KubernetesPlace, spec: ContainerSpec
) -> None:
    never = place.runtime(replace(place.site, pull_policy="Never"))

    error = await refusal(never, replace(spec, image_ref="no-such-image:1"))
    assert error.reason is ErrorReason.IMAGE_PULL_FAILED, error
    assert error.context["image"] == "no-such-image:1"
    left = place.testbed.get("pods", "-l", f"codehub.workspace={spec.workspace_id}")["items"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in left), "nothing is left but what the node tidies up"


async def test_a_registry_that_does_not_answer_is_waited_for(runtime: KubernetesRuntime, spec: ContainerSpec) -> None:
    nowhere = replace(spec, image_ref="127.0.0.1:1/team/ide:1")

    async def is_waited_for() -> bool:
        outcome = await runtime.start_container(nowhere)
        return isinstance(outcome, Pulling) and outcome.detail.startswith("ImagePullWaiting")

    await eventually(is_waited_for)


async def test_a_quota_that_is_used_up_is_said_and_nothing_half_made_is_left(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    place.testbed.kubectl("apply", "-f", "-", given=json.dumps(quota))
    try:
        assert "exceeded quota: none" in str(await refusal(runtime, spec))
    finally:
        place.testbed.kubectl("delete", "resourcequota", "none")
    secrets = place.testbed.get("secrets", "-l", f"codehub.workspace={spec.workspace_id}")["items"]
    assert secrets == []


async def test_a_storage_class_that_is_missing_leaves_the_claim_waiting_and_says_so(
    place: KubernetesPlace, runtime: KubernetesRuntime
) -> None:
    key = uuid4()
    await runtime.create_volume(key, volume_name(key, 1), None, "no-such-class")
    assert await runtime.volumes([key]), "a claim that waits is a volume"
    spec = ContainerSpec(key, volume_name(key, 1), "")

    async def is_told() -> bool:
        outcome = await runtime.start_container(spec)
        return isinstance(outcome, Pulling) and "unbound" in outcome.detail

    await eventually(is_told)
    await runtime.remove_container(key)
    await runtime.delete_volume(key, volume_name(key, 1))
    assert not await runtime.volumes([key])


async def test_who_may_not_is_told_what_and_where(place: KubernetesPlace, tmp_path: Path) -> None:
    """A service account without any role, by its token."""
    place.testbed.kubectl("create", "serviceaccount", "nobody")
    await eventually(lambda: bool(place.testbed.get("serviceaccount", "nobody").get("secrets")))
    account = place.testbed.get("serviceaccount", "nobody")
    token = b64decode(place.testbed.get("secret", account["secrets"][0]["name"])["data"]["token"]).decode()
    async with runtime_by(place, kubeconfig(place, token), tmp_path) as runtime:
        with pytest.raises(Unreachable, match=r'may not look at pods: .*cannot get resource "pods"'):
            await runtime.containers([uuid4()])
        with pytest.raises(BackendError, match=r"may not create persistentvolumeclaims: .*cannot create resource"):
            await runtime.create_volume(uuid4(), "ws-x")
    place.testbed.kubectl("delete", "serviceaccount", "nobody")


async def test_a_token_that_is_not_known_is_no_answer(place: KubernetesPlace, tmp_path: Path) -> None:
    async with runtime_by(place, kubeconfig(place, "wrong"), tmp_path) as runtime:
        with pytest.raises(Unreachable, match="does not know us"):
            await runtime.containers([uuid4()])


async def test_a_token_that_is_replaced_is_read_again_as_soon_as_the_old_one_is_refused(
    place: KubernetesPlace, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    view = kubeconfig(place)
    right = view["users"][0]["user"]["token"]
    view["users"][0]["user"] = {"tokenFile": str(file)}
    file.write_text(right)
    async with runtime_by(place, view, tmp_path) as runtime:
        assert not await runtime.containers([uuid4()])
        file.write_text("revoked")
        assert not await runtime.containers([uuid4()]), "the one that was read before still holds"
        connection = await runtime.cluster._connected()
        connection.configuration.api_key["BearerToken"] = "Bearer revoked"
        file.write_text(right)
        with pytest.raises(Unreachable, match="does not know us"):
            await runtime.containers([uuid4()])
        assert not await runtime.containers([uuid4()]), "the next call has the new one"


async def test_a_claim_grows_with_its_template_or_stays_and_the_start_goes_on(
    place: KubernetesPlace, runtime: KubernetesRuntime, spec: ContainerSpec
) -> None:
    await start(runtime, replace(spec, share=Resources(disk_bytes=1 << 30)))
    size = place.testbed.get("pvc", spec.volume)["spec"]["resources"]["requests"]["storage"]
    assert size in {"67108864", "64Mi"}, "this class does not let claims grow"


async def test_a_job_whose_pod_is_killed_is_interrupted_and_runs_again(place: KubernetesPlace) -> None:
    key, op_id = uuid4(), uuid4()
    await place.runtime().create_volume(key, volume_name(key, 1))
    jobs = place.slow_jobs()
    spec = JobSpec(key, op_id, JobKind.ARCHIVE, volume_name(key, 1), "homes/x/home.tar.zst")
    await jobs.start(spec)

    async def progressed() -> bool:
        progress = (await jobs.find([key]))[key].progress
        return progress is not None and progress.bytes > 0

    await eventually(progressed)
    pod = place.testbed.get("pods", "-l", f"codehub.workspace={key}")["items"][0]
    place.testbed.kill_container(pod["metadata"]["uid"], "job")

    async def has_failed() -> bool:
        return (await jobs.find([key]))[key].state is JobState.FAILED

    await eventually(has_failed)
    await jobs.clear(key)
    assert not await jobs.find([key])


async def test_a_watch_that_is_cut_again_and_again_misses_nothing(place: KubernetesPlace, tmp_path: Path) -> None:
    async with through_relay(place, tmp_path) as (relay, runtime):
        assert not await runtime.volumes()
        other, keys = place.runtime(), [uuid4() for _ in range(4)]
        for key in keys:
            relay.cut()
            await other.create_volume(key, volume_name(key, 1))

        async def all_seen() -> bool:
            try:
                return set(await runtime.volumes()) == set(keys)
            except Unreachable:
                return False

        await eventually(all_seen)
