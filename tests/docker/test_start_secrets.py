"""Secrets of a start in a container: they are inside, and nowhere that anybody else looks."""

import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from codehub.adapters.docker import DockerRuntime
from codehub.domain.naming import container_name, volume_name
from codehub.ports.runtime import ContainerSpec, GitCredential, StartSecrets
from tests.contracts.places import DockerPlace
from tests.docker_engine import WORKSPACE_IMAGE, DockerTestbed
from tests.eventually import eventually

pytestmark = pytest.mark.system

VARIABLE, TOKEN = uuid4().hex, uuid4().hex
_KEY = Ed25519PrivateKey.generate()
PRIVATE_KEY = _KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
).decode()
PUBLIC_KEY = _KEY.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
SECRETS = StartSecrets(
    env={"API_TOKEN": VARIABLE}, git_credentials=[GitCredential("git.example", "ann", TOKEN)], ssh_keys=[PRIVATE_KEY]
)
CLEAR_TEXTS = (VARIABLE, TOKEN, PRIVATE_KEY.splitlines()[2])


@pytest.fixture
async def place(docker_testbed: DockerTestbed, tmp_path: Path) -> AsyncIterator[DockerPlace]:
    place = DockerPlace(docker_testbed, tmp_path, docker_testbed.site(WORKSPACE_IMAGE))
    yield place
    await place.close()


@pytest.fixture
def runtime(place: DockerPlace) -> DockerRuntime:
    return place.runtime()


@pytest.fixture
async def spec(runtime: DockerRuntime) -> ContainerSpec:
    workspace_id = uuid4()
    volume = volume_name(workspace_id, 1)
    await runtime.create_volume(workspace_id, volume)
    env = {"CODEHUB_GIT_NAME": "Ann", "CODEHUB_GIT_EMAIL": "ann@example.org"}
    return ContainerSpec(workspace_id, volume, "", env, secrets=SECRETS)


def inside(spec: ContainerSpec, script: str) -> str:
    """What a terminal in the editor would print, which has the editor's environment."""
    name = container_name(spec.workspace_id)
    found = "for p in /proc/[0-9]*; do grep -zq ^NODE_EXEC_PATH= $p/environ 2>/dev/null && break; done"
    given = (
        "set -a; eval \"$(tr '\\0' '\\n' < $p/environ | grep -E \"^(API_TOKEN|GIT_CONFIG_SYSTEM|SSH_AUTH_SOCK)=\")\""
    )
    words = ["docker", "exec", name, "sh", "-c", f"{found}; {given}; {script}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


async def test_they_are_inside_and_in_nothing_that_the_engine_or_the_home_keeps(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    asked = "printf 'protocol=https\\nhost=git.example\\n\\n' | git credential fill"
    assert inside(spec, "echo $API_TOKEN") == f"{VARIABLE}\n"
    assert f"username=ann\npassword={TOKEN}\n" in inside(spec, asked)
    assert PUBLIC_KEY in inside(spec, "ssh-add -L")
    commit = "cd && git init -q r && cd r && git commit -q --allow-empty -m one && git log -1 --format='%an %ae'"
    assert inside(spec, commit) == "Ann ann@example.org\n"

    name = container_name(spec.workspace_id)
    kept = {
        "description": _output("docker", "inspect", name),
        "log": _output("docker", "logs", name),
        "changes": _output("docker", "diff", name),
        "volumes": json.dumps(await runtime.engine.volumes([])),
        "variables of exec": _output("docker", "exec", name, "env"),
        "files": _output("sh", "-c", f"grep -rEls '{'|'.join(CLEAR_TEXTS)}' {place.mountpoint(spec.volume)} || true"),
        "memory files": _output(
            "docker", "exec", name, "sh", "-c", f"grep -rEls '{'|'.join(CLEAR_TEXTS)}' /run /tmp /home /var/tmp || true"
        ),
    }
    assert {where: text for where, text in kept.items() if any(secret in text for secret in CLEAR_TEXTS)} == {}
    assert (kept["files"], kept["memory files"]) == ("", "")


async def test_a_container_whose_starter_was_killed_gets_its_secrets_from_the_next(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    await runtime._try_to_start(spec)
    waiting = _output("docker", "top", container_name(spec.workspace_id))
    assert "codehub-agent" in waiting
    assert "/usr/local/lib/ide/bin/node" not in [line.split()[7] for line in waiting.splitlines()[1:]]
    await place.runtime().start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    assert inside(spec, "echo $API_TOKEN") == f"{VARIABLE}\n"


async def test_a_neighbour_without_secrets_has_none(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    await runtime.start_container(spec)
    other = replace(spec, workspace_id=uuid4(), secrets=StartSecrets())
    other = replace(other, volume=volume_name(other.workspace_id, 1))
    await runtime.create_volume(other.workspace_id, other.volume)
    await runtime.start_container(other)
    await eventually(lambda: runtime.answers(other.workspace_id))
    assert inside(other, "echo [$API_TOKEN] [$SSH_AUTH_SOCK]") == "[] []\n"


def _output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
