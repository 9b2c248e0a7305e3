"""The compose file: whole, without a password of its own, and with no port open that need not be."""

import os
import re
import shutil
import subprocess
from ipaddress import ip_network
from pathlib import Path

import pytest

from codehub.adapters.docker.firewall import PRIVATE
from codehub.adapters.encryption import parse_keys
from tests.house.project import ROOT

COMPOSE = ROOT / "deploy" / "compose"
TEXT = (COMPOSE / "compose.yaml").read_text()
SECRETS = ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "S3_KEY_ID", "S3_SECRET", "DOCKER_GID", "CODEHUB_SECRETS_KEYS")


def config(**variables: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not there")
    return subprocess.run(
        ["docker-compose", "--file", str(COMPOSE / "compose.yaml"), "config"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.system
def test_docker_compose_takes_it() -> None:
    done = config(**dict.fromkeys(SECRETS, "given"))
    assert done.returncode == 0, done.stderr
    assert "postgresql://codehub:given@10.87.77.2/codehub" in done.stdout
    assert not re.search(r"^\s+ports:", done.stdout, re.MULTILINE)


@pytest.mark.system
@pytest.mark.parametrize("missing", SECRETS)
def test_without_a_secret_nothing_starts(missing: str) -> None:
    done = config(**{name: "given" for name in SECRETS if name != missing})
    assert done.returncode != 0
    assert "run ./init first" in done.stderr


def test_no_secret_has_a_default_and_no_port_is_published() -> None:
    assert re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|KEY)\w*):?-", TEXT) == []
    assert not re.search(r"^\s+ports:", TEXT, re.MULTILINE)


def test_every_process_of_a_deployment_is_there_and_the_front_door_is_the_one_that_people_reach() -> None:
    assert re.findall(r"command: \[(migrate|coordinator|api|proxy)\]", TEXT) == [
        "migrate",
        "coordinator",
        "api",
        "proxy",
    ]
    assert "CODEHUB_PROXY_ADDRESS: ${CODEHUB_PROXY_ADDRESS:-127.0.0.1:8000}" in TEXT
    assert '--to, "${CODEHUB_PROXY_ADDRESS:-127.0.0.1:8000}"]' in TEXT  # where TLS leads to


def test_the_databases_are_where_workspaces_may_not_go() -> None:
    hosts = re.findall(r"ipv4_address: \"\$\{STORE_NETWORK:-10\.87\.77\}\.(\d)", TEXT)
    assert hosts == ["2", "3", "4"]
    assert "10.0.0.0/8" in PRIVATE


def test_the_network_of_the_databases_is_none_that_docker_may_have_given_to_another() -> None:
    found = re.search(r"subnet: \"\$\{STORE_NETWORK:-([\d.]+)\}\.0/24\"", TEXT)
    assert found
    ours = ip_network(f"{found[1]}.0/24")
    for given in ("172.16.0.0/12", "192.168.0.0/16"):
        assert not ours.overlaps(ip_network(given))


def test_the_engines_socket_is_codehubs_alone() -> None:
    assert TEXT.count("docker.sock") == 2  # one mount, both its sides
    assert TEXT.index("docker.sock") < TEXT.index("\nservices:")


def test_init_writes_secrets_once_for_its_owner_alone(tmp_path: Path) -> None:
    shutil.copy(COMPOSE / "init", tmp_path / "init")
    script = (tmp_path / "init").read_text().replace("/var/run/docker.sock", str(tmp_path))
    (tmp_path / "init").write_text(script)
    first = subprocess.run([tmp_path / "init"], capture_output=True, text=True, check=True)
    written = (tmp_path / ".env").read_text()
    values = dict(line.split("=", 1) for line in written.splitlines())
    assert set(values) == set(SECRETS)
    assert len(set(values.values())) == len(SECRETS)
    assert all(len(values[name]) >= 16 for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "S3_KEY_ID", "S3_SECRET"))
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert "first-admin" in first.stdout
    assert parse_keys(values["CODEHUB_SECRETS_KEYS"])
    again = subprocess.run([tmp_path / "init"], capture_output=True, text=True, check=False)
    assert (again.returncode, (tmp_path / ".env").read_text()) == (1, written)


def test_init_adds_the_key_that_an_older_installation_lacks(tmp_path: Path) -> None:
    shutil.copy(COMPOSE / "init", tmp_path / "init")
    (tmp_path / ".env").write_text("POSTGRES_PASSWORD=mine\n")
    done = subprocess.run([tmp_path / "init"], capture_output=True, text=True, check=True)
    first, second = (tmp_path / ".env").read_text().splitlines()
    assert (first, second.partition("=")[0]) == ("POSTGRES_PASSWORD=mine", "CODEHUB_SECRETS_KEYS")
    assert parse_keys(second.partition("=")[2])
    assert "Keep a copy" in done.stdout
    assert subprocess.run([tmp_path / "init"], capture_output=True, check=False).returncode == 1
