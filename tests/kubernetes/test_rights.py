"""What CodeHub may do in its namespace, and nothing else, is enough for the whole life of a workspace."""

import asyncio
import json
from base64 import b64decode
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from codehub.adapters.kubernetes import Access, Cluster, KubernetesJobs, KubernetesRuntime
from codehub.domain.naming import volume_name
from codehub.ports.jobs import JobKind, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec, StartSecrets
from tests.contracts.places import KubernetesPlace
from tests.eventually import eventually

pytestmark = [pytest.mark.system, pytest.mark.kubernetes]

RULES: dict[tuple[str, str], list[str]] = {
    ("", "pods"): ["get", "list", "watch", "create", "delete"],
    ("", "pods/log"): ["get"],
    ("", "persistentvolumeclaims"): ["get", "list", "watch", "create", "delete", "patch"],
    ("", "secrets"): ["get", "list", "create", "delete", "patch"],
    ("", "events"): ["list"],
    ("batch", "jobs"): ["get", "list", "watch", "create", "delete"],
    ("networking.k8s.io", "networkpolicies"): ["list", "create", "delete"],
}
"""The coordinator's rights, by API group and resource."""
NAME = "codehub-test-coordinator"


def grant(place: KubernetesPlace) -> str:
    """A service account with those rights, and the right to read its own namespace; its token."""
    testbed = place.testbed
    rules = [{"apiGroups": [api], "resources": [kind], "verbs": verbs} for (api, kind), verbs in RULES.items()]
    own = {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [testbed.namespace], "verbs": ["get"]}
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": testbed.namespace}]
    made: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [*rules, own]},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
            "subjects": subject,
        },
    ]
    for one in made:
        testbed.kubectl("apply", "-f", "-", given=json.dumps({**one, "metadata": {"name": NAME}}))
    secret = ""
    while not secret:
        secret = next((one["name"] for one in testbed.get("serviceaccount", NAME).get("secrets") or ()), "")
    return b64decode(testbed.get("secret", secret)["data"]["token"]).decode()


async def test_the_rights_of_a_coordinator_are_enough_for_a_whole_life(place: KubernetesPlace, tmp_path: Path) -> None:
    view = json.loads(place.testbed.kubectl("config", "view", "--raw", "-o", "json"))
    view["users"][0]["user"] = {"token": grant(place)}
    path = tmp_path / "coordinator.json"
    path.write_text(json.dumps(view))
    async with AsyncExitStack() as stack:
        cluster = Cluster(Access(str(path), namespace=place.testbed.namespace))
        stack.push_async_callback(cluster.close)
        runtime = KubernetesRuntime(cluster, place.site)
        stack.push_async_callback(runtime.close)
        assert await runtime.identity() == await place.runtime().identity(), "whatever rights one has"
        key = uuid4()
        spec = ContainerSpec(key, volume_name(key, 1), "", secrets=StartSecrets(env={"TOKEN": "x"}))
        await runtime.create_volume(key, spec.volume)
        while await runtime.start_container(spec) is not None:
            await asyncio.sleep(0.1)
        await eventually(lambda: runtime.answers(key))
        assert await runtime.logs(key, 1) == "listening\n"
        assert set(await runtime.containers()) == set(await runtime.volumes()) == {key}
        assert await runtime.remove_orphans() == 0
        assert not await runtime.compute_usage([key])
        place.write(spec.volume, 7)
        await runtime.remove_container(key)
        jobs = KubernetesJobs(runtime, *place.store)
        await jobs.start(JobSpec(key, uuid4(), JobKind.ARCHIVE, spec.volume, f"homes/{key}/{uuid4()}/home.tar.zst"))

        async def has_ended() -> bool:
            return (await jobs.find())[key].state is not JobState.RUNNING

        await eventually(has_ended)
        assert (await jobs.find([key]))[key].state is JobState.SUCCEEDED
        await jobs.clear(key)
        await runtime.delete_volume(key, spec.volume)
        assert not await runtime.volumes([key])
        assert await runtime.isolation.missing() == []
