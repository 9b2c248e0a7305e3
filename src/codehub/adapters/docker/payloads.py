"""What the engine is asked for, as pure values: a workspace's container, a job's, a volume, the network.

All that keeps a workspace in its place is here in one view: no capability, no new privileges, a read-only root, the
engine's own seccomp profile, an unprivileged user, and a share of the machine. Where a template gives sudo, the first
three are wider: root of the container, who owns nothing outside of it.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from codehub.adapters.ca_bundle import DEBIAN, ca_environment
from codehub.adapters.storage_job import job_arguments
from codehub.agent.bundle import COMMAND as AGENT_COMMAND
from codehub.agent.bundle import PLACE as AGENT_PLACE
from codehub.agent.handshake import AGENT_PORT, KEY_VARIABLE
from codehub.agent.secrets import AGENT_DIRECTORY, SECRETS_VARIABLE
from codehub.domain.naming import INSTALL_LABEL, OPERATION_LABEL, WORKSPACE_LABEL
from codehub.ports.jobs import JobSpec
from codehub.ports.runtime import ContainerSpec, Resources, StartSecrets

Payload = dict[str, Any]

VOLUME_LABEL = "codehub.volume"
KIND_LABEL = "codehub.job"
ROLE_LABEL = "codehub.role"
MARK_LABEL = "codehub.mark"
"""Tells this very volume from any other of its name, for as long as it lives."""
SPEC_LABEL = "codehub.spec"
STRAY_LABEL = "codehub.stray"
"""On a volume that the engine made by itself, because the one that a container names had just gone."""

WORKSPACE, JOB, PROBE, MONITOR, TRIAL = "workspace", "job", "probe", "isolation-monitor", "trial"
FIREWALL = "walls"  # as the first versions labelled these helpers, which an upgrade may find as orphans
AGENT, DISK = "agent", "disk-usage"

HOME = "/home/coder"
AGENT_NEW = "/mnt"
CA_OWN, CA_BUNDLE = "ca-own.pem", "ca-bundle.pem"
"""Files of the agent's volume: the operator's authorities, and those with Debian's."""
VOLUMES = "/volumes"
PORT = 8080
USER = "1000:1000"
GIB, MIB = 1 << 30, 1 << 20
_SOCKETS = {AGENT_DIRECTORY: f"rw,nosuid,nodev,mode=0700,uid=1000,gid=1000,size={MIB}"}
"""Where the agent's script has its sockets: `/run` itself has the image's permissions, in which only root writes."""
OWN_SHARE = Resources(cpu=2.0, memory_bytes=2 * GIB, pids=512)
_JOB_SHARE = Resources(cpu=2.0, memory_bytes=GIB // 2, pids=64)
_JOB_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP")
"""What it takes to pack and unpack files of any owner, and nothing else of root's."""
_SUDO_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID"),
    *("SETPCAP", "SETUID", "SYS_CHROOT"),
)
"""What sudo and apt need. Of the engine's own set MKNOD and NET_RAW are left out: the latter could forge addresses on
the network of workspaces."""
_LOGS = {"Type": "json-file", "Config": {"max-size": "5m", "max-file": "2"}}
_DIES_FIRST = 500
_AGENTS_OWN = {KEY_VARIABLE, SECRETS_VARIABLE}


@dataclass(frozen=True, slots=True)
class DockerSite:
    """What all containers of an installation have in common. `share`: what a template leaves open. `env`: variables of
    every workspace. `ca_bundle`: the operator's own authorities, as PEM."""

    install_id: str
    workspace_image: str
    codehub_image: str
    network: str
    share: Resources = OWN_SHARE
    job_network: str = "host"
    reachable: tuple[str, ...] = field(default=())
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    ca_bundle: bytes = field(default=b"", repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.env, **(ca_environment(f"{AGENT_PLACE}/{CA_BUNDLE}") if self.ca_bundle else {})}

    @property
    def bridge(self) -> str:
        """The network's interface on the engine's machine: at most 15 characters, and the same whenever it is made."""
        return "ch-" + hashlib.sha256(self.network.encode()).hexdigest()[:10]


def labels(site: DockerSite, workspace_id: UUID, role: str) -> dict[str, str]:
    return {INSTALL_LABEL: site.install_id, WORKSPACE_LABEL: str(workspace_id), ROLE_LABEL: role}


def volume(site: DockerSite, workspace_id: UUID, name: str, mark: str, disk_bytes: int | None = None) -> Payload:
    own = {INSTALL_LABEL: site.install_id, WORKSPACE_LABEL: str(workspace_id), MARK_LABEL: mark}
    return {"Name": name, "Driver": "local", "Labels": own} | of_size(disk_bytes or site.share.disk_bytes)


def of_size(disk_bytes: int | None) -> Payload:
    """The options of a volume of that size: what the engine's own driver calls its project quota."""
    return {"DriverOpts": {"size": str(disk_bytes)}} if disk_bytes else {}


def trial_volume(install_id: str, name: str) -> Payload:
    """A volume that is made to find out whether the engine can hold a volume to a size."""
    own = {INSTALL_LABEL: install_id, ROLE_LABEL: TRIAL}
    return {"Name": name, "Driver": "local", "Labels": own} | of_size(MIB)


def network(site: DockerSite) -> Payload:
    return {
        "Name": site.network,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "EnableIPv6": False,
        "Labels": {INSTALL_LABEL: site.install_id},
        "Options": {
            "com.docker.network.bridge.name": site.bridge,
            "com.docker.network.bridge.enable_icc": "false",
        },
    }


def agent_volume_name(site: DockerSite, image_id: str) -> str:
    """The name of the agent's volume: another image, or other authorities, have another."""
    authorities = f"-{hashlib.sha256(site.ca_bundle).hexdigest()[:8]}" if site.ca_bundle else ""
    return f"codehub-agent-{site.install_id[:12]}-{image_id.removeprefix('sha256:')[:12]}{authorities}"


def agent_volume(site: DockerSite, name: str) -> Payload:
    return {"Name": name, "Driver": "local", "Labels": {INSTALL_LABEL: site.install_id, ROLE_LABEL: AGENT}}


_FILL = f"""\
cd {AGENT_NEW} && flock .lock sh -c '
    [ -e .complete ] || {{
        rm -rf bin lib && cp -a {AGENT_PLACE}/bin {AGENT_PLACE}/lib . &&
        {{ [ ! -e {CA_OWN} ] || cat {DEBIAN} {CA_OWN} > {CA_BUNDLE}; }} && : > .complete
    }}
'
"""
"""The script that fills the agent's volume. Whoever is killed on the way leaves it incomplete, and the next begins
anew; two at once wait for each other."""


def agent_filling(site: DockerSite, name: str) -> Payload:
    mount = {"Type": "volume", "Source": name, "Target": AGENT_NEW, "VolumeOptions": {"NoCopy": True}}
    return _helper(site, AGENT, _FILL, {"NetworkMode": "none", "Mounts": [mount]})


def agent_files(site: DockerSite) -> bytes | None:
    """What the agent's volume holds besides what is in CodeHub's image, as a tar; None for nothing."""
    if not site.ca_bundle:
        return None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(CA_OWN)
        entry.size, entry.mode = len(site.ca_bundle), 0o644
        archive.addfile(entry, io.BytesIO(site.ca_bundle))
    return packed.getvalue()


@dataclass(frozen=True, slots=True)
class Launch:
    """How a workspace's container begins. `command`: its image's own, which the agent runs. `agent`: the volume that
    the agent is in. `key`: of this start alone; it is not part of what tells one specification from another."""

    command: Sequence[str]
    agent: str
    key: bytes = field(repr=False)


def workspace(site: DockerSite, spec: ContainerSpec, launch: Launch) -> Payload:
    payload = _confined(site, spec, WORKSPACE, launch.agent)
    payload["Entrypoint"] = [*AGENT_COMMAND, *launch.command]
    payload["Cmd"] = []
    payload["ExposedPorts"] = {f"{AGENT_PORT}/tcp": {}}
    if spec.secrets != StartSecrets():
        payload["Env"].append(f"{SECRETS_VARIABLE}=awaited")
    payload["Labels"][SPEC_LABEL] = digest(payload)
    payload["Env"].append(f"{KEY_VARIABLE}={launch.key.hex()}")
    return payload


def key_of(env: Sequence[str]) -> bytes | None:
    """The start's key in a container's own description; None in one that was started before there were agents."""
    found = [value for name, _, value in (line.partition("=") for line in env) if name == KEY_VARIABLE]
    return bytes.fromhex(found[-1]) if found else None


def probe(site: DockerSite, spec: ContainerSpec, argv: Sequence[str], agent: str) -> Payload:
    """The container of a command that is confined exactly as the workspace's IDE is."""
    payload = _confined(site, spec, PROBE, agent)
    return {**payload, "Entrypoint": list(argv[:1]), "Cmd": list(argv[1:])}


def _confined(site: DockerSite, spec: ContainerSpec, role: str, agent: str) -> Payload:
    share = spec.share.filled(site.share)
    memory = share.memory_bytes or 2 * GIB
    given = site.environment | dict(spec.env)
    env = {name: value for name, value in given.items() if name not in _AGENTS_OWN} | {"HOME": HOME}
    scratch = f"rw,nosuid,nodev,mode=1777,size={memory // 2}"
    return {
        "Image": spec.image_ref or site.workspace_image,
        "Hostname": "workspace",
        "User": USER,
        "WorkingDir": HOME,
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        "Labels": {**labels(site, spec.workspace_id, role), VOLUME_LABEL: spec.volume},
        "HostConfig": {
            "NetworkMode": site.network,
            "Mounts": [_home(spec.volume), _agent(agent)],
            "Tmpfs": {"/tmp": scratch, "/var/tmp": scratch, "/run": scratch, **_SOCKETS},  # noqa: S108 - inside
            "ReadonlyRootfs": not spec.sudo,
            **_locked_down(),
            **(_SUDO if spec.sudo else {}),
            **_limits(share),
        },
    }


def job(
    site: DockerSite, spec: JobSpec, program: Sequence[str], store: "JobStore", *, volume_is_there: bool
) -> Payload:
    """The container of a storage job. Without its volume it runs all the same, and says what it did not find."""
    place = HOME if volume_is_there else f"/volumes/{spec.volume}"
    mounts = [_home(spec.volume)] if volume_is_there else []
    own = {OPERATION_LABEL: str(spec.op_id), KIND_LABEL: spec.kind.value, VOLUME_LABEL: spec.volume}
    return {
        "Image": site.codehub_image,
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": list(program[:1]),
        "Cmd": [*program[1:], *job_arguments(spec, place, store.url)],
        "Env": [f"{name}={value}" for name, value in sorted(store.env.items())],
        "Labels": {**labels(site, spec.workspace_id, JOB), **own},
        "HostConfig": {
            "NetworkMode": "none" if store.directory else site.job_network,
            "Mounts": [*mounts, *store.mounts],
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={64 * MIB}"},  # noqa: S108 - inside the container
            "ReadonlyRootfs": True,
            "CapAdd": list(_JOB_CAPABILITIES),
            **_locked_down(),
            **_limits(_JOB_SHARE),
        },
    }


@dataclass(frozen=True, slots=True)
class JobStore:
    """The archive store as a job's container sees it. `directory`: on the engine's machine, if it is one there.
    `env`: the object store's address and credentials."""

    url: str
    directory: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def mounts(self) -> list[Payload]:
        if self.directory is None:
            return []
        return [{"Type": "bind", "Source": self.directory, "Target": "/archives"}]


def firewall_helper(site: DockerSite, script: str) -> Payload:
    """A container on the network of the engine's machine that has, of root's powers, the one over the packet filter."""
    host = {
        "NetworkMode": "host",
        "Tmpfs": {"/run": f"rw,nosuid,nodev,size={MIB}"},
        "CapAdd": ["NET_ADMIN", "NET_RAW"],
    }
    return _helper(site, FIREWALL, script, host)


def _helper(site: DockerSite, role: str, script: str, host: Payload) -> Payload:
    """A container of CodeHub's own image that runs a shell script. `host`: what is its own in HostConfig."""
    return {
        "Image": site.codehub_image,
        "User": "0:0",
        "Entrypoint": ["sh"],
        "Cmd": ["-c", script],
        "Labels": {INSTALL_LABEL: site.install_id, ROLE_LABEL: role},
        "HostConfig": {
            **host,
            "ReadonlyRootfs": True,
            **_locked_down(),
            **_limits(Resources(cpu=1.0, memory_bytes=128 * MIB, pids=32)),
        },
    }


def disk_usage(site: DockerSite, volumes: str, program: Sequence[str]) -> Payload:
    """A container that measures homes and has, of root's powers, the one to read any file. `volumes`: the engine's own
    directory of volumes, which is mounted to be read: a volume that were mounted by name could not be deleted
    meanwhile."""
    mount = {"Type": "bind", "Source": volumes, "Target": VOLUMES, "ReadOnly": True}
    host = {"NetworkMode": "none", "Mounts": [mount], "CapAdd": ["DAC_READ_SEARCH"]}
    payload = _helper(site, DISK, "", host)
    return {**payload, "Entrypoint": list(program[:1]), "Cmd": list(program[1:])}


def isolation_monitor(site: DockerSite, script: str) -> Payload:
    """The container of the isolation monitor: it runs for as long as there are workspaces, whether or not anybody
    leads."""
    payload = firewall_helper(site, script)
    payload["Labels"][ROLE_LABEL] = MONITOR
    payload["Labels"][SPEC_LABEL] = digest(payload)
    return payload


def digest(payload: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]


def _home(name: str) -> Payload:
    # Never by the way: what the engine makes on its own is known by this label, and is thrown away.
    return {"Type": "volume", "Source": name, "Target": HOME, "VolumeOptions": {"Labels": {STRAY_LABEL: "1"}}}


def _agent(name: str) -> Payload:
    options = {"NoCopy": True, "Labels": {STRAY_LABEL: "1"}}
    return {"Type": "volume", "Source": name, "Target": AGENT_PLACE, "ReadOnly": True, "VolumeOptions": options}


_SUDO: Payload = {"CapAdd": list(_SUDO_CAPABILITIES), "SecurityOpt": []}
"""What a workspace has instead whose template gives sudo; CapDrop stays, so that these capabilities are all."""


def _locked_down() -> Payload:
    return {
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Privileged": False,
        "IpcMode": "private",
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": _LOGS,
        "OomScoreAdj": _DIES_FIRST,
    }


def _limits(share: Resources) -> Payload:
    limits: Payload = {}
    if share.cpu is not None:
        limits["NanoCpus"] = round(share.cpu * 1e9)
    if share.memory_bytes is not None:
        limits["Memory"] = limits["MemorySwap"] = share.memory_bytes
    if share.pids is not None:
        limits["PidsLimit"] = share.pids
    return limits
