"""What the API server is asked for, whole and by equality: a restriction that is left out shows here first."""

from dataclasses import replace
from uuid import UUID

from codehub.adapters.kubernetes.manifests import (
    KubernetesSite,
    awaits_secrets,
    claim,
    differs,
    job,
    network_policies,
    owned_by,
    probe,
    secret_of,
    shared_secret,
    start_secret,
    workspace,
)
from codehub.agent.bundle import COMMAND
from codehub.domain.template import KubernetesOptions
from codehub.ports.jobs import JobKind, JobSpec, StoreOwner
from codehub.ports.runtime import ContainerSpec, Resources, StartSecrets

KEY, OP = UUID("11111111-2222-3333-4444-555555555555"), UUID("99999999-8888-7777-6666-555555555555")
SITE = KubernetesSite("here", "ide:1", "codehub:1")
GIB, MIB = 1 << 30, 1 << 20
OWN = {"codehub.install": "here", "codehub.workspace": str(KEY)}
SPEC = ContainerSpec(KEY, "ws-home", "")
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
}
SECCOMP = {"type": "RuntimeDefault"}


def test_a_workspace() -> None:
    spec = ContainerSpec(KEY, "ws-home", "team/ide:2", {"A": "1"}, Resources(cpu=0.5, memory_bytes=GIB))
    assert workspace(SITE, spec, "ws-start-1") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"ws-{KEY}",
            "labels": {**OWN, "codehub.role": "workspace", "codehub.volume": "ws-home"},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "workspace",
            "terminationGracePeriodSeconds": 15,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": SECCOMP,
            },
            "containers": [
                {
                    "name": "workspace",
                    "image": "team/ide:2",
                    "imagePullPolicy": "IfNotPresent",
                    "workingDir": "/home/coder",
                    "command": [*COMMAND, "/usr/local/lib/ide/launch"],
                    "ports": [{"containerPort": 61079, "name": "agent", "protocol": "TCP"}],
                    "env": [
                        {"name": "A", "value": "1"},
                        {"name": "HOME", "value": "/home/coder"},
                        {
                            "name": "CODEHUB_AGENT_KEY",
                            "valueFrom": {"secretKeyRef": {"name": "ws-start-1", "key": "key"}},
                        },
                    ],
                    "resources": {
                        "limits": {"ephemeral-storage": str(4 * GIB), "cpu": "500m", "memory": str(GIB)},
                        "requests": {"ephemeral-storage": str(64 * MIB), "cpu": "50m", "memory": str(GIB // 2)},
                    },
                    "securityContext": CONFINED,
                    "volumeMounts": [
                        {"name": "home", "mountPath": "/home/coder"},
                        {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
                        {"name": "scratch", "mountPath": "/run", "subPath": "run"},
                        {"name": "scratch", "mountPath": "/var/tmp", "subPath": "var-tmp"},
                    ],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }
            ],
            "volumes": [
                {"name": "home", "persistentVolumeClaim": {"claimName": "ws-home"}},
                {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": str(GIB // 2)}},
            ],
        },
    }


def test_a_workspace_knows_its_secret_and_whether_it_waits_for_more() -> None:
    plain = workspace(SITE, SPEC, "ws-start-1")
    assert secret_of(plain) == "ws-start-1"
    assert not awaits_secrets(plain)
    assert awaits_secrets(workspace(SITE, replace(SPEC, secrets=StartSecrets(env={"TOKEN": "x"})), "ws-start-1"))
    assert "hunter2" not in str(workspace(SITE, replace(SPEC, secrets=StartSecrets(env={"T": "hunter2"})), "s"))
    assert secret_of(probe(SITE, SPEC, "p", ["true"])) is None


def test_nobody_sets_the_agent_s_own_variables() -> None:
    made = workspace(
        SITE, replace(SPEC, env={"CODEHUB_AGENT_KEY": "mine", "CODEHUB_AGENT_SECRETS": "no"}), "ws-start-1"
    )
    given = made["spec"]["containers"][0]["env"]
    assert [one["name"] for one in given] == ["HOME", "CODEHUB_AGENT_KEY"]
    assert "value" not in given[-1]


def test_sudo_is_as_wide_as_in_docker_and_no_wider() -> None:
    made = workspace(SITE, replace(SPEC, sudo=True), "s")["spec"]
    assert made["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": True,
        "capabilities": {
            "drop": ["ALL"],
            "add": [
                *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP"),
                *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
            ],
        },
        "privileged": False,
        "readOnlyRootFilesystem": False,
    }
    assert made["securityContext"] == workspace(SITE, SPEC, "s")["spec"]["securityContext"]


def test_an_image_that_names_its_command_is_given_the_agent() -> None:
    options = KubernetesOptions(command=("/bin/serve", "--here"))
    made = workspace(SITE, replace(SPEC, image_ref="other:1", kubernetes=options), "s")["spec"]
    assert made["containers"][0]["command"] == [*COMMAND, "/bin/serve", "--here"]
    assert {"name": "agent", "mountPath": "/usr/local/lib/codehub-agent", "readOnly": True} in made["containers"][0][
        "volumeMounts"
    ]
    assert made["initContainers"] == [
        {
            "name": "agent",
            "image": "codehub:1",
            "imagePullPolicy": "IfNotPresent",
            "command": [
                *("sh", "-c"),
                "cp -a /usr/local/lib/codehub-agent/bin /usr/local/lib/codehub-agent/lib /agent/",
            ],
            "resources": {
                "limits": {"cpu": "1", "memory": str(128 * MIB), "ephemeral-storage": str(256 * MIB)},
                "requests": {"cpu": "50m", "memory": str(32 * MIB)},
            },
            "securityContext": CONFINED,
            "volumeMounts": [{"name": "agent", "mountPath": "/agent"}],
        }
    ]
    assert {"name": "agent", "emptyDir": {"sizeLimit": str(256 * MIB)}} in made["volumes"]


def test_a_dollar_is_a_dollar() -> None:
    """Kubernetes would put the value of a variable for `$(NAME)`, and `$` for `$$`."""
    options = KubernetesOptions(command=("serve", "$(HOME)"))
    made = workspace(SITE, replace(SPEC, env={"A": "$(HOME) $$ $1"}, kubernetes=options), "s")["spec"]["containers"][0]
    assert made["command"] == [*COMMAND, "serve", "$$(HOME)"]
    assert {"name": "A", "value": "$$(HOME) $$$$ $$1"} in made["env"]
    assert probe(SITE, SPEC, "p", ["echo", "$(A)"])["spec"]["containers"][0]["command"] == ["echo", "$$(A)"]
    spec = JobSpec(KEY, OP, JobKind.ARCHIVE, "ws-home", "$(KEY)")
    done = job(SITE, spec, ["$p"], "s3://homes", volume_is_there=True)["spec"]["template"]["spec"]["containers"][0]
    assert done["command"][0] == "$$p"
    assert "$$(KEY)" in done["command"]


def test_a_template_says_where_its_pods_run() -> None:
    options = KubernetesOptions(
        node_selector={"pool": "ides"},
        tolerations=({"key": "ides", "operator": "Exists"},),
        runtime_class="gvisor",
        priority_class="low",
        pull_secrets=("theirs",),
    )
    site = replace(SITE, pull_secrets=("ours",), service_account="codehub-workspace")
    made = workspace(site, replace(SPEC, kubernetes=options), "s")["spec"]
    wanted = {
        "nodeSelector": {"pool": "ides"},
        "tolerations": [{"key": "ides", "operator": "Exists"}],
        "runtimeClassName": "gvisor",
        "priorityClassName": "low",
        "imagePullSecrets": [{"name": "ours"}, {"name": "theirs"}],
        "serviceAccountName": "codehub-workspace",
    }
    assert {name: made[name] for name in wanted} == wanted


def test_authorities_are_a_file_that_every_program_is_told_of() -> None:
    made = workspace(replace(SITE, ca_bundle=b"PEM"), SPEC, "s")["spec"]
    env = {one["name"]: one.get("value") for one in made["containers"][0]["env"]}
    assert env["GIT_SSL_CAINFO"] == env["SSL_CERT_FILE"] == "/etc/codehub/ca-bundle.pem"
    assert {"name": "authorities", "secret": {"secretName": "codehub-ca-here"}} in made["volumes"]


def test_a_claim() -> None:
    assert claim(replace(SITE, storage_class="fast"), KEY, "ws-home", 5 * GIB) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "ws-home", "labels": {**OWN, "codehub.volume": "ws-home"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(5 * GIB)}},
            "storageClassName": "fast",
        },
    }
    usual = claim(SITE, KEY, "ws-home", None)["spec"]
    assert usual == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(10 * GIB)}}}
    assert claim(replace(SITE, storage_class="fast"), KEY, "v", None, "theirs")["spec"]["storageClassName"] == "theirs"


def test_the_key_of_a_start_is_a_secret_that_goes_with_its_pod() -> None:
    assert start_secret(SITE, KEY, "ws-start-1", b"\x01\x02") == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {"name": "ws-start-1", "labels": {**OWN, "codehub.role": "start-key"}},
        "data": {"key": "MDEwMg=="},
    }
    assert owned_by({"metadata": {"name": "ws-1", "uid": "u-1"}}) == {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "ws-1", "uid": "u-1"}]}
    }
    assert shared_secret(SITE, "codehub-store-here", {"B": b"2", "A": b"1"}) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": "codehub-store-here", "labels": {"codehub.install": "here"}},
        "data": {"A": "MQ==", "B": "Mg=="},
    }


def test_a_job() -> None:
    spec = JobSpec(KEY, OP, JobKind.ARCHIVE, "ws-home", "k/home.tar.zst", StoreOwner("codehub-owner", "here"))
    own = {
        **OWN,
        "codehub.role": "job",
        "codehub.operation": str(OP),
        "codehub.job": "archive",
        "codehub.volume": "ws-home",
    }
    made = job(SITE, spec, ["python", "-m", "job"], "s3://homes", volume_is_there=True)
    arguments = ["archive", "--volume", "/home/coder", "--store", "s3://homes", "--key", "k/home.tar.zst"]
    assert made == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"ws-{KEY}-job", "labels": own},
        "spec": {
            "backoffLimit": 0,
            "parallelism": 1,
            "completions": 1,
            "template": {
                "metadata": {
                    "labels": own,
                    "annotations": {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"},
                },
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": SECCOMP},
                    "tolerations": [
                        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
                        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                    ],
                    "containers": [
                        {
                            "name": "job",
                            "image": "codehub:1",
                            "imagePullPolicy": "IfNotPresent",
                            "workingDir": "/",
                            "command": ["python", "-m", "job", *arguments, "--owner", "codehub-owner", "here"],
                            "envFrom": [{"secretRef": {"name": "codehub-store-here"}}],
                            "resources": {
                                "limits": {"cpu": "2", "memory": str(GIB // 2), "ephemeral-storage": str(GIB)},
                                "requests": {"cpu": "100m", "memory": str(128 * MIB)},
                            },
                            "securityContext": {
                                **CONFINED,
                                "capabilities": {
                                    "drop": ["ALL"],
                                    "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"],
                                },
                            },
                            "volumeMounts": [
                                {"name": "tmp", "mountPath": "/tmp"},
                                {"name": "home", "mountPath": "/home/coder"},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 * MIB)}},
                        {"name": "home", "persistentVolumeClaim": {"claimName": "ws-home"}},
                    ],
                },
            },
        },
    }
    without = job(SITE, spec, ["python"], "s3://homes", volume_is_there=False)["spec"]["template"]["spec"]
    assert [one["name"] for one in without["volumes"]] == ["tmp"]
    assert "/volumes/ws-home" in without["containers"][0]["command"]


def test_a_job_runs_where_its_template_s_pods_do() -> None:
    tolerated = {"key": "ides", "operator": "Exists"}
    options = KubernetesOptions(node_selector={"pool": "ides"}, tolerations=(tolerated,), command=("serve",))
    spec = JobSpec(KEY, OP, JobKind.RESTORE, "ws-home", "k", kubernetes=options)
    made = job(SITE, spec, ["python"], "s3://homes", volume_is_there=True)["spec"]["template"]["spec"]
    assert made["nodeSelector"] == {"pool": "ides"}
    assert tolerated in made["tolerations"]
    assert made["containers"][0]["command"][0] == "python"


def test_the_policies_around_workspaces_and_jobs() -> None:
    site = replace(SITE, reachable=("10.1.0.0/16", "192.168.1.10:3000"), own_namespace="codehub")
    around = {one["metadata"]["name"].rpartition("-")[0]: one["spec"] for one in network_policies(site)}
    outside = [
        {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
        {
            "to": [
                {
                    "ipBlock": {
                        "cidr": "0.0.0.0/0",
                        "except": [
                            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
                            *("127.0.0.0/8", "0.0.0.0/8", "168.63.129.16/32", "192.0.0.0/24", "198.18.0.0/15"),
                            *("224.0.0.0/4", "240.0.0.0/4"),
                        ],
                    }
                },
                {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10", "::1/128", "64:ff9b::/96"]}},
            ]
        },
        {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
        {"to": [{"ipBlock": {"cidr": "192.168.1.10/32"}}], "ports": [{"protocol": "TCP", "port": 3000}]},
    ]
    codehub = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "codehub"}}}
    there = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "codehub"}}, **codehub}
    both = ["Ingress", "Egress"]
    assert around == {
        "codehub-workspace-here": {
            "podSelector": {"matchLabels": {"codehub.install": "here", "codehub.role": "workspace"}},
            "policyTypes": both,
            "ingress": [{"from": [codehub, there], "ports": [{"protocol": "TCP", "port": 61079}]}],
            "egress": outside,
        },
        "codehub-probe-here": {
            "podSelector": {"matchLabels": {"codehub.install": "here", "codehub.role": "probe"}},
            "policyTypes": both,
            "egress": outside,
        },
        "codehub-job-here": {
            "podSelector": {"matchLabels": {"codehub.install": "here", "codehub.role": "job"}},
            "policyTypes": both,
            "egress": [{}],
        },
    }
    from_everywhere = network_policies(SITE)[0]["spec"]["ingress"]
    assert from_everywhere == [{"ports": [{"protocol": "TCP", "port": 61079}]}]


def test_a_policy_that_is_otherwise_has_another_name() -> None:
    names = [one["metadata"]["name"] for one in network_policies(SITE)]
    assert names == [one["metadata"]["name"] for one in network_policies(SITE)]
    others = [one["metadata"]["name"] for one in network_policies(replace(SITE, reachable=("10.1.0.0/16",)))]
    assert [name == other for name, other in zip(names, others, strict=True)] == [False, False, True]
    assert all(len(name) <= 63 for name in names)


def test_what_the_server_adds_is_no_difference_and_what_others_change_is() -> None:
    wanted = {"a": 1, "b": [{"c": 2}]}
    assert not differs(wanted, {"a": 1, "b": [{"c": 2, "added": True}], "d": 4})
    assert differs(wanted, {"a": 1, "b": [{"c": 2}, {}]})
    assert differs(wanted, {"a": 1, "b": [{"c": 3}]})
    assert differs(wanted, {"b": [{"c": 2}]})
    assert differs(wanted, None)
