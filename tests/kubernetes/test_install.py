"""The chart on a real cluster: installed, tested, upgraded while a workspace runs, uninstalled and installed again.

CodeHub's processes have nothing but the tokens of their own service accounts.
"""

import re
from collections.abc import Iterator

import pytest

from tests.kubernetes.chart import RELEASE
from tests.kubernetes.release import Release, becomes, release
from tests.kubernetes.test_chart import COMPONENTS, IDENTIFYING, RIGHTS

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

GROUPS = {"jobs": "jobs.batch", "networkpolicies": "networkpolicies.networking.k8s.io"}
FORBIDDEN = (
    ("create", "pods/exec"),
    ("create", "pods/attach"),
    ("create", "pods/portforward"),
    ("create", "pods/eviction"),
    ("create", "serviceaccounts/token"),
    ("update", "pods/ephemeralcontainers"),
    ("create", "deployments.apps"),
    ("delete", "deployments.apps"),
    ("get", "configmaps"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
    ("patch", "resourcequotas"),
    ("create", "services"),
    ("deletecollection", "pods"),
    ("deletecollection", "persistentvolumeclaims"),
)
CLUSTER_WIDE = (
    ("list", "nodes"),
    ("get", "nodes"),
    ("list", "namespaces"),
    ("delete", "persistentvolumes"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
)


@pytest.fixture(scope="module")
def installed() -> Iterator[Release]:
    with release() as found:
        said = found.install()
        assert "FOR A TRIAL ONLY" in said
        yield found


@pytest.mark.parametrize("account", COMPONENTS)
def test_an_account_may_what_is_listed_and_nothing_else(installed: Release, account: str) -> None:
    for resource in RIGHTS["coordinator"]:
        for verb in ("get", "list", "watch", "create", "delete", "patch", "update"):
            allowed = verb in RIGHTS[account].get(resource, ())
            assert installed.may(account, verb, GROUPS.get(resource, resource)) == allowed, f"{verb} {resource}"
    assert [pair for pair in FORBIDDEN if installed.may(account, *pair)] == []
    assert [pair for pair in CLUSTER_WIDE if installed.may(account, *pair, "--all-namespaces")] == []
    elsewhere = [("get", "secrets"), ("list", "pods"), ("create", "pods"), ("delete", "persistentvolumeclaims")]
    assert [pair for pair in elsewhere if installed.may(account, *pair, "--namespace=kube-system")] == []
    assert installed.may_read_namespace(account, installed.namespace) == (account in IDENTIFYING)
    assert not installed.may_read_namespace(account, "kube-system")


def test_two_of_each_are_ready_and_have_the_keys_that_they_need(installed: Release) -> None:
    for component in COMPONENTS:
        found = installed.get("deployment", f"codehub-{component}")
        assert found["status"]["readyReplicas"] == 2, installed.told()
    budgets = installed.get("poddisruptionbudgets")["items"]
    assert {one["status"]["disruptionsAllowed"] for one in budgets} == {1}


def test_a_release_s_whole_life_loses_nothing(installed: Release) -> None:
    password = installed.first_admin()
    with installed.admin(password) as http:
        made = http.post("/api/v1/workspaces", json={"name": "kept", "desired_state": "RUNNING"})
        assert made.status_code == 201, made.text
        key = made.json()["id"]
        becomes(http, key, "RUNNING")
        assert http.get(f"/api/v1/workspaces/{key}/logs").status_code == 200, "the API may read logs"
        assert installed.opened(http, key) == 200, "the front door leads to the IDE"
    pod, generated = uid(installed, "pod", f"ws-{key}"), secret_data(installed)
    inside(installed, key, "echo the answer is 42 > kept.txt && sync")

    goes_the_whole_way(installed.test())
    said = installed.kubectl("exec", "deployment/codehub-coordinator", "--", "codehub", "doctor", check=False)
    assert re.search(r"^ok +api ", said, re.MULTILINE), said

    installed.upgrade(settings={**installed.values["settings"], "MAX_RUNNING_PER_USER": 5})
    assert uid(installed, "pod", f"ws-{key}") == pod, "an upgrade restarts no workspace"
    assert secret_data(installed) == generated, "an upgrade changes no password"

    claims = installed.names("persistentvolumeclaims")
    installed.helm("uninstall", RELEASE, "--wait")
    assert installed.names("persistentvolumeclaims") == claims
    assert installed.names("deployments") == set()
    assert secret_data(installed) == generated

    installed.install()
    with installed.admin(password) as http:
        becomes(http, key, "RUNNING")
        assert http.patch(f"/api/v1/workspaces/{key}", json={"desired_state": "ARCHIVED"}).status_code in (200, 202)
        becomes(http, key, "ARCHIVED")
        assert not installed.names("persistentvolumeclaims", f"codehub.workspace={key}")
        assert http.patch(f"/api/v1/workspaces/{key}", json={"desired_state": "RUNNING"}).status_code in (200, 202)
        becomes(http, key, "RUNNING")
    assert inside(installed, key, "cat kept.txt") == "the answer is 42"


def goes_the_whole_way(said: str) -> None:
    """The doctor finds nothing wrong, but that this cluster may not enforce network policies: it is a test's."""
    for step in ("start", "archive", "restore", "clean up"):
        assert re.search(rf"^ok +probe: {step} ", said, re.MULTILINE), said
    failures = re.findall(r"^fail +(.*)", said, re.MULTILINE)
    assert not [one for one in failures if not one.startswith("probe: isolation")], said
    assert all("does not enforce NetworkPolicy" in one for one in failures), said


def uid(found: Release, kind: str, name: str) -> str:
    return str(found.get(kind, name)["metadata"]["uid"])


def secret_data(found: Release) -> dict[str, str]:
    data: dict[str, str] = found.get("secret", "codehub-generated")["data"]
    return data


def inside(found: Release, key: str, script: str) -> str:
    """As the cluster's administrator: no account of CodeHub's may do this."""
    return found.kubectl("exec", f"ws-{key}", "--", "sh", "-c", f"cd /home/coder && {script}")
