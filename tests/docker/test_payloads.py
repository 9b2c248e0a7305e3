"""What the engine is asked for, whole and by equality: a restriction that is left out shows here first."""

import io
import tarfile
from dataclasses import replace
from uuid import UUID

from codehub.adapters.docker.payloads import (
    DockerSite,
    JobStore,
    Launch,
    agent_files,
    agent_filling,
    agent_volume,
    agent_volume_name,
    firewall_helper,
    job,
    key_of,
    network,
    probe,
    volume,
    workspace,
)
from codehub.ports.jobs import JobKind, JobSpec, StoreOwner
from codehub.ports.runtime import ContainerSpec, Resources

KEY, OP = UUID("11111111-2222-3333-4444-555555555555"), UUID("99999999-8888-7777-6666-555555555555")
SITE = DockerSite("here", "ide:1", "codehub:1", "codehub-net")
GIB, MIB = 1 << 30, 1 << 20
HOME_MOUNT = {
    "Type": "volume",
    "Source": "ws-home",
    "Target": "/home/coder",
    "VolumeOptions": {"Labels": {"codehub.stray": "1"}},
}
AGENT_MOUNT = {
    "Type": "volume",
    "Source": "agent-1",
    "Target": "/usr/local/lib/codehub-agent",
    "ReadOnly": True,
    "VolumeOptions": {"NoCopy": True, "Labels": {"codehub.stray": "1"}},
}
AGENT = "/usr/local/lib/codehub-agent"
LAUNCH = Launch(["serve", "--here"], "agent-1", bytes(range(32)))
CONFINED = {
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges:true"],
    "Privileged": False,
    "IpcMode": "private",
    "Init": True,
    "RestartPolicy": {"Name": "no"},
    "LogConfig": {"Type": "json-file", "Config": {"max-size": "5m", "max-file": "2"}},
    "OomScoreAdj": 500,
    "ReadonlyRootfs": True,
}


def test_a_workspace() -> None:
    share = Resources(cpu=0.5, memory_bytes=GIB, pids=100)
    spec = ContainerSpec(
        KEY, "ws-home", "theirs:2", {"B": "2", "A": "1", "HOME": "/elsewhere", "CODEHUB_AGENT_KEY": "00"}, share
    )
    payload = workspace(SITE, spec, LAUNCH)
    digest = payload["Labels"].pop("codehub.spec")
    assert len(digest) == 16
    scratch = f"rw,nosuid,nodev,mode=1777,size={GIB // 2}"
    assert payload == {
        "Image": "theirs:2",
        "Hostname": "workspace",
        "User": "1000:1000",
        "WorkingDir": "/home/coder",
        "Env": ["A=1", "B=2", "HOME=/home/coder", f"CODEHUB_AGENT_KEY={bytes(range(32)).hex()}"],
        "Entrypoint": [
            *(f"{AGENT}/lib/loader", "--library-path", f"{AGENT}/lib", f"{AGENT}/bin/codehub-agent"),
            *("-I", "-S", "-B", "-m", "codehub.agent", "serve", "--here"),
        ],
        "Cmd": [],
        "ExposedPorts": {"61079/tcp": {}},
        "Labels": {
            "codehub.install": "here",
            "codehub.workspace": str(KEY),
            "codehub.role": "workspace",
            "codehub.volume": "ws-home",
        },
        "HostConfig": {
            **CONFINED,
            "NetworkMode": "codehub-net",
            "Mounts": [HOME_MOUNT, AGENT_MOUNT],
            "Tmpfs": {
                "/tmp": scratch,
                "/var/tmp": scratch,
                "/run": scratch,
                "/run/codehub": "rw,nosuid,nodev,mode=0700,uid=1000,gid=1000,size=1048576",
            },
            "NanoCpus": 500_000_000,
            "Memory": GIB,
            "MemorySwap": GIB,
            "PidsLimit": 100,
        },
    }


def test_what_a_template_leaves_open_is_the_runtimes_own() -> None:
    payload = workspace(SITE, ContainerSpec(KEY, "ws-home", ""), LAUNCH)
    host = payload["HostConfig"]
    assert payload["Image"] == "ide:1"
    assert (host["NanoCpus"], host["Memory"], host["PidsLimit"]) == (2_000_000_000, 2 * GIB, 512)


def test_another_spec_has_another_digest() -> None:
    specs = [ContainerSpec(KEY, "ws-home", image, env) for image in ("", "b") for env in ({}, {"A": "1"})]
    digests = [workspace(SITE, spec, LAUNCH)["Labels"]["codehub.spec"] for spec in specs]
    assert len(set(digests)) == 4
    again = workspace(SITE, specs[0], Launch(LAUNCH.command, LAUNCH.agent, bytes(32)))
    assert again["Labels"]["codehub.spec"] == digests[0], "each start has its own key"


def test_a_key_is_in_no_words_of_ours_and_is_found_again() -> None:
    payload = workspace(SITE, ContainerSpec(KEY, "ws-home", ""), LAUNCH)
    assert key_of(payload["Env"]) == LAUNCH.key
    assert LAUNCH.key.hex() not in repr(payload["Labels"]) + repr(payload["Entrypoint"])
    assert repr(LAUNCH.key) not in repr(LAUNCH)
    assert key_of(["HOME=/home/coder"]) is None, "one that was started before there were agents"


def test_the_agent_s_volume_is_filled_from_our_image() -> None:
    ours = {"codehub.install": "here", "codehub.role": "agent"}
    name = agent_volume_name(SITE, "sha256:" + "ab" * 32)
    assert name == "codehub-agent-here-" + "ab" * 6
    assert agent_volume(SITE, name) == {"Name": name, "Driver": "local", "Labels": ours}
    mount = {"Type": "volume", "Source": name, "Target": "/mnt", "VolumeOptions": {"NoCopy": True}}
    filling = agent_filling(SITE, name)
    assert filling["Cmd"][0] == "-c"
    assert filling["HostConfig"] == {
        **CONFINED,
        "NetworkMode": "none",
        "Mounts": [mount],
        "NanoCpus": 1_000_000_000,
        "Memory": 128 * MIB,
        "MemorySwap": 128 * MIB,
        "PidsLimit": 32,
    }
    del filling["Cmd"], filling["HostConfig"]
    assert filling == {"Image": "codehub:1", "User": "0:0", "Entrypoint": ["sh"], "Labels": ours}


def test_a_workspace_with_sudo_differs_in_three_restrictions_alone() -> None:
    spec = ContainerSpec(KEY, "ws-home", "")
    without, given = workspace(SITE, spec, LAUNCH)["HostConfig"], workspace(SITE, replace(spec, sudo=True), LAUNCH)
    assert given["User"] == "1000:1000"
    assert given["HostConfig"] == {
        **without,
        "ReadonlyRootfs": False,
        "SecurityOpt": [],
        "CapDrop": ["ALL"],
        "CapAdd": [
            *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP"),
            *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
        ],
    }


def test_every_workspace_has_the_variables_of_its_site_unless_its_template_says_otherwise() -> None:
    site = replace(SITE, env={"EXTENSIONS_GALLERY": "{}"}, ca_bundle=b"PEM")
    env = dict(line.split("=", 1) for line in probe(site, ContainerSpec(KEY, "ws-home", ""), ["id"], "agent-1")["Env"])
    bundle = f"{AGENT}/ca-bundle.pem"
    assert env == {
        "HOME": "/home/coder",
        "EXTENSIONS_GALLERY": "{}",
        "SSL_CERT_FILE": bundle,
        "CURL_CA_BUNDLE": bundle,
        "GIT_SSL_CAINFO": bundle,
        "NODE_EXTRA_CA_CERTS": bundle,
        "PIP_CERT": bundle,
        "REQUESTS_CA_BUNDLE": bundle,
    }
    own = ContainerSpec(KEY, "ws-home", "", {"PIP_CERT": "/mine.pem"})
    assert "PIP_CERT=/mine.pem" in probe(site, own, ["id"], "agent-1")["Env"]


def test_authorities_have_a_volume_of_their_own_with_the_agent() -> None:
    image = "sha256:" + "ab" * 32
    names = {agent_volume_name(replace(SITE, ca_bundle=pem), image) for pem in (b"", b"PEM", b"OTHER")}
    assert len(names) == 3
    assert agent_files(SITE) is None
    packed = agent_files(replace(SITE, ca_bundle=b"PEM"))
    assert packed is not None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        [entry] = archive.getmembers()
        content = archive.extractfile(entry)
        assert content is not None
        assert (entry.name, entry.mode, content.read()) == ("ca-own.pem", 0o644, b"PEM")


def test_a_probe_is_confined_as_the_workspace_is() -> None:
    spec = ContainerSpec(KEY, "ws-home", "")
    probing, real = probe(SITE, spec, ["sh", "-c", "id"], "agent-1"), workspace(SITE, spec, LAUNCH)
    assert probing["HostConfig"] == real["HostConfig"]
    assert (probing["Entrypoint"], probing["Cmd"]) == (["sh"], ["-c", "id"])
    assert probing["Labels"]["codehub.role"] == "probe"
    assert probing["User"] == real["User"]


def test_a_job_that_archives_into_a_directory() -> None:
    spec = JobSpec(KEY, OP, JobKind.ARCHIVE, "ws-home", "a/b/home.tar.zst")
    store = JobStore("file:///archives", "/srv/archives")
    assert job(SITE, spec, ["python", "-m", "codehub.job"], store, volume_is_there=True) == {
        "Image": "codehub:1",
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": ["python"],
        "Cmd": [
            *("-m", "codehub.job", "archive", "--volume", "/home/coder"),
            *("--store", "file:///archives", "--key", "a/b/home.tar.zst"),
        ],
        "Env": [],
        "Labels": {
            "codehub.install": "here",
            "codehub.workspace": str(KEY),
            "codehub.role": "job",
            "codehub.operation": str(OP),
            "codehub.job": "archive",
            "codehub.volume": "ws-home",
        },
        "HostConfig": {
            **CONFINED,
            "NetworkMode": "none",
            "Mounts": [HOME_MOUNT, {"Type": "bind", "Source": "/srv/archives", "Target": "/archives"}],
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={64 * MIB}"},
            "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"],
            "NanoCpus": 2_000_000_000,
            "Memory": GIB // 2,
            "MemorySwap": GIB // 2,
            "PidsLimit": 64,
        },
    }


def test_a_job_that_restores_from_a_bucket() -> None:
    spec = JobSpec(KEY, OP, JobKind.RESTORE, "ws-home", "a/b/home.tar.zst")
    spec = replace(spec, owner=StoreOwner("team/codehub-owner", "here"))
    payload = job(SITE, spec, ["p"], JobStore("s3://homes", None, {"B": "2", "A": "1"}), volume_is_there=True)
    assert payload["Cmd"][-5:-2] == ["--owner", "team/codehub-owner", "here"]
    assert payload["Cmd"][-2:] == ["--op-id", str(OP)]
    assert payload["Env"] == ["A=1", "B=2"]
    assert payload["HostConfig"]["NetworkMode"] == "host"
    assert payload["HostConfig"]["Mounts"] == [HOME_MOUNT]


def test_a_job_whose_volume_is_gone_gets_none() -> None:
    spec = JobSpec(KEY, OP, JobKind.ARCHIVE, "ws-home", "key")
    payload = job(SITE, spec, ["p"], JobStore("s3://homes"), volume_is_there=False)
    assert payload["HostConfig"]["Mounts"] == []
    assert payload["Cmd"][1:3] == ["--volume", "/volumes/ws-home"]


def test_a_volume_and_the_network() -> None:
    assert volume(SITE, KEY, "ws-home", "mark") == {
        "Name": "ws-home",
        "Driver": "local",
        "Labels": {"codehub.install": "here", "codehub.workspace": str(KEY), "codehub.mark": "mark"},
    }
    assert volume(SITE, KEY, "ws-home", "mark", 7)["DriverOpts"] == {"size": "7"}
    assert network(SITE) == {
        "Name": "codehub-net",
        "Driver": "bridge",
        "CheckDuplicate": True,
        "EnableIPv6": False,
        "Labels": {"codehub.install": "here"},
        "Options": {
            "com.docker.network.bridge.name": SITE.bridge,
            "com.docker.network.bridge.enable_icc": "false",
        },
    }
    assert len(SITE.bridge) <= 15  # the kernel's limit


def test_whoever_sets_up_the_firewall_has_that_power_and_no_other() -> None:
    payload = firewall_helper(SITE, "script")
    assert payload["HostConfig"]["CapAdd"] == ["NET_ADMIN", "NET_RAW"]
    assert payload["HostConfig"]["NetworkMode"] == "host"
    assert CONFINED.items() <= payload["HostConfig"].items()
    assert "Mounts" not in payload["HostConfig"]
