"""A node is drained, or takes a pod away: the workspace starts again where there is room, with its home as it was, and
its person is told."""

from collections.abc import AsyncIterator

import pytest

from codehub.domain.ledger import LedgerKind
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from tests.eventually import eventually
from tests.kubernetes_cluster import KubernetesTestbed
from tests.system.deployment import TIMEOUT_SECONDS
from tests.system.kubernetes_site import KubernetesDeployment, kubernetes_deployed

pytestmark = [pytest.mark.system, pytest.mark.kubernetes, pytest.mark.timeout(400)]


@pytest.fixture
async def site(
    kubernetes_testbed: KubernetesTestbed, logged_database: str, fresh_redis: str
) -> AsyncIterator[KubernetesDeployment]:
    async with kubernetes_deployed(kubernetes_testbed, logged_database, fresh_redis) as found:
        await found.leads(found.start())
        yield found


async def told_why_it_fell(site: KubernetesDeployment, row: Workspace) -> str:
    """What the ledger says of the last time that it ran no more."""
    found = [entry for _, entry in await site.services.database.views().entries(row.id, 100, None)]
    fell = next(entry for entry in found if entry.kind is LedgerKind.PHASE and entry.before == Phase.RUNNING)
    assert fell.reason == "evicted"
    return fell.message


async def test_a_drained_node_s_workspace_waits_for_room_and_goes_on_with_its_home(site: KubernetesDeployment) -> None:
    key = await site.create(Desired.RUNNING)
    before = await site.settled(key, Phase.RUNNING)
    site.inside(key, "echo the answer is 42 > /home/coder/kept.txt && sync")
    with site.cordoned():
        site.evict(key)

        async def waits_for_room() -> bool:
            row = await site.row(key)
            step = row.op_progress.step if row.op_progress else ""
            return row.operation is Operation.STARTING and step.startswith("Unschedulable: 0/1 nodes")

        await eventually(waits_for_room, TIMEOUT_SECONDS)
        waiting = await site.row(key)
        assert waiting.phase is Phase.STANDBY
        assert "drained" in (waiting.home.evicted or "")
        assert "drained" in await told_why_it_fell(site, before)
        assert {pod["status"]["phase"] for pod in site.pods(key)} == {"Pending"}, "one pod, which waits"
    after = await site.settled(key, Phase.RUNNING)
    assert after.home.evicted is None
    assert after.home.ready_instance != before.home.ready_instance
    assert site.inside(key, "cat /home/coder/kept.txt") == "the answer is 42"


async def test_a_pod_that_its_node_evicts_is_followed_by_another_once_it_is_gone(site: KubernetesDeployment) -> None:
    """The kubelet evicts what takes more scratch space than its share."""
    key = await site.create(Desired.RUNNING)
    before = await site.settled(key, Phase.RUNNING)
    site.inside(key, "echo the answer is 42 > /home/coder/kept.txt && sync")
    site.inside(key, "dd if=/dev/zero of=/tmp/large bs=1M count=600 status=none")

    async def is_another() -> bool:
        row = await site.row(key)
        assert row.phase is not Phase.ERROR
        return row.phase is Phase.RUNNING and row.home.ready_instance not in (None, before.home.ready_instance)

    await eventually(is_another, TIMEOUT_SECONDS)
    assert "exceeds the limit" in await told_why_it_fell(site, before)
    assert [pod["metadata"]["uid"] for pod in site.pods(key)] == [(await site.row(key)).home.ready_instance]
    assert site.inside(key, "cat /home/coder/kept.txt") == "the answer is 42"
