"""Small parts of the kubernetes runtime: numbers, usage, whose pods name a claim, the store's variables, the import."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.kubernetes.cache import ClusterCache, Followed, owner
from codehub.adapters.kubernetes.claims import claims_of, quantity
from codehub.adapters.kubernetes.cluster import (
    CLAIMS,
    JOBS,
    NAMESPACES,
    PODS,
    POLICIES,
    SECRETS,
    Access,
    Kind,
    Manifest,
    Refusal,
)
from codehub.adapters.kubernetes.jobs import KubernetesJobs, store_environment
from codehub.adapters.kubernetes.manifests import KubernetesSite, claim, job, network_policies, workspace
from codehub.adapters.kubernetes.network_isolation import NetworkIsolation
from codehub.adapters.kubernetes.runtime import KubernetesRuntime
from codehub.adapters.kubernetes.usage import limits, used
from codehub.bootstrap.kubernetes import addresses_beyond_reach, must_reach_archives
from codehub.domain.errors import BackendError, Deferred, ErrorReason, Unreachable
from codehub.domain.naming import volume_name
from codehub.domain.workspace import Progress
from codehub.ports.jobs import JobKind, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec, Pulling
from codehub.settings import SettingsError, load_settings
from tests.kubernetes.memory_cluster import NOW, MemoryCluster

KEY = UUID("11111111-2222-3333-4444-555555555555")
SITE = KubernetesSite("here", "ide:1", "codehub:1")
SPEC = ContainerSpec(KEY, "ws-home", "")


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster that has the workspace's claim and nothing else."""
    found = MemoryCluster()
    found.put(CLAIMS, claim(SITE, KEY, SPEC.volume, None))
    return found


@pytest.fixture
def runtime(cluster: MemoryCluster) -> KubernetesRuntime:
    return KubernetesRuntime(cluster, SITE)


def put_pod(cluster: MemoryCluster, age: float = 0.0, /, **status: Any) -> Manifest:
    """The workspace's pod on a node, made so many seconds ago, with that status."""
    pod = workspace(SITE, SPEC, "ws-start-1")
    pod["metadata"]["creationTimestamp"] = (NOW - timedelta(seconds=age)).isoformat()
    pod["spec"]["nodeName"] = "n-1"
    return cluster.put(PODS, {**pod, "status": {"phase": "Pending", **status}})


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "workspace", "image": "ide:1", "state": state}]


RUNS: dict[str, Any] = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "containerStatuses": container(running={"startedAt": NOW.isoformat()}),
}


def graces(cluster: MemoryCluster) -> list[int | None]:
    """The grace that each pod had which was deleted."""
    return [effect[3] for effect in cluster.effects if effect[:2] == ("delete", "pods")]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10Gi", 10 << 30),
        ("64Mi", 64 << 20),
        ("1500", 1500),
        ("500m", 0.5),
        ("12345678n", 0.012345678),
        ("2G", 2e9),
        ("1Ei", 2**60),
        ("3E", 3e18),
    ],
)
def test_numbers_as_kubernetes_writes_them(text: str, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


def test_what_a_pod_uses_by_the_metrics_api() -> None:
    told = {
        "containers": [
            {"name": "workspace", "usage": {"cpu": "250m", "memory": "100Mi"}},
            {"name": "side", "usage": {"cpu": "1000000n", "memory": "1Mi"}},
        ]
    }
    cpu, memory = used(told)
    assert cpu == pytest.approx(0.251)
    assert memory == 101 << 20
    limited = {"resources": {"limits": {"cpu": "500m", "memory": str(1 << 30)}}, "name": "workspace"}
    assert limits({"spec": {"containers": [limited]}}) == (0.5, 1 << 30)
    assert limits({"spec": {"containers": [{"name": "workspace"}]}}) == (None, None)


def test_the_claims_that_a_pod_names() -> None:
    home = {"name": "home", "persistentVolumeClaim": {"claimName": "ws-home"}}
    assert claims_of({"spec": {"volumes": [home, {"name": "tmp", "emptyDir": {}}]}}) == {"ws-home"}
    assert claims_of({"spec": {}}) == set()


def test_whose_an_object_is() -> None:
    assert owner({"metadata": {"labels": {"codehub.workspace": str(KEY)}}}) == KEY
    assert owner({"metadata": {"labels": {"codehub.workspace": "somebody"}}}) is None
    assert owner({"metadata": {}}) is None


def test_paths_of_objects() -> None:
    assert PODS.path("here", "ws-1", "log") == "/api/v1/namespaces/here/pods/ws-1/log"
    assert JOBS.path("here") == "/apis/batch/v1/namespaces/here/jobs"
    assert NAMESPACES.path(None, "kube-system") == "/api/v1/namespaces/kube-system"


def test_jobs_get_the_store_s_variables_and_nothing_else() -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_CONFIG_FILE": "/etc/aws/config",
        "CODEHUB_S3_ENDPOINT": "http://s3",
        "CODEHUB_DATABASE_URL": "postgresql://secret",
    }
    assert store_environment("s3://homes", environ) == {"AWS_ACCESS_KEY_ID": "id", "CODEHUB_S3_ENDPOINT": "http://s3"}
    with pytest.raises(BackendError, match="out of the reach of pods: set CODEHUB_ARCHIVE_URL to a bucket"):
        store_environment("file:///srv/archives", environ)


def test_archives_in_a_directory_are_refused_at_the_start_in_one_line() -> None:
    given = {"database_url": "postgresql://here", "redis_url": "redis://here"}
    with pytest.raises(SettingsError, match="set CODEHUB_ARCHIVE_URL to a bucket") as refused:
        must_reach_archives(load_settings(**given, runtime="kubernetes"), "file:///srv/archives")
    assert "\n" not in str(refused.value)
    must_reach_archives(load_settings(**given, runtime="docker"), "file:///srv/archives")


def test_who_names_a_kubeconfig_is_not_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert not Access("/some/kubeconfig").is_from_inside
    assert Access("/some/kubeconfig").own_namespace is None


def test_a_process_without_a_cluster_does_not_carry_its_library() -> None:
    program = "import sys, codehub.bootstrap.services; print('kubernetes_asyncio' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


async def test_a_pod_that_may_run_is_never_deleted_without_grace(
    cluster: MemoryCluster, runtime: KubernetesRuntime
) -> None:
    await runtime.end(put_pod(cluster, **RUNS), 0)
    await runtime.end(put_pod(cluster, phase="Failed", reason="Evicted"), 0)
    assert graces(cluster) == [1, 1]
    await runtime.end(put_pod(cluster, phase="Failed", containerStatuses=container(terminated={"exitCode": 3})), 0)
    assert graces(cluster) == [1, 1, 0]


async def test_a_container_that_cannot_be_made_is_waited_for_and_then_removed_with_grace(
    cluster: MemoryCluster, runtime: KubernetesRuntime
) -> None:
    status = container(waiting={"reason": "RunContainerError", "message": "busy"})
    put_pod(cluster, 100.0, containerStatuses=status)
    assert await runtime.start_container(SPEC) == Pulling("CreateContainerWaiting: busy")
    put_pod(cluster, 130.0, containerStatuses=status)
    with pytest.raises(BackendError, match="cannot be made: busy"):
        await runtime.start_container(SPEC)
    assert graces(cluster) == [1]


async def test_a_policy_that_must_change_is_there_before_the_old_one_goes(cluster: MemoryCluster) -> None:
    await NetworkIsolation(cluster, SITE).stand()
    cluster.effects.clear()
    await NetworkIsolation(cluster, replace(SITE, reachable=("10.1.0.0/16",))).stand()
    assert [effect[0] for effect in cluster.effects] == ["create", "create", "delete", "delete"]
    assert {effect[2].split("-")[1] for effect in cluster.effects} == {"workspace", "probe"}
    assert await NetworkIsolation(cluster, replace(SITE, reachable=("10.1.0.0/16",))).missing() == []


async def test_a_policy_that_somebody_opened_is_replaced_and_then_removed(cluster: MemoryCluster) -> None:
    isolation = NetworkIsolation(cluster, SITE)
    await isolation.stand()
    opened = network_policies(SITE)[0]
    opened["spec"]["egress"] = [{}]
    cluster.put(POLICIES, opened)
    assert await isolation.missing() == [opened["metadata"]["name"]]
    cluster.effects.clear()
    await NetworkIsolation(cluster, SITE).stand()
    assert [effect[0] for effect in cluster.effects] == ["create", "delete"]
    assert cluster.effects[1][2] == opened["metadata"]["name"]
    assert await isolation.missing() == []


async def test_a_policy_of_somebody_else_with_our_name_is_named(cluster: MemoryCluster) -> None:
    theirs = network_policies(SITE)[0]
    theirs["metadata"]["labels"] = {}
    cluster.put(POLICIES, theirs)
    with pytest.raises(Deferred, match=f"network policy {theirs['metadata']['name']} is there"):
        await NetworkIsolation(cluster, SITE).stand()
    report = await anext(NetworkIsolation(cluster, SITE).watch())
    assert not report.holds


async def test_a_probe_looks_at_the_policies_and_changes_none(
    cluster: MemoryCluster, runtime: KubernetesRuntime
) -> None:
    with pytest.raises(Deferred, match="network policies are not up"):
        await runtime.run_inside(SPEC, ["true"])
    assert cluster.effects == []
    await NetworkIsolation(cluster, replace(SITE, own_namespace="codehub")).stand()
    cluster.effects.clear()
    with pytest.raises(TimeoutError):
        await runtime.run_inside(SPEC, ["true"], seconds=0.05)
    assert [effect[1] for effect in cluster.effects] == ["pods", "pods"], (
        "one that runs elsewhere made them its own way"
    )


async def test_a_cache_goes_on_after_an_answer_that_nobody_expected(cluster: MemoryCluster) -> None:
    cluster.broken = [KeyError("metadata")]
    followed = Followed(cluster, CLAIMS, "", lambda _found: None)
    task = asyncio.create_task(followed.follow())
    assert [one["metadata"]["name"] for one in await followed.all()] == [SPEC.volume]
    assert not task.done()
    task.cancel()


async def test_a_cache_whose_task_has_ended_is_begun_again(cluster: MemoryCluster) -> None:
    cache = ClusterCache(cluster, "")
    cache.begin()
    before = list(cache.tasks.values())
    cache.begin()
    assert list(cache.tasks.values()) == before
    before[0].cancel()
    await asyncio.wait(before[:1])
    cache.begin()
    assert [one is other for one, other in zip(cache.tasks.values(), before, strict=True)] == [False, True, True]
    assert await cache.pods.all() == []
    await cache.close()


async def test_a_cache_that_has_not_heard_for_long_knows_nothing(cluster: MemoryCluster) -> None:
    followed = Followed(cluster, CLAIMS, "", lambda _found: None, fresh_seconds=0.2)
    task = asyncio.create_task(followed.follow())
    assert await followed.all()
    await asyncio.sleep(0.3)
    with pytest.raises(Unreachable, match="has not been heard from"):
        await followed.all()
    task.cancel()


JOB_SPEC = JobSpec(KEY, UUID("99999999-8888-7777-6666-555555555555"), JobKind.ARCHIVE, SPEC.volume, "k/home.tar.zst")
SILENT = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]


def put_job(cluster: MemoryCluster, *, leaving: bool = False, **status: Any) -> Manifest:
    """The workspace's Job, which somebody may have deleted, with that status."""
    made = job(SITE, JOB_SPEC, ["python"], "s3://homes", volume_is_there=True)
    if leaving:
        made["metadata"]["deletionTimestamp"] = NOW.isoformat()
    return cluster.put(JOBS, {**made, "status": status})


def put_job_pod(cluster: MemoryCluster, **status: Any) -> Manifest:
    """The Job's pod, as the cluster makes it, with that status."""
    made = cluster.objects[JOBS, f"ws-{KEY}-job"]
    told = {"name": f"ws-{KEY}-job-x", "labels": made["metadata"]["labels"]}
    told["ownerReferences"] = [{"kind": "Job", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}]
    spec = {**made["spec"]["template"]["spec"], "nodeName": "n-1"}
    return cluster.put(PODS, {"metadata": told, "spec": spec, "status": {"phase": "Pending", **status}})


def job_container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "job", "image": "codehub:1", "state": state}]


@pytest.fixture
def jobs(runtime: KubernetesRuntime) -> KubernetesJobs:
    return KubernetesJobs(runtime, "s3://homes", {})


async def test_a_job_on_a_silent_node_runs_and_its_log_is_not_asked_for(
    cluster: MemoryCluster, jobs: KubernetesJobs
) -> None:
    put_job(cluster)
    put_job_pod(
        cluster,
        phase="Running",
        conditions=SILENT,
        containerStatuses=job_container(running={"startedAt": NOW.isoformat()}),
    )
    assert (await jobs.find([KEY]))[KEY].state is JobState.RUNNING
    assert cluster.effects == []


async def test_a_log_that_cannot_be_read_is_no_output(cluster: MemoryCluster, jobs: KubernetesJobs) -> None:
    put_job(cluster)
    running = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": job_container(running={"startedAt": NOW.isoformat()}),
    }
    pod = put_job_pod(cluster, **running)
    cluster.logs[pod["metadata"]["name"]] = Unreachable("dial tcp: i/o timeout", endpoint="k8s-api", status_code=500)
    found = (await jobs.find([KEY]))[KEY]
    assert (found.state, found.progress) == (JobState.RUNNING, None)
    cluster.logs[pod["metadata"]["name"]] = Unreachable("may not look at pods/log", endpoint="k8s-api", status_code=403)
    with pytest.raises(Unreachable):
        await jobs.find([KEY])


async def test_a_job_that_is_deleted_runs_until_its_pod_has_ended(cluster: MemoryCluster, jobs: KubernetesJobs) -> None:
    put_job(cluster, leaving=True)
    put_job_pod(
        cluster,
        phase="Running",
        podIP="10.0.0.1",
        containerStatuses=job_container(running={"startedAt": NOW.isoformat()}),
    )
    assert (await jobs.find([KEY]))[KEY].state is JobState.RUNNING
    put_job_pod(cluster, phase="Failed", containerStatuses=job_container(terminated={"exitCode": 137}))
    assert not await jobs.find([KEY])


@pytest.mark.parametrize("ending", ["Failed", "Complete"])
async def test_a_job_that_ended_and_whose_pod_is_gone_was_interrupted(
    cluster: MemoryCluster, jobs: KubernetesJobs, ending: str
) -> None:
    put_job(cluster)
    assert (await jobs.find([KEY]))[KEY].state is JobState.RUNNING
    put_job(cluster, conditions=[{"type": ending, "status": "True"}])
    found = (await jobs.find([KEY]))[KEY]
    assert (found.state, found.reason) == (JobState.FAILED, ErrorReason.UNREACHABLE)


async def test_why_a_job_waits_is_its_step(cluster: MemoryCluster, jobs: KubernetesJobs) -> None:
    put_job(cluster)
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    put_job_pod(cluster, conditions=[no_room])
    assert (await jobs.find([KEY]))[KEY].progress == Progress(step="Unschedulable: 0/3 nodes")


async def test_no_workspace_starts_while_a_job_has_its_home(cluster: MemoryCluster, runtime: KubernetesRuntime) -> None:
    put_job(cluster)
    put_job_pod(
        cluster,
        phase="Running",
        podIP="10.0.0.1",
        containerStatuses=job_container(running={"startedAt": NOW.isoformat()}),
    )
    with pytest.raises(Deferred, match=f"pod ws-{KEY}-job-x"):
        await runtime.start_container(SPEC)
    assert ("create", "pods", f"ws-{KEY}") not in cluster.effects


def test_what_a_probe_tries_that_no_workspace_may_reach() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert set(addresses_beyond_reach(environ)) == {("10.0.0.1", 6443), ("169.254.169.254", 80), ("168.63.129.16", 80)}


async def test_a_cluster_is_known_by_our_namespace_alone(cluster: MemoryCluster, runtime: KubernetesRuntime) -> None:
    cluster.put(NAMESPACES, {"metadata": {"name": "here", "uid": "u-here"}})
    assert await runtime.identity() == "kubernetes u-here here"
    cluster.put(NAMESPACES, {"metadata": {"name": "kube-system", "uid": "u-system"}})
    assert await runtime.identity() == "kubernetes u-here here", "whatever rights come or go"


async def test_the_claims_of_few_are_asked_for_by_name_once_they_are_known(cluster: MemoryCluster) -> None:
    """A list by labels goes through all claims of the namespace. A next home that we have not heard of is seen too."""
    cluster.objects.clear()
    first, second = volume_name(KEY, 3), volume_name(KEY, 4)
    cluster.put(CLAIMS, claim(SITE, KEY, first, None))
    runtime = KubernetesRuntime(cluster, SITE)
    try:
        assert set((await runtime.volumes())[KEY]) == {first}
        cluster.listed.clear()
        assert set((await runtime.volumes([KEY]))[KEY]) == {first}
        assert "persistentvolumeclaims" not in cluster.listed
        cluster.put(CLAIMS, claim(SITE, KEY, second, None))
        assert set((await runtime.volumes([KEY]))[KEY]) == {first, second}
        del cluster.objects[CLAIMS, first]
        assert set((await runtime.volumes([KEY]))[KEY]) == {second}, "as it is now, not as it is known"
        assert "persistentvolumeclaims" not in cluster.listed
        other = UUID(int=7)
        cluster.put(CLAIMS, claim(SITE, other, volume_name(other, 9), None))
        assert set(await runtime.volumes([other])) == {other}, "of whom nothing is known, all are listed"
    finally:
        await runtime.close()


QUOTA = Refusal("Operation cannot be fulfilled on resourcequotas", 409, "Conflict")


@pytest.mark.parametrize("kind", [PODS, SECRETS])
async def test_a_conflict_that_says_nothing_of_the_name_fails_the_try(
    cluster: MemoryCluster, runtime: KubernetesRuntime, kind: Kind
) -> None:
    cluster.refusals[kind] = QUOTA
    with pytest.raises(BackendError, match="cannot be fulfilled on resourcequotas"):
        await runtime.start_container(SPEC)


async def test_a_claim_that_a_quota_refuses_is_not_there(cluster: MemoryCluster, runtime: KubernetesRuntime) -> None:
    cluster.refusals[CLAIMS] = QUOTA
    with pytest.raises(BackendError, match="cannot be fulfilled on resourcequotas"):
        await runtime.create_volume(KEY, volume_name(KEY, 2))
