"""The Helm chart, rendered without a cluster: what it asks for, what it gives away, and what it refuses."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from codehub.bootstrap.runtimes import archive_url, must_reach_archives, open_archives
from codehub.settings import Settings, environment_name, load_settings
from tests.kubernetes.api_server import api_server
from tests.kubernetes.chart import (
    CHART,
    EVERYTHING,
    EXTERNAL,
    NEW,
    ROOT,
    STORES,
    TRIAL,
    Manifest,
    containers,
    hooks,
    named,
    of_kind,
    pods,
    refusal,
    render,
    run_helm,
    secret_data,
)

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
KUBERNETES_PAGE = (ROOT / "docs" / "KUBERNETES.md").read_text()
COMPONENTS = ("api", "proxy", "coordinator")


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_helm_finds_nothing_to_complain_about() -> None:
    for values in (TRIAL, EVERYTHING):
        done = run_helm("lint", "--strict", "--kube-version=1.20.2", str(CHART), values=values)
        assert done.returncode == 0, done.stdout + done.stderr


def schema_of(path: tuple[str, ...]) -> dict[str, Any]:
    found = SCHEMA
    for name in path:
        found = found["properties"][name]
        if "$ref" in found:
            found = SCHEMA["definitions"][found["$ref"].rpartition("/")[2]]
    return found


def value_paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict) and "properties" in schema_of((*above, name)):
            yield from value_paths(value, (*above, name))


def schema_paths(schema: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in schema.get("properties", {}):
        yield (*above, name)
        yield from schema_paths(schema_of((*above, name)), (*above, name))


def test_every_value_has_a_sentence() -> None:
    paths = list(value_paths(VALUES))
    assert len(paths) > 100
    told = {".".join(path): schema_of(path).get("description", "") for path in paths}
    assert [path for path, text in told.items() if not re.fullmatch(r"[A-Z].{8,}\.", text)] == []


def test_the_schema_knows_the_values_and_no_others() -> None:
    assert set(schema_paths(SCHEMA)) == set(value_paths(VALUES))
    assert "nonsense is not allowed" in refusal({**TRIAL, "nonsense": 1})


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("database", "no database is named: give database.url or database.existingSecret"),
        ("redis", "no Redis is named: give redis.url or redis.existingSecret"),
        ("archives", "archives.url is not set: name the bucket"),
    ],
)
def test_what_is_missing_is_told_in_one_line(left_out: str, told: str) -> None:
    assert told in refusal({name: value for name, value in EXTERNAL.items() if name != left_out})


def test_an_archive_store_that_is_a_directory_is_refused() -> None:
    assert "archives.url" in refusal({**EXTERNAL, "archives": {"url": "file:///srv/archives"}})


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def elsewhere() -> dict[str, str]:
    text = (CHART / "templates" / "_settings.tpl").read_text()
    found: dict[str, str] = yaml.safe_load(text.partition('define "codehub.elsewhere" -}}')[2].partition("{{-")[0])
    return found


def all_settings() -> set[str]:
    return {environment_name(field) for field in Settings.model_fields}


def test_every_setting_can_be_set_or_says_which_value_decides_it() -> None:
    free = sorted(all_settings() - elsewhere().keys())
    found = named(render({**TRIAL, "settings": dict.fromkeys(free, "some value")}), "ConfigMap", "codehub-settings")
    assert {name: found["data"].get(name) for name in free} == dict.fromkeys(free, "some value")
    for name, value in elsewhere().items():
        assert f"settings.{name} cannot be set there: {value}" in refusal({**TRIAL, "settings": {name: "x"}})


def test_a_secret_that_another_value_decides_is_refused_among_the_secret_settings() -> None:
    told = refusal({**TRIAL, "secretSettings": {"CODEHUB_DATABASE_URL": "x"}})
    assert "secretSettings.CODEHUB_DATABASE_URL cannot be set there: value database" in told


def test_what_is_decided_elsewhere_is_a_setting_and_the_value_exists() -> None:
    assert {name for name in elsewhere() if not name.startswith("AWS_")} <= all_settings()
    for told in elsewhere().values():
        value = re.match(r"value (\w+)(?:\.(\w+))?", told)
        assert value is None or schema_of(tuple(part for part in value.groups() if part))


def test_secrets_are_in_no_config_map() -> None:
    secret = {environment_name(name) for name, field in Settings.model_fields.items() if "SecretStr" in str(field)}
    assert secret - elsewhere().keys() == set()
    objects = render({**TRIAL, "secretSettings": {"CODEHUB_OIDC_CLIENT_SECRET": "hidden"}})
    assert secret_data(objects, "codehub-settings")["CODEHUB_OIDC_CLIENT_SECRET"] == "hidden"
    assert set(named(objects, "ConfigMap", "codehub-settings")["data"]) & (secret | {"AWS_SECRET_ACCESS_KEY"}) == set()


def test_no_secret_is_written_in_a_way_that_keeps_what_was_taken_out() -> None:
    """A key that is gone from `stringData` stays in force: a patch of it does not reach `data`."""
    for secret in of_kind(render(TRIAL, "--is-upgrade"), "Secret"):
        assert "stringData" not in secret
        assert secret["data"]


def test_numbers_and_switches_are_written_as_people_write_them() -> None:
    given = {"CODEHUB_WORKSPACE_MEMORY_BYTES": 17179869184, "CODEHUB_WORKSPACE_CPU": 1.5, "MAX_LIFETIME_SECONDS": 0}
    objects = render({**TRIAL, "settings": given, "workspaces": {"diskBytes": 1 << 40}})
    found = named(objects, "ConfigMap", "codehub-settings")["data"]
    assert found["CODEHUB_WORKSPACE_MEMORY_BYTES"] == "17179869184"
    assert (found["CODEHUB_WORKSPACE_CPU"], found["MAX_LIFETIME_SECONDS"]) == ("1.5", "0")
    assert found["CODEHUB_KUBERNETES_DISK_BYTES"] == "1099511627776"


def test_a_changed_setting_restarts_the_pods() -> None:
    def checksums(values: dict[str, Any]) -> list[str]:
        objects = render({**EXTERNAL, **values})
        return [pod["metadata"]["annotations"]["checksum/settings"] for _, pod in pods(of_kind(objects, "Deployment"))]

    before = checksums({})
    assert before == checksums({})
    assert set(before) & set(checksums({"settings": {"TTL_STANDBY_SECONDS": 3600}})) == set()


def test_hosts_decide_the_addresses_that_browsers_use() -> None:
    found = named(render(EVERYTHING), "ConfigMap", "codehub-settings")["data"]
    assert found["CODEHUB_PUBLIC_URL"] == "https://hub.example.com"
    assert found["CODEHUB_WORKSPACE_URL"] == "https://{slug}.ws.example.com/"


# ── pods ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["trial", "everything"])
def objects(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(TRIAL if request.param == "trial" else EVERYTHING, "--is-upgrade")


def test_all_pods_keep_to_pod_security_restricted(objects: list[Manifest]) -> None:
    for name, pod in pods(objects):
        around = pod["spec"]["securityContext"]
        assert around["runAsNonRoot"], name
        assert around["runAsUser"] > 0, name
        assert around["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"]), name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


def test_all_containers_say_what_they_need(objects: list[Manifest]) -> None:
    for name, pod in pods(objects):
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


def test_no_image_is_whatever_is_latest(objects: list[Manifest]) -> None:
    images = {container["image"] for _, pod in pods(objects) for container in containers(pod)}
    assert [image for image in images if not re.search(r":\d+\.\d+(\.\d+)?$", image)] == []


def test_an_image_can_be_named_by_its_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    named_so = render({**EXTERNAL, "image": {"repository": "registry.example.com/codehub", "digest": digest}})
    assert {pod["spec"]["containers"][0]["image"] for _, pod in pods(named_so)} == {
        f"registry.example.com/codehub@{digest}"
    }


def test_only_who_speaks_to_the_cluster_has_a_token(objects: list[Manifest]) -> None:
    having = {name for name, pod in pods(objects) if pod["spec"]["automountServiceAccountToken"]}
    assert having == {f"codehub-{component}" for component in (*COMPONENTS, "doctor")}
    assert not any(pod["spec"]["enableServiceLinks"] for _, pod in pods(objects))


def test_two_of_each_spread_over_nodes_and_zones(objects: list[Manifest]) -> None:
    for component in COMPONENTS:
        found = named(objects, "Deployment", f"codehub-{component}")["spec"]
        assert found.get("replicas", 2) == 2
        spread = found["template"]["spec"]["topologySpreadConstraints"]
        assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert named(objects, "PodDisruptionBudget", f"codehub-{component}")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("component", "setting"),
    [
        ("api", "CODEHUB_API_ADDRESS"),
        ("proxy", "CODEHUB_PROXY_STATUS_ADDRESS"),
        ("coordinator", "COORDINATOR_STATUS_ADDRESS"),
    ],
)
def test_probes_ask_where_the_process_answers(objects: list[Manifest], component: str, setting: str) -> None:
    (container,) = named(objects, "Deployment", f"codehub-{component}")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    address = next(one["value"] for one in container["env"] if one["name"] == setting)
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], f"0.0.0.0:{ports[asked['port']]}") == (path, address)


SECRET_SETTINGS = {"CODEHUB_OIDC_CLIENT_SECRET": "hidden", "CODEHUB_WEBHOOK_URL": "https://x", "EXTRA": "y"}
ADDRESSES = {"CODEHUB_DATABASE_URL", "CODEHUB_REDIS_URL"}
BUCKET = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SECRETS_OF = {
    "proxy": ADDRESSES,
    "api": ADDRESSES | BUCKET | {"CODEHUB_SECRETS_KEYS", "CODEHUB_OIDC_CLIENT_SECRET", "EXTRA"},
    "coordinator": ADDRESSES | BUCKET | {"CODEHUB_SECRETS_KEYS", "CODEHUB_WEBHOOK_URL", "EXTRA"},
}
OWN_STORES: dict[str, Any] = {
    "database": {"existingSecret": "our-database"},
    "redis": {"existingSecret": "our-redis"},
    "archives": {"url": "s3://archives", "accessKeyId": "id", "secretAccessKey": "secret"},
    "secretsKeys": {"existingSecret": "our-keys"},
}


def container_of(objects: list[Manifest], component: str) -> Manifest:
    (container,) = named(objects, "Deployment", f"codehub-{component}")["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


@pytest.mark.parametrize("values", [TRIAL, OWN_STORES], ids=["trial", "own stores"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_each_process_is_given_the_secrets_that_it_needs(values: dict[str, Any], component: str) -> None:
    """A process reads one secret setting by its name, so that it has no other."""
    container = container_of(render({**values, "secretSettings": SECRET_SETTINGS}), component)
    given = [one["name"] for one in container["env"] if "valueFrom" in one]
    assert len(given) == len(set(given))
    assert set(given) == SECRETS_OF[component]
    assert container["envFrom"] == [{"configMapRef": {"name": "codehub-settings"}}]


def test_what_a_process_reads_by_name_is_there() -> None:
    objects = render({**TRIAL, "secretSettings": SECRET_SETTINGS})
    for component in (*COMPONENTS, "doctor"):
        pod = dict(pods(objects))[f"codehub-{component}"]
        for one in pod["spec"]["containers"][0]["env"]:
            if source := one.get("valueFrom", {}).get("secretKeyRef"):
                assert source["key"] in secret_data(objects, source["name"]), one["name"]


def test_the_front_door_is_given_no_secret_of_the_operator_s_own_as_a_whole() -> None:
    objects = render({**EXTERNAL, "existingSecrets": ["our-settings"]})
    whole = {
        component: {
            one["secretRef"]["name"] for one in container_of(objects, component)["envFrom"] if "secretRef" in one
        }
        for component in COMPONENTS
    }
    both = {"our-store", "our-settings"}
    assert whole == {"proxy": set(), "api": both, "coordinator": both}


def test_a_changed_secret_restarts_who_has_it() -> None:
    def checksums(secret: str) -> dict[str, str]:
        objects = render({**OWN_STORES, "secretSettings": {"CODEHUB_OIDC_CLIENT_SECRET": secret}})
        return {
            name: pod["metadata"]["annotations"]["checksum/secrets"]
            for name, pod in pods(of_kind(objects, "Deployment"))
        }

    before, after = checksums("one"), checksums("another")
    assert {name for name in before if before[name] != after[name]} == {"codehub-api"}


def test_a_front_door_starts_without_the_bucket_s_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("CODEHUB_OIDC_CLIENT_SECRET", raising=False)
    data = named(render(EVERYTHING), "ConfigMap", "codehub-settings")["data"]
    for name, value in data.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(database_url="postgresql://db/x", redis_url="redis://redis")
    must_reach_archives(settings, archive_url(settings))
    open_archives(settings).close()


def test_the_front_door_has_no_key_to_people_s_secrets(objects: list[Manifest]) -> None:
    def has_key(component: str) -> bool:
        return "CODEHUB_SECRETS_KEYS" in {one["name"] for one in container_of(objects, component)["env"]}

    assert [component for component in COMPONENTS if has_key(component)] == ["api", "coordinator"]


def test_workspaces_let_in_codehub_s_own_pods_alone(objects: list[Manifest]) -> None:
    """The runtime's policies go by the label app.kubernetes.io/name, which the trial's stores must not have."""
    names = {name: pod["metadata"]["labels"]["app.kubernetes.io/name"] for name, pod in pods(objects)}
    stores = {name for name in names if name.rpartition("-")[2] in VALUES["trial"]}
    assert {name for name, label in names.items() if label == "codehub"} == names.keys() - stores


# ── rights ───────────────────────────────────────────────────────────────────────────────────────────────────────────

READ = {"get", "list", "watch"}
RIGHTS = {
    "coordinator": {
        "pods": READ | {"create", "delete"},
        "pods/log": {"get"},
        "persistentvolumeclaims": READ | {"create", "delete", "patch"},
        "jobs": READ | {"create", "delete"},
        "secrets": {"get", "list", "create", "delete", "patch"},
        "events": {"list"},
        "networkpolicies": {"list", "create", "delete"},
    },
    "api": {
        "pods": READ,
        "pods/log": {"get"},
        "persistentvolumeclaims": {"list", "watch"},
        "jobs": {"list", "watch"},
    },
    "proxy": {"pods": {"get"}, "secrets": {"get"}},
}
IDENTIFYING = ("api", "coordinator")
"""The processes that ask which cluster and namespace this is."""


def rights(role: Manifest) -> dict[str, set[str]]:
    """The verbs by resource, without what is allowed for an object of one name alone."""
    general = [rule for rule in role["rules"] if "resourceNames" not in rule]
    return {resource: set(rule["verbs"]) for rule in general for resource in rule["resources"]}


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_process_has_these_rights_and_no_others(objects: list[Manifest], component: str) -> None:
    role = named(objects, "Role", f"codehub-{component}")
    assert rights(role) == RIGHTS[component]
    bound = [one for one in of_kind(objects, "RoleBinding") if one["roleRef"]["name"] == f"codehub-{component}"]
    subjects = [subject for one in bound for subject in one["subjects"]]
    assert subjects == [{"kind": "ServiceAccount", "name": f"codehub-{component}", "namespace": "hub"}]


def test_metrics_of_pods_are_read_only_if_wished() -> None:
    objects = render({**EXTERNAL, "rbac": {"metrics": True}})
    reading = {"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]}
    having = {role["metadata"]["name"] for role in of_kind(objects, "Role") if reading in role["rules"]}
    assert having == {"codehub-coordinator", "codehub-api"}


def test_outside_of_the_namespace_there_is_no_right(objects: list[Manifest]) -> None:
    assert of_kind(objects, "ClusterRole") == of_kind(objects, "ClusterRoleBinding") == []


@pytest.mark.parametrize("namespace", ["hub", "desks"])
def test_the_one_object_that_is_named_is_the_workspaces_namespace(namespace: str) -> None:
    objects = render({**EXTERNAL, "workspaces": {"namespace": namespace}})
    own = {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [namespace], "verbs": ["get"]}
    for component in COMPONENTS:
        rules = named(objects, "Role", f"codehub-{component}")["rules"]
        named_so = [rule for rule in rules if "resourceNames" in rule]
        assert named_so == ([own] if component in IDENTIFYING else []), component


def test_nobody_may_run_commands_in_pods_or_speak_for_others(objects: list[Manifest]) -> None:
    roles = of_kind(objects, "Role")
    given = {resource for role in roles for resource in rights(role)}
    assert not given & {"pods/exec", "pods/attach", "pods/portforward", "serviceaccounts", "serviceaccounts/token", "*"}
    assert not {verb for role in roles for verbs in rights(role).values() for verb in verbs} & {"*", "bind", "escalate"}


def test_workspaces_have_an_account_without_any_right(objects: list[Manifest]) -> None:
    account = named(objects, "ConfigMap", "codehub-settings")["data"]["CODEHUB_KUBERNETES_SERVICE_ACCOUNT"]
    assert named(objects, "ServiceAccount", account)["automountServiceAccountToken"] is False
    bound = [subject["name"] for one in of_kind(objects, "RoleBinding") for subject in one["subjects"]]
    assert account not in bound


def test_workspaces_in_a_namespace_of_their_own_take_the_roles_there() -> None:
    objects = render({**EXTERNAL, "workspaces": {"namespace": "desks"}})
    assert {role["metadata"]["namespace"] for role in of_kind(objects, "Role")} == {"desks"}
    subjects = [subject for one in of_kind(objects, "RoleBinding") for subject in one["subjects"]]
    assert {subject["namespace"] for subject in subjects} == {"hub"}
    assert named(objects, "ConfigMap", "codehub-settings")["data"]["CODEHUB_KUBERNETES_NAMESPACE"] == "desks"


def test_the_rights_in_the_docs_are_those_of_the_chart() -> None:
    text = KUBERNETES_PAGE.partition("## Rights")[2]
    rows = re.findall(r"^\| `([\w/]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    told = {
        component: {row[0]: set(row[1 + place].replace(",", " ").split()) for row in rows if row[1 + place] != "–"}
        for place, component in enumerate(("coordinator", "api", "proxy"))
    }
    assert told == RIGHTS
    assert "| `namespaces`, the workspaces' own alone | get | get | – |" in text


def test_operators_are_sent_to_the_process_that_may_do_it() -> None:
    row = next(line for line in KUBERNETES_PAGE.splitlines() if line.startswith("| operator's commands |"))
    assert "deployment/codehub-coordinator" in row


@pytest.mark.parametrize(
    "told",
    [
        "--force --delete-emptydir-data",
        "cluster autoscaler",
        "IPv6 alone are not supported",
        "kubernetes.io/metadata.name=codehub",
        "IRSA",
        "5353",
        "codehub-store-",
        "It cannot be archived any more",
    ],
)
def test_the_page_tells_what_operators_run_into(told: str) -> None:
    assert told in KUBERNETES_PAGE


# ── network ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_api_is_reached_by_the_front_door_and_where_a_doctor_runs_alone(objects: list[Manifest]) -> None:
    (rule,) = named(objects, "NetworkPolicy", "codehub-api")["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8001}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchExpressions"][0]["values"] == ["proxy", "coordinator", "doctor"]


def test_nobody_reaches_the_coordinator(objects: list[Manifest]) -> None:
    assert "ingress" not in named(objects, "NetworkPolicy", "codehub-coordinator")["spec"]


def test_the_trial_s_stores_let_in_codehub_and_its_storage_jobs() -> None:
    objects = render(TRIAL)
    for store in VALUES["trial"]:
        (rule,) = named(objects, "NetworkPolicy", f"codehub-{store}")["spec"]["ingress"]
        assert len(rule["from"]) == (2 if store == "archives" else 1)


def test_one_wildcard_ingress_leads_to_the_front_door() -> None:
    (ingress,) = of_kind(render(EVERYTHING), "Ingress")
    spec = ingress["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert [rule["host"] for rule in spec["rules"]] == ["hub.example.com", "*.ws.example.com"]
    backends = [path["backend"]["service"]["name"] for rule in spec["rules"] for path in rule["http"]["paths"]]
    assert backends == ["codehub-proxy", "codehub-proxy"]
    assert [one["secretName"] for one in spec["tls"]] == ["codehub-hub-tls", "codehub-workspaces-tls"]
    assert "hosts.workspaces" in refusal({**EVERYTHING, "hosts": {"hub": "hub.example.com"}})


# ── versions of Kubernetes ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("offered", "budgets", "scaling"),
    [((), "policy/v1beta1", "autoscaling/v2beta2"), (NEW, "policy/v1", "autoscaling/v2")],
)
def test_kinds_are_asked_for_in_the_version_that_the_cluster_offers(
    offered: tuple[str, ...], budgets: str, scaling: str
) -> None:
    objects = render(EVERYTHING, *(word for name in offered for word in ("--api-versions", name)))
    assert {one["apiVersion"] for one in of_kind(objects, "PodDisruptionBudget")} == {budgets}
    assert {one["apiVersion"] for one in of_kind(objects, "HorizontalPodAutoscaler")} == {scaling}
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in of_kind(objects, "HorizontalPodAutoscaler")}
    assert scaled == {"codehub-api", "codehub-proxy"}
    assert all("replicas" not in named(objects, "Deployment", name)["spec"] for name in scaled)


def test_a_cluster_that_is_too_old_is_refused() -> None:
    done = run_helm("template", "codehub", str(CHART), "--kube-version=1.19.0", values=TRIAL)
    assert "requires kubeVersion: >=1.20.0-0" in done.stderr


def test_metrics_are_asked_for_only_if_wished() -> None:
    assert of_kind(render(TRIAL), "ServiceMonitor") == []
    objects = render(EVERYTHING)
    monitors = {one["metadata"]["name"]: one for one in of_kind(objects, "ServiceMonitor")}
    assert monitors.keys() == {"codehub-status", "codehub-api"}
    wanted = monitors["codehub-status"]["spec"]["selector"]["matchLabels"].items()
    found = {
        one["metadata"]["name"] for one in of_kind(objects, "Service") if wanted <= one["metadata"]["labels"].items()
    }
    assert found == {"codehub-proxy-status", "codehub-coordinator-status"}


# ── install, upgrade, uninstall ──────────────────────────────────────────────────────────────────────────────────────


def test_the_schema_is_migrated_before_an_install_and_before_an_upgrade() -> None:
    objects = render(EXTERNAL)
    job = named(objects, "Job", "codehub-migration")
    assert hooks(job) == {"pre-install", "pre-upgrade"}
    (container,) = containers(job["spec"]["template"])
    (variable,) = container["env"]
    source = variable["valueFrom"]["secretKeyRef"]
    secret = named(objects, "Secret", source["name"])
    assert hooks(secret) == hooks(job), "it is there before the job, as this revision has it"
    assert secret_data(objects, source["name"]) == {"CODEHUB_DATABASE_URL": EXTERNAL["database"]["url"]}


def test_the_migration_has_the_files_that_the_processes_have() -> None:
    """A database's address may name a certificate authority: by the same path everywhere."""
    own = {"name": "tls", "mountPath": "/etc/tls"}
    volume = {"name": "tls", "secret": {"secretName": "our-tls"}}
    values = {"caBundle": {"existingConfigMap": "our-ca"}, "extraVolumes": [volume], "extraVolumeMounts": [own]}
    objects = render({**EXTERNAL, **values})
    pod = named(objects, "Job", "codehub-migration")["spec"]["template"]
    api = named(objects, "Deployment", "codehub-api")["spec"]["template"]
    assert {"name": "authorities", "configMap": {"name": "our-ca"}} in pod["spec"]["volumes"]
    assert pod["spec"]["volumes"] == api["spec"]["volumes"]
    assert pod["spec"]["containers"][0]["volumeMounts"] == api["spec"]["containers"][0]["volumeMounts"]


def test_a_database_of_the_release_s_own_is_migrated_by_the_pods_that_wait_for_it() -> None:
    assert of_kind(render(TRIAL), "Job") == []
    upgraded = render(TRIAL, "--is-upgrade")
    assert hooks(named(upgraded, "Job", "codehub-migration")) == {"pre-upgrade"}
    for component in COMPONENTS:
        pod = named(upgraded, "Deployment", f"codehub-{component}")["spec"]["template"]
        assert [one["name"] for one in pod["spec"]["initContainers"]] == ["migrate"]


def test_an_uninstall_keeps_what_cannot_be_made_again() -> None:
    objects = render(TRIAL)
    generated = named(objects, "Secret", "codehub-generated")
    assert generated["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert re.fullmatch(r"[A-Za-z0-9+/]{43}=", secret_data(objects, "codehub-generated")["secretsKey"])
    assert of_kind(objects, "PersistentVolumeClaim") == [], "a claim of the release would be deleted with it"
    claimed = {
        one["metadata"]["name"] for one in of_kind(objects, "StatefulSet") if one["spec"]["volumeClaimTemplates"]
    }
    assert claimed == {"codehub-postgresql", "codehub-archives"}


def test_what_is_generated_is_one_and_the_same_wherever_it_is_used() -> None:
    objects = render(TRIAL)
    generated, settings = secret_data(objects, "codehub-generated"), secret_data(objects, "codehub-settings")
    assert generated["postgresPassword"] in settings["CODEHUB_DATABASE_URL"]
    assert generated["redisPassword"] in settings["CODEHUB_REDIS_URL"]
    assert generated["archivesSecret"] == settings["AWS_SECRET_ACCESS_KEY"]
    assert len({generated[name] for name in generated}) == len(generated)


ACCOUNT = {"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "hub"}}
SYSTEM = {"kind": "Namespace", "metadata": {"name": "kube-system"}}
KEPT_NAMES = ("postgresPassword", "redisPassword", "archivesKeyId", "archivesSecret", "secretsKey")


def kept(*names: str) -> Manifest:
    """The Secret of a release of before, with these parts."""
    data = {name: base64.b64encode(f"{name} of before+/=".encode()).decode() for name in names}
    return {"kind": "Secret", "metadata": {"name": "codehub-generated", "namespace": "hub"}, "data": data}


@pytest.mark.parametrize("words", [(), ("--is-upgrade",)], ids=["installed again", "upgraded"])
@pytest.mark.parametrize("values", [STORES, TRIAL], ids=["as it is", "with generated.anew"])
def test_what_was_generated_is_written_as_it_was(
    values: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    """The Secret is immutable: the cluster takes an upgrade of it only with the very same data."""
    before = kept(*KEPT_NAMES)
    with api_server([ACCOUNT, before], tmp_path) as cluster:
        objects = render(values, *cluster, *words)
    secret = named(objects, "Secret", "codehub-generated")
    assert secret["immutable"] is True
    assert secret["data"] == before["data"]
    assert "postgresPassword of before" in secret_data(objects, "codehub-settings")["CODEHUB_DATABASE_URL"]


@pytest.mark.parametrize("seen", [ACCOUNT, SYSTEM], ids=["a namespace that is there", "a namespace that helm makes"])
def test_the_first_install_generates(seen: Manifest, tmp_path: Path) -> None:
    with api_server([seen], tmp_path) as cluster:
        found = [secret_data(render(STORES, *cluster), "codehub-generated") for _ in range(2)]
    assert all(set(one) == set(KEPT_NAMES) for one in found)
    assert found[0]["secretsKey"] != found[1]["secretsKey"]


@pytest.mark.parametrize(
    ("there", "missing"), [((), ", ".join(KEPT_NAMES)), (KEPT_NAMES[:-1], "secretsKey")], ids=["all of it", "the key"]
)
def test_an_upgrade_that_misses_what_was_generated_says_what_to_do(
    there: tuple[str, ...], missing: str, tmp_path: Path
) -> None:
    with api_server([ACCOUNT, *([kept(*there)] if there else [])], tmp_path) as cluster:
        told = refusal(STORES, *cluster, "--is-upgrade")
    assert f"the Secret hub/codehub-generated has no {missing}:" in told
    assert "secretsKeys.existingSecret" in told
    assert "generated.anew" in told


def test_a_first_use_in_an_upgrade_may_be_wished_for(tmp_path: Path) -> None:
    with api_server([ACCOUNT], tmp_path) as cluster:
        assert secret_data(render(TRIAL, *cluster, "--is-upgrade"), "codehub-generated").keys() == set(KEPT_NAMES)


def test_without_a_cluster_nothing_is_generated_unless_wished() -> None:
    """Argo CD and `helm template` would make another key each time, and people's secrets would be lost with the one of
    before."""
    without_key = {name: value for name, value in EXTERNAL.items() if name != "secretsKeys"}
    for values in (STORES, without_key):
        told = refusal(values)
        assert "helm does not see the cluster" in told
        assert "secretsKeys.existingSecret" in told
        assert "generated.anew" in told
    assert render(EXTERNAL, "--is-upgrade"), "who has it all is not asked"


def test_nothing_is_generated_where_the_operator_has_it_all() -> None:
    objects = render(EXTERNAL)
    assert {one["metadata"]["name"] for one in of_kind(objects, "Secret")} == {"codehub-settings", "codehub-migration"}


def test_the_notes_tell_of_the_first_admin_and_of_a_trial(tmp_path: Path) -> None:
    trial, real = notes(TRIAL, tmp_path / "trial"), notes(EVERYTHING, tmp_path / "real")
    assert "kubectl --namespace hub exec deployment/codehub-api -- codehub admin first-admin" in real
    assert "https://hub.example.com" in real
    assert "FOR A TRIAL ONLY: archives, postgresql, redis" in trial
    assert "FOR A TRIAL" not in real


def notes(values: dict[str, Any], place: Path) -> str:
    """What an install says at its end. Without a cluster helm does not render it, so a copy of the chart has it as an
    object."""
    shutil.copytree(CHART, place)
    (place / "templates" / "NOTES.txt").rename(place / "notes")
    shown = '{kind: Notes, metadata: {name: notes}, text: {{ tpl (.Files.Get "notes") . | toJson }}}'
    (place / "templates" / "notes.yaml").write_text(shown)
    text: str = named(render(values, chart=place), "Notes", "notes")["text"]
    return text


def test_the_doctor_tests_the_release() -> None:
    pod = named(render(TRIAL), "Pod", "codehub-doctor")
    assert hooks(pod) == {"test"}
    assert pod["spec"]["serviceAccountName"] == "codehub-coordinator", "no account is left over that may more"
    assert pod["spec"]["containers"][0]["command"] == ["codehub", "doctor", "--probe"]
