"""What the API server is asked for, as pure values: a workspace's pod, a claim, a job, secrets, network policies.

All that keeps a workspace in its place is here in one view. A workspace fits Pod Security "restricted": no capability,
no privilege gained, a read-only root, an unprivileged user, no token of the cluster. Where a template gives sudo, the
first three are wider, as in Docker. A storage job is root with five capabilities, which fits "baseline".
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from codehub.adapters.ca_bundle import ca_environment
from codehub.adapters.kubernetes.cluster import Manifest
from codehub.adapters.storage_job import job_arguments
from codehub.agent.bundle import COMMAND as AGENT_COMMAND
from codehub.agent.bundle import PLACE as AGENT_PLACE
from codehub.agent.handshake import AGENT_PORT, KEY_VARIABLE
from codehub.agent.secrets import SECRETS_VARIABLE
from codehub.domain.naming import INSTALL_LABEL, OPERATION_LABEL, WORKSPACE_LABEL, container_name, job_name
from codehub.ports.jobs import JobSpec
from codehub.ports.runtime import ContainerSpec, Resources, StartSecrets

ROLE_LABEL, VOLUME_LABEL, KIND_LABEL = "codehub.role", "codehub.volume", "codehub.job"
WORKSPACE, JOB, PROBE, START_KEY = "workspace", "job", "probe", "start-key"

PORT = 8080
HOME = "/home/coder"
USER = 1000
MAIN, AGENT = "workspace", "agent"
LAUNCH = ("/usr/local/lib/ide/launch",)
"""What an image that is made from codehub-workspace runs."""
GIB, MIB = 1 << 30, 1 << 20
KEY, CA_FILE = "key", "ca-bundle.pem"
CA_PLACE = "/etc/codehub"
OWN_SHARE = Resources(cpu=2.0, memory_bytes=2 * GIB, disk_bytes=10 * GIB)
_JOB_LIMITS = {"cpu": "2", "memory": str(GIB // 2), "ephemeral-storage": str(GIB)}
_JOB_REQUESTS = {"cpu": "100m", "memory": str(128 * MIB)}
_NO_SIDECARS = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
"""What keeps service meshes out of a job's pod, which would not end beside a sidecar that runs on."""
_STAYS_ON_SILENT_NODE = tuple(
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
    for taint in ("unreachable", "not-ready")
)
"""What keeps a job's pod from being evicted off a node that is silent: before Kubernetes 1.23 its Job would start a
second one beside it, while the first may still write."""
_JOB_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP")
"""What it takes to pack and unpack files of any owner, and nothing else of root's."""
_SUDO_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID"),
    *("SETPCAP", "SETUID", "SYS_CHROOT"),
)
"""What sudo and apt need; NET_RAW, which could forge addresses on the network of pods, is not among them."""
GRACE_SECONDS = 15
"""How long a workspace has to end: what Docker gives it, and the moment in which editors save."""
_SCRATCH_BYTES = 4 * GIB
"""What a workspace may write beside its home and its memory: its output, and with sudo its root."""
_CPU_RESERVED, _MEMORY_RESERVED = 0.1, 0.5
"""How much of its limits a workspace is certain of. CPU is shared well, memory is not: a node that has promised too
much of it kills."""
_AGENTS_OWN = {KEY_VARIABLE, SECRETS_VARIABLE}
_PRIVATE = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8", "0.0.0.0/8"),
    *("168.63.129.16/32", "192.0.0.0/24", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
)
_PRIVATE_6 = ("fc00::/7", "fe80::/10", "::1/128", "64:ff9b::/96")
"""What is not the internet: private networks and carriers', link-local with the clouds' metadata, Azure's own service
at a public address (168.63.129.16), loopback, what is reserved or for many, and IPv4 behind IPv6, private or not."""
CODEHUB_LABELS = {"app.kubernetes.io/name": "codehub"}
"""The labels of CodeHub's own pods."""


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """What all pods of an installation have in common. `share`: what a template leaves open. `env`: variables of every
    workspace. `command`: what the runtime's own image runs. `own_namespace`: where CodeHub's own pods are; None if it
    runs outside of the cluster. `ca_bundle`: the operator's and the system's authorities together, as PEM."""

    install_id: str
    workspace_image: str
    codehub_image: str
    share: Resources = OWN_SHARE
    storage_class: str | None = None
    access_mode: str = "ReadWriteOnce"
    pull_secrets: tuple[str, ...] = ()
    pull_policy: str = "IfNotPresent"
    service_account: str | None = None
    reachable: tuple[str, ...] = ()
    own_namespace: str | None = None
    scheduling_seconds: float = 1800.0
    creation_seconds: float = 900.0
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    ca_bundle: bytes = field(default=b"", repr=False)
    command: tuple[str, ...] = LAUNCH

    @property
    def environment(self) -> dict[str, str]:
        return {**self.env, **(ca_environment(f"{CA_PLACE}/{CA_FILE}") if self.ca_bundle else {})}

    @property
    def store_secret(self) -> str:
        return f"codehub-store-{self.install_id[:12]}"

    @property
    def ca_secret(self) -> str:
        return f"codehub-ca-{self.install_id[:12]}"


def ours(site: KubernetesSite, role: str | None = None) -> str:
    """The selector of what is this installation's, or of one role alone."""
    return f"{INSTALL_LABEL}={site.install_id}" + (f",{ROLE_LABEL}={role}" if role else "")


def labels(site: KubernetesSite, workspace_id: UUID, role: str) -> dict[str, str]:
    return {INSTALL_LABEL: site.install_id, WORKSPACE_LABEL: str(workspace_id), ROLE_LABEL: role}


def claim(
    site: KubernetesSite, workspace_id: UUID, name: str, disk_bytes: int | None, storage_class: str | None = None
) -> Manifest:
    own = {INSTALL_LABEL: site.install_id, WORKSPACE_LABEL: str(workspace_id), VOLUME_LABEL: name}
    size = disk_bytes or site.share.disk_bytes or OWN_SHARE.disk_bytes
    spec: Manifest = {"accessModes": [site.access_mode], "resources": {"requests": {"storage": str(size)}}}
    if chosen := storage_class or site.storage_class:
        spec["storageClassName"] = chosen
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": _named(name, own), "spec": spec}


def start_secret(site: KubernetesSite, workspace_id: UUID, name: str, key: bytes) -> Manifest:
    """The key of one start, by which the agent inside and CodeHub prove themselves to each other."""
    own = labels(site, workspace_id, START_KEY)
    return {**_secret(name, own, {KEY: key.hex().encode()}), "immutable": True}


def owned_by(pod: Manifest) -> Manifest:
    """The change by which a secret belongs to the pod, and goes with it."""
    told = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": told["name"], "uid": told["uid"]}
    return {"metadata": {"ownerReferences": [owner]}}


def shared_secret(site: KubernetesSite, name: str, content: Mapping[str, bytes]) -> Manifest:
    """A secret of the whole installation: the object store's credentials, or the authorities that workspaces trust."""
    return _secret(name, {INSTALL_LABEL: site.install_id}, content)


def _secret(name: str, own: Mapping[str, str], content: Mapping[str, bytes]) -> Manifest:
    data = {key: base64.b64encode(value).decode() for key, value in sorted(content.items())}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": _named(name, own),
        "data": data,
    }


def workspace(site: KubernetesSite, spec: ContainerSpec, secret: str) -> Manifest:
    """The pod of a workspace. `secret`: the name of the one with this start's key."""
    manifest = _confined(site, spec, container_name(spec.workspace_id), WORKSPACE)
    main = manifest["spec"]["containers"][0]
    main["command"] = _words([*AGENT_COMMAND, *(spec.kubernetes.command or site.command)])
    main["ports"] = [{"containerPort": AGENT_PORT, "name": "agent", "protocol": "TCP"}]
    if spec.secrets != StartSecrets():
        main["env"].append({"name": SECRETS_VARIABLE, "value": "awaited"})
    reference = {"secretKeyRef": {"name": secret, "key": KEY}}
    main["env"].append({"name": KEY_VARIABLE, "valueFrom": reference})
    return manifest


def secret_of(pod: Manifest) -> str | None:
    """The name of the secret that holds the key of the pod's start."""
    for variable in _main(pod).get("env") or ():
        if variable["name"] == KEY_VARIABLE:
            return str(((variable.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name", "")) or None
    return None


def awaits_secrets(pod: Manifest) -> bool:
    """Whether the agent in the pod was told to wait for the secrets of its start."""
    return any(variable["name"] == SECRETS_VARIABLE for variable in _main(pod).get("env") or ())


def _main(pod: Manifest) -> Manifest:
    return next((one for one in pod["spec"]["containers"] if one["name"] == MAIN), {})


def probe(
    site: KubernetesSite, spec: ContainerSpec, name: str, argv: Sequence[str], node: str | None = None
) -> Manifest:
    """The pod of a command that is confined exactly as the workspace's IDE is. `node`: where the home is in use."""
    manifest = _confined(site, spec, name, PROBE)
    manifest["spec"]["containers"][0]["command"] = _words(argv)
    if node is not None:
        manifest["spec"]["nodeName"] = node
    return manifest


def _confined(site: KubernetesSite, spec: ContainerSpec, name: str, role: str) -> Manifest:
    options = spec.kubernetes
    given = site.environment | dict(spec.env)
    env = {key: value for key, value in given.items() if key not in _AGENTS_OWN} | {"HOME": HOME}
    share = spec.share.filled(site.share)
    brings_agent = options.command is not None
    container: Manifest = {
        "name": MAIN,
        "image": spec.image_ref or site.workspace_image,
        "imagePullPolicy": site.pull_policy,
        "workingDir": HOME,
        "env": [{"name": key, "value": _literal(value)} for key, value in sorted(env.items())],
        "resources": _resources(share),
        "securityContext": _security(sudo=spec.sudo),
        "volumeMounts": _mounts(site, brings_agent=brings_agent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    body: Manifest = {
        **_pod(site, [*site.pull_secrets, *options.pull_secrets]),
        "hostname": "workspace",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": _volumes(site, spec, share.memory_bytes or 2 * GIB, brings_agent=brings_agent),
    }
    if brings_agent:
        body["initContainers"] = [_agent_copy(site)]
    own = {**labels(site, spec.workspace_id, role), VOLUME_LABEL: spec.volume}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _named(name, own), "spec": body | _placed(spec)}


def _placed(spec: ContainerSpec) -> Manifest:
    """What a template says about the nodes that its pods run on."""
    options = spec.kubernetes
    found: Manifest = {
        "nodeSelector": dict(options.node_selector),
        "tolerations": [dict(one) for one in options.tolerations],
        "runtimeClassName": options.runtime_class,
        "priorityClassName": options.priority_class,
    }
    return {key: value for key, value in found.items() if value}


def _pod(site: KubernetesSite, pull_secrets: Sequence[str]) -> Manifest:
    found: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    if pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(pull_secrets)]
    if site.service_account:
        found["serviceAccountName"] = site.service_account
    return found


def _resources(share: Resources) -> Manifest:
    limits, requests = {"ephemeral-storage": str(_SCRATCH_BYTES)}, {"ephemeral-storage": str(64 * MIB)}
    if share.cpu is not None:
        limits["cpu"], requests["cpu"] = _cores(share.cpu), _cores(share.cpu * _CPU_RESERVED)
    if share.memory_bytes is not None:
        limits["memory"] = str(share.memory_bytes)
        requests["memory"] = str(round(share.memory_bytes * _MEMORY_RESERVED))
    return {"limits": limits, "requests": requests}


def _cores(number: float) -> str:
    return f"{max(1, round(number * 1000))}m"


def _security(*, sudo: bool) -> Manifest:
    capabilities: Manifest = {"drop": ["ALL"]}
    if sudo:
        capabilities["add"] = list(_SUDO_CAPABILITIES)
    return {
        "allowPrivilegeEscalation": sudo,
        "capabilities": capabilities,
        "privileged": False,
        "readOnlyRootFilesystem": not sudo,
    }


def _mounts(site: KubernetesSite, *, brings_agent: bool) -> list[Manifest]:
    scratch = [{"name": "scratch", "mountPath": f"/{path}", "subPath": path} for path in ("tmp", "run")]
    found: list[Manifest] = [{"name": "home", "mountPath": HOME}, *scratch]
    found.append({"name": "scratch", "mountPath": "/var/tmp", "subPath": "var-tmp"})  # noqa: S108 - inside
    if brings_agent:
        found.append({"name": AGENT, "mountPath": AGENT_PLACE, "readOnly": True})
    if site.ca_bundle:
        found.append({"name": "authorities", "mountPath": CA_PLACE, "readOnly": True})
    return found


def _volumes(site: KubernetesSite, spec: ContainerSpec, memory: int, *, brings_agent: bool) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "home", "persistentVolumeClaim": {"claimName": spec.volume}},
        {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": str(memory // 2)}},
    ]
    if brings_agent:
        found.append({"name": AGENT, "emptyDir": {"sizeLimit": str(256 * MIB)}})
    if site.ca_bundle:
        found.append({"name": "authorities", "secret": {"secretName": site.ca_secret}})
    return found


def _agent_copy(site: KubernetesSite) -> Manifest:
    """Copies the agent out of CodeHub's own image, for an image that does not have it."""
    script = f"cp -a {AGENT_PLACE}/bin {AGENT_PLACE}/lib /agent/"
    limits = {"cpu": "1", "memory": str(128 * MIB), "ephemeral-storage": str(256 * MIB)}
    return {
        "name": AGENT,
        "image": site.codehub_image,
        "imagePullPolicy": site.pull_policy,
        "command": _words(["sh", "-c", script]),
        "resources": {"limits": limits, "requests": {"cpu": "50m", "memory": str(32 * MIB)}},
        "securityContext": _security(sudo=False),
        "volumeMounts": [{"name": AGENT, "mountPath": "/agent"}],
    }


def job(
    site: KubernetesSite, spec: JobSpec, program: Sequence[str], store_url: str, *, volume_is_there: bool
) -> Manifest:
    """The Job of a storage job. Without its volume it runs all the same, and says what it did not find."""
    place = HOME if volume_is_there else f"/volumes/{spec.volume}"
    own = labels(site, spec.workspace_id, JOB)
    own |= {OPERATION_LABEL: str(spec.op_id), KIND_LABEL: spec.kind.value, VOLUME_LABEL: spec.volume}
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 * MIB)}}]
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - inside the container
    if volume_is_there:
        volumes.append({"name": "home", "persistentVolumeClaim": {"claimName": spec.volume}})
        mounts.append({"name": "home", "mountPath": HOME})
    container: Manifest = {
        "name": JOB,
        "image": site.codehub_image,
        "imagePullPolicy": site.pull_policy,
        "workingDir": "/",
        "command": _words([*program, *job_arguments(spec, place, store_url)]),
        "envFrom": [{"secretRef": {"name": site.store_secret}}],
        "resources": {"limits": dict(_JOB_LIMITS), "requests": dict(_JOB_REQUESTS)},
        "securityContext": {
            **_security(sudo=False),
            "capabilities": {"drop": ["ALL"], "add": list(_JOB_CAPABILITIES)},
        },
        "volumeMounts": mounts,
    }
    body: Manifest = {
        **_pod(site, site.pull_secrets),
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
        "tolerations": [dict(one) for one in (*_STAYS_ON_SILENT_NODE, *spec.kubernetes.tolerations)],
    }
    if spec.kubernetes.node_selector:
        body["nodeSelector"] = dict(spec.kubernetes.node_selector)
    template = {"metadata": {"labels": own, "annotations": dict(_NO_SIDECARS)}, "spec": body}
    work = {"backoffLimit": 0, "parallelism": 1, "completions": 1, "template": template}
    told = _named(job_name(spec.workspace_id), own)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": told, "spec": work}


def network_policies(site: KubernetesSite) -> list[Manifest]:
    """What workspaces and jobs may speak to. A workspace hears CodeHub alone, at its agent's port, and reaches names
    and the internet; a job hears nobody, and reaches the object store wherever that is."""
    policies: list[tuple[str, list[Manifest], list[Manifest]]] = [
        (WORKSPACE, [_from_codehub(site)], [_names(), *_outside(site)]),
        (PROBE, [], [_names(), *_outside(site)]),
        (JOB, [], [{}]),
    ]
    return [_policy(site, role, ingress, egress) for role, ingress, egress in policies]


def _policy(site: KubernetesSite, role: str, ingress: list[Manifest], egress: list[Manifest]) -> Manifest:
    """One policy. Its name tells what it says, so that the next can be made before the last is removed."""
    spec: Manifest = {
        "podSelector": {"matchLabels": {INSTALL_LABEL: site.install_id, ROLE_LABEL: role}},
        "policyTypes": ["Ingress", "Egress"],
        **({"ingress": ingress} if ingress else {}),
        **({"egress": egress} if egress else {}),
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    name = f"codehub-{role}-{site.install_id[:12]}-{digest}"
    own = {INSTALL_LABEL: site.install_id}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _named(name, own),
        "spec": spec,
    }


def _from_codehub(site: KubernetesSite) -> Manifest:
    ports = [{"protocol": "TCP", "port": AGENT_PORT}]
    if site.own_namespace is None:
        return {"ports": ports}
    own = {"podSelector": {"matchLabels": dict(CODEHUB_LABELS)}}
    there = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": site.own_namespace}}, **own}
    return {"from": [own, there], "ports": ports}


def _names() -> Manifest:
    return {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}


def _outside(site: KubernetesSite) -> list[Manifest]:
    blocks = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(_PRIVATE)}},
        {"ipBlock": {"cidr": "::/0", "except": list(_PRIVATE_6)}},
    ]
    return [{"to": blocks}, *map(_reachable, site.reachable)]


def _reachable(named: str) -> Manifest:
    """A network, or an address with its TCP port, that workspaces may reach although it is private."""
    host, colon, port = named.partition(":")
    if not colon:
        return {"to": [{"ipBlock": {"cidr": host if "/" in host else f"{host}/32"}}]}
    return {"to": [{"ipBlock": {"cidr": f"{host}/32"}}], "ports": [{"protocol": "TCP", "port": int(port)}]}


def _literal(text: str) -> str:
    """The text as Kubernetes must be given it: it expands `$(NAME)`, and takes `$$` for a dollar."""
    return text.replace("$", "$$")


def _words(command: Sequence[str]) -> list[str]:
    return [_literal(word) for word in command]


def _named(name: str, own: Mapping[str, str]) -> Manifest:
    return {"name": name, "labels": dict(own)}


def differs(wanted: Any, found: Any) -> bool:  # noqa: ANN401 - any part of a manifest
    """Whether something of what is wanted is otherwise in what was found. The server adds defaults of its own, which
    do not count, but no members to a list."""
    if isinstance(wanted, Mapping):
        return not isinstance(found, Mapping) or any(differs(part, found.get(key)) for key, part in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return True
        return any(differs(one, other) for one, other in zip(wanted, found, strict=True))
    return bool(wanted != found)
