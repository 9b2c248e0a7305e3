"""`codehub doctor` as people run it: before anything is there, on what is broken, and on what works."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from codehub.adapters.encryption import KEY_FILE, new_key
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.bootstrap.operator import open_database, probe
from codehub.bootstrap.secrets import ensure_key, open_keyring
from codehub.bootstrap.services import identity, open_services
from codehub.cli import doctor
from codehub.cli.serve import ProcessStatus, serving_status
from codehub.domain.identity import Role
from codehub.domain.secrets import SecretKind, SecretName, template_owner
from codehub.domain.template import Template
from codehub.ports.secrets import Sealed, StoredSecret
from codehub.ports.stores import Actor
from codehub.settings import Settings, load_settings
from codehub.usecases.self_check import OWNER, Finding, Verdict
from tests.certificates import Authority
from tests.system.deployment import CODEHUB, Deployment, deployed

pytestmark = pytest.mark.system


def settings(**given: Any) -> Settings:
    return load_settings(
        **({"database_url": "postgresql://none@127.0.0.1:1/none", "redis_url": "redis://127.0.0.1:1"} | given)
    )


async def run(environment: dict[str, str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    bare = {name: os.environ[name] for name in ("PATH", "HOME")}
    process = await asyncio.create_subprocess_exec(
        CODEHUB,
        "doctor",
        "--json",
        *words,
        env=bare | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await process.communicate()
    told = json.loads(output or "{}")
    assert told, errors.decode()
    assert told["ok"] is (process.returncode == 0)
    return process.returncode or 0, {finding["name"]: finding for finding in told["findings"]}


# ── one check at a time ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mode", "verdict"), [(0o700, Verdict.OK), (0o755, Verdict.WARN), (None, Verdict.WARN)], ids=str
)
async def test_the_data_directory_is_private(tmp_path: Path, mode: int | None, verdict: Verdict) -> None:
    place = tmp_path / "data"
    if mode is not None:
        place.mkdir()
        place.chmod(mode)
    found = await doctor.data_directory(settings(data_dir=place))
    assert found.verdict is verdict
    assert bool(found.advice) is (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("url", "proxies", "verdict"),
    [
        (None, None, Verdict.OK),
        ("http://hub.test", None, Verdict.OK),
        ("https://hub.test", None, Verdict.WARN),
        ("https://hub.test", "192.0.2.1", Verdict.OK),
    ],
    ids=["nothing", "plain", "unnamed", "named"],
)
async def test_a_proxy_that_is_not_named_is_told(url: str | None, proxies: str | None, verdict: Verdict) -> None:
    found = await doctor.trusted_proxies(settings(public_url=url, proxy_trusted_proxies=proxies))
    assert found.verdict is verdict
    assert ("CODEHUB_PROXY_TRUSTED_PROXIES" in found.advice) is (verdict is Verdict.WARN)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("postgresql", "CODEHUB_DATABASE_URL"),
        ("redis", "CODEHUB_REDIS_URL"),
        ("controller", "PostgreSQL"),
        ("api", "codehub api"),
    ],
)
async def test_what_does_not_answer_fails_and_says_what_to_do(name: str, names: str) -> None:
    found = await doctor.run_check(name, doctor.SERVICE_CHECKS[name], settings(api_address="127.0.0.1:1"))
    assert (found.name, found.verdict) == (name, Verdict.FAIL)
    assert names in found.advice


async def test_a_database_without_schema_asks_for_the_migration(fresh_database: str) -> None:
    found = await doctor.postgresql(settings(database_url=fresh_database))
    assert found.verdict is Verdict.FAIL
    assert "codehub migrate" in found.seen


async def test_an_archive_store_is_tried_and_left_clean(tmp_path: Path) -> None:
    place = tmp_path / "store"
    gone = await doctor.run_check("archives", doctor.archive_store, settings(archive_url=f"file://{place}"))
    assert (gone.verdict, place.exists()) == (Verdict.FAIL, False)
    place.mkdir()
    assert (await doctor.archive_store(settings(archive_url=f"file://{place}"))).verdict is Verdict.OK
    assert not [found for found in place.rglob("*") if found.is_file()]


async def test_the_keys_of_secrets_are_there_private_and_open_everything(logged_database: str, tmp_path: Path) -> None:
    def given(**keys: Any) -> Settings:
        return settings(database_url=logged_database, data_dir=tmp_path, **keys)

    async def found(**keys: Any) -> Finding:
        return await doctor.run_check("secrets", doctor.secrets, given(**keys))

    none = await found()
    assert (none.verdict, "codehub admin secrets new-key" in none.advice) == (Verdict.WARN, True)
    ensure_key(given())
    path = tmp_path / KEY_FILE
    assert (await found()).verdict is Verdict.OK
    name = SecretName(template_owner("default"), SecretKind.VARIABLE, "A")
    async with open_database(given()) as database:
        sealed = open_keyring(given()).seal(name, "", "value")
        await database.secrets().put(StoredSecret(name, "", sealed), Actor("root"))
        assert (await found()).seen.startswith("1 are kept")
        path.chmod(0o640)
        assert ((await found()).verdict, f"chmod 600 {path}" in (await found()).advice) == (Verdict.FAIL, True)
        path.chmod(0o600)
        older = await found(secrets_keys=f"{new_key()},{path.read_text().strip()}")
        assert (older.verdict, "rotate" in older.advice) == (Verdict.WARN, True)
        lost = await found(secrets_keys=new_key())
        assert (lost.verdict, sealed.key_id in lost.seen) == (Verdict.FAIL, True)
        await database.secrets().put(StoredSecret(name, "", Sealed(sealed.key_id, b"damaged")), Actor("root"))
        damaged = await found()
        assert (damaged.verdict, "template:default variable A" in damaged.seen) == (Verdict.FAIL, True)
    path.write_text("no key\n")
    wrong = await found()
    assert (wrong.verdict, str(path) in wrong.seen) == (Verdict.FAIL, True)


async def test_limits_on_the_disk_that_nobody_enforces_are_told(logged_database: str) -> None:
    given = settings(database_url=logged_database)
    assert (await doctor.disk_limits(given)).verdict is Verdict.OK
    async with open_database(given) as database:
        await database.templates().put(Template("small", disk_bytes=1 << 30), Actor("root"))
    found = await doctor.disk_limits(given)
    assert found.verdict is Verdict.WARN
    assert "not enforced here, because a home is a directory here; templates that have one: small" in found.seen


async def test_templates_that_give_sudo_do_not_start_as_processes(logged_database: str) -> None:
    given = settings(database_url=logged_database)
    assert (await doctor.sudo(given)).verdict is Verdict.OK
    async with open_database(given) as database:
        await database.templates().put(Template("packages", sudo=True), Actor("root"))
    found = await doctor.sudo(given)
    assert (found.verdict, found.seen) == (Verdict.FAIL, "templates that give it: packages")


async def test_authorities_are_counted_and_expired_ones_are_told(tmp_path: Path) -> None:
    assert (await doctor.certificate_authorities(settings())).verdict is Verdict.OK
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(Authority().pem)
    assert (await doctor.certificate_authorities(settings(ca_bundle=bundle))).verdict is Verdict.OK
    bundle.write_bytes(Authority().pem + Authority(until=timedelta(days=-1)).pem)
    found = await doctor.certificate_authorities(settings(ca_bundle=bundle))
    assert found.verdict is Verdict.WARN
    assert found.seen == f"workspaces trust 2 of {bundle} besides their system's; 1 of them expired"


async def test_a_gallery_that_does_not_answer_is_told() -> None:
    assert (await doctor.extension_gallery(settings())).verdict is Verdict.OK
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        given = settings(extension_gallery=f"http://127.0.0.1:{port}/vscode/gallery")
        assert (await doctor.extension_gallery(given)).verdict is Verdict.OK
    found = await doctor.extension_gallery(given)
    assert found.verdict is Verdict.WARN
    assert "CODEHUB_EXTENSION_GALLERY" in found.advice


async def test_a_variable_without_effect_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await doctor.settings_names(settings())).verdict is Verdict.OK
    monkeypatch.setenv("TTL_STANDBY_SECOND", "600")
    found = await doctor.settings_names(settings())
    assert found.verdict is Verdict.WARN
    assert "TTL_STANDBY_SECONDS" in found.seen
    monkeypatch.setenv("RECONCILER_INTERVAL", "10")
    assert "RECONCILER_INTERVAL is replaced by" in (await doctor.settings_names(settings())).seen


# ── as a command ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_before_anything_runs_it_says_what_is_missing(tmp_path: Path) -> None:
    code, found = await run({"CODEHUB_DATA_DIR": str(tmp_path / "none")})
    assert code == 1
    assert found["installation"]["verdict"] == "fail"
    assert "codehub up" in found["installation"]["advice"]
    assert found["disk"]["verdict"] in ("ok", "warn")
    assert not (tmp_path / "none").exists()


@pytest.fixture
async def deployment(logged_database: str, fresh_redis: str) -> AsyncIterator[Deployment]:
    async with deployed(logged_database, fresh_redis) as running:
        yield running


async def test_a_deployment_is_examined_and_probed_to_the_end(deployment: Deployment) -> None:
    """Without bubblewrap here, so a neighbour's home is in reach, and that is said."""
    environment = deployment.environment(deployment.database_url) | {"CODEHUB_API_ADDRESS": "127.0.0.1:1"}
    _, lonely = await run(environment)
    assert lonely["controller"]["verdict"] == "fail"
    deployment.start()
    await deployment.leader()
    code, found = await run(environment, "--probe")
    verdicts = {name: finding["verdict"] for name, finding in found.items()}
    assert code == 1, "nobody serves the API here"
    assert [name for name, verdict in verdicts.items() if verdict == "fail"] == ["api"]
    steps = ("start", "archive", "restore", "clean up")
    assert [verdicts[f"probe: {step}"] for step in steps] == ["ok"] * 4
    assert verdicts["probe: isolation"] == "warn"
    assert "another workspace's home" in found["probe: isolation"]["seen"]
    assert await deployment.services.runtime.volumes() == {}
    assert await deployment.services.runtime.containers() == {}
    rows = [owned.workspace for owned in await deployment.services.database.views().everything(OWNER)]
    assert [row for row in rows if row.deleted_at is None] == []
    owners = [stored.key for stored in await deployment.services.archives.objects() if "home.tar" in stored.key]
    assert owners == []


async def test_in_a_sandbox_nothing_is_in_reach(logged_database: str, fresh_redis: str) -> None:
    """Although the IDE here is named by a path below the data directory."""
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    async with deployed(logged_database, fresh_redis) as deployment:
        command = deployment.environment(deployment.database_url)["CODEHUB_IDE_COMMAND"]
        deployment.start(PATH=os.environ["PATH"])
        await deployment.leader()
        findings: list[Finding] = []
        given = deployment.services.settings.model_copy(update={"ide_command": command})
        (deployment.directory / "running.json").write_text("{}")
        async with open_services(given) as services:
            await (await probe(services)).run(findings.append)
    [found] = [finding for finding in findings if finding.name == "probe: isolation"]
    assert found.verdict is Verdict.OK, found
    for what in ("another workspace's home", "the volumes", "the databases' passwords", "the database's socket"):
        assert what in found.seen


# ── the first account ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deployment_gets_its_first_admin_once(deployment: Deployment) -> None:
    environment = deployment.environment(deployment.database_url)
    answers = []
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            CODEHUB, "admin", "first-admin", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _errors = await process.communicate()
        answers.append((process.returncode, output.decode()))
    (made, told), (refused, why) = answers
    assert (made, refused) == (0, 1), answers
    assert "accounts already" in why
    password = told.split("Password: ")[1].split()[0]
    caller, _secret = await identity(deployment.services).sign_in("admin", password, "192.0.2.1", "test")
    assert caller.user.role is Role.ADMIN


async def test_the_data_directory_is_made_private(logged_database: str, fresh_redis: str, tmp_path: Path) -> None:
    place = tmp_path / "new" / "data"
    given = settings(database_url=logged_database, redis_url=fresh_redis, data_dir=place, ide_command="ide {socket}")
    async with open_services(given):
        assert (await doctor.data_directory(given)).verdict is Verdict.OK


async def test_the_api_is_asked_where_the_front_door_finds_it() -> None:
    """Where the processes are in pods of their own, nothing listens at the address that the API itself listens at."""
    ready = ProcessStatus(ready=True, details={})
    async with serving_status("127.0.0.1:0", lambda: ready, CollectorRegistry()) as port:
        apart = settings(api_address="127.0.0.1:1", api_upstream=f"localhost:{port}")
        found = await doctor.api(apart)
        assert (found.verdict, f"localhost:{port} answers" in found.seen) == (Verdict.OK, True)
        alone = await doctor.api(settings(api_address=f"127.0.0.1:{port}"))
        assert alone.verdict is Verdict.OK
    silent = await doctor.api(apart)
    assert (silent.verdict, "CODEHUB_API_UPSTREAM" in silent.advice) == (Verdict.FAIL, True)
