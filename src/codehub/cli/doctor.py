"""`codehub doctor`: is everything there, does it work, and what to do about what does not.

One check is one small function, from settings to a finding that says what to do. A check that cannot be made because
something before it failed says so by failing itself. None changes anything but those of the archive store and of the
disk limits, which remove what they made.
"""

import asyncio
import json
import os
import resource
import shutil
import socket
import ssl
import stat
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit
from uuid import uuid4

import typer
from rich.text import Text

from codehub.cli.client import AsJson
from codehub.cli.local_instance import operators_settings
from codehub.cli.output import FAILED, print_json, size, table
from codehub.domain.errors import CodeHubError
from codehub.domain.judge import ArchiveState
from codehub.usecases.self_check import Finding, Tell, Verdict, fail, failed, observe_backends, ok, warn

if TYPE_CHECKING:
    from codehub.settings import Settings

COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}
LEAST_REDIS = (6, 2)
"""The first Redis that has ZADD GT."""
SKEW_SECONDS = 5.0
FREE_WARN, FREE_FAIL = 5 << 30, 512 << 20
LEAST_FILES = 1024
GALLERY_SECONDS = 10.0

DoctorCheck = Callable[["Settings"], Awaitable[Finding]]


async def settings_names(_settings: "Settings") -> Finding:
    from codehub.settings import without_effect

    wrong = list(without_effect(os.environ))
    if wrong:
        return warn("settings", " ".join(wrong), "Correct or unset what has no effect.")
    return ok("settings", "readable; each that is set has an effect")


async def data_directory(settings: "Settings") -> Finding:
    from codehub.bootstrap.runtimes import data_dir

    directory = data_dir(settings)
    if not directory.is_dir():
        return warn("data directory", f"{directory} is not there yet", "The first start makes it.")
    if not os.access(directory, os.W_OK | os.X_OK):
        return fail("data directory", f"{directory} is not writable", "Give it to the account that runs CodeHub.")
    if stat.S_IMODE(directory.stat().st_mode) & 0o077:
        return warn("data directory", f"others may look into {directory}", f"chmod 700 {directory}")
    return ok("data directory", f"{directory} is writable and private")


async def disk(settings: "Settings") -> Finding:
    from codehub.bootstrap.runtimes import data_dir

    place = data_dir(settings)
    place = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(place).free
    seen = f"{size(free)} free at {place}"
    if free < FREE_FAIL:
        return fail("disk", seen, "Free some: homes cannot be written, nor databases.")
    return warn("disk", seen, "Free some soon.") if free < FREE_WARN else ok("disk", seen)


async def open_files(_settings: "Settings") -> Finding:
    allowed, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < LEAST_FILES:
        return warn(
            "open files",
            f"at most {allowed}",
            f"`ulimit -n 65536`, or LimitNOFILE in the unit: at least {LEAST_FILES}.",
        )
    return ok("open files", f"at most {allowed}")


async def postgresql(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import check_schema, open_database
    from codehub.bootstrap.services import SchemaMismatch

    async with open_database(settings) as database:
        try:
            await check_schema(database)
        except SchemaMismatch as mismatch:
            return fail("postgresql", str(mismatch), "`codehub migrate`, or another version of CodeHub.")
        except CodeHubError as error:
            return fail("postgresql", str(error), "Start it, or correct CODEHUB_DATABASE_URL.")
        before = datetime.now(UTC)
        theirs = await database.views().now()
        after = datetime.now(UTC)
    skew = max((before - theirs).total_seconds(), (theirs - after).total_seconds(), 0.0)
    if skew > SKEW_SECONDS:
        return warn("postgresql", f"its clock and ours are {skew:.0f} s apart", "Set both by NTP.")
    return ok("postgresql", f"answers, has this program's schema, clocks within {max(skew, 0.01):.2f} s")


async def redis(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import open_redis

    async with open_redis(settings) as connection:
        try:
            version = await connection.version()
        except CodeHubError as error:
            return fail("redis", str(error), "Start it, or correct CODEHUB_REDIS_URL.")
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_REDIS:
        return fail("redis", f"version {version}", "Use 6.2 or newer: activity is kept with ZADD GT.")
    return ok("redis", f"answers, version {version}")


async def archive_store(settings: "Settings") -> Finding:
    from codehub.bootstrap.runtimes import open_archives

    advice = "Correct CODEHUB_ARCHIVE_URL, CODEHUB_S3_ENDPOINT or AWS_*; it must let us read, write, delete and list."
    key = f"{settings.archive_prefix}doctor/{uuid4()}/home.tar.zst"
    archives = open_archives(settings)
    try:
        await archives.create_empty(key)
        state = await archives.look(key)
        await archives.delete(key)
        gone = await archives.look(key)
    except CodeHubError as error:
        return fail("archives", str(error), advice)
    finally:
        archives.close()
    if (state, gone) != (ArchiveState.READABLE, ArchiveState.NOT_FOUND):
        return fail("archives", f"a probe was {state.value} after writing and {gone.value} after deleting", advice)
    return ok("archives", "a probe was written, read back and deleted")


async def backends(settings: "Settings") -> Finding:
    """Whether the runtime and the archive store are the right ones; other checks say whether they answer."""
    from codehub.bootstrap.services import open_services

    async with open_services(settings) as services:
        seen = await observe_backends(services.database.backend_identities(), services.runtime, services.archives)
    if troubles := [one.trouble for one in seen if one.trouble]:
        return fail("backends", " ".join(troubles), "See `codehub admin backends`.")
    fresh = [one.backend.value for one in seen if one.remembered is None]
    if fresh:
        return ok("backends", f"{' and '.join(fresh)}: adopted by the first leader that finds it")
    return ok("backends", "the runtime and the archive store are those that the database remembers")


async def engine(settings: "Settings") -> Finding:
    from codehub.bootstrap.runtimes import engine_of, why_not_docker

    if settings.runtime == "kubernetes":
        return await _cluster(settings)
    if settings.runtime != "docker":
        return ok("engine", "not needed: workspaces are processes (CODEHUB_RUNTIME)")
    reason = await why_not_docker(settings)
    if reason is not None:
        return fail("engine", reason, "Start the engine, build the images; DOCKER_HOST says where it is.")
    found = engine_of(settings)
    try:
        return ok("engine", f"Docker {await found.version()} at {found.host}, with both images")
    finally:
        await found.close()


async def _cluster(settings: "Settings") -> Finding:
    from codehub.bootstrap.kubernetes import describe_cluster, why_not_kubernetes

    reason = await why_not_kubernetes(settings)
    if reason is not None:
        advice = "Correct KUBECONFIG, CODEHUB_KUBERNETES_CONTEXT or _NAMESPACE, or the role that CodeHub has there."
        return fail("engine", reason, advice)
    return ok("engine", await describe_cluster(settings))


async def network_isolation(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import open_database
    from codehub.bootstrap.runtimes import isolation_disturbances, missing_network_isolation
    from codehub.bootstrap.services import install_id

    if settings.runtime == "kubernetes":
        return await _network_policies(settings)
    if settings.runtime != "docker":
        return ok("isolation", "not needed: workspaces are processes (CODEHUB_RUNTIME)")
    if settings.docker_isolation != "ours":
        advice = "`codehub doctor --probe` tries from inside whether your own firewall holds."
        return warn("isolation", "left to the operator (CODEHUB_DOCKER_ISOLATION)", advice)
    async with open_database(settings) as database:
        install = await install_id(settings, database)
    missing = await missing_network_isolation(settings, install)
    if missing:
        advice = (
            "A leader puts them up when it begins, and no workspace starts without them; see its log if they stay away."
        )
        return warn("isolation", f"not up: {'; '.join(missing.splitlines()[:3])}", advice)
    disturbed = await isolation_disturbances(settings, install)
    if disturbed:
        advice = "They were put back; what removes them? If workspaces lost the outside, restart the Docker engine."
        return warn("isolation", f"up now; {len(disturbed)} times not, the last: {disturbed[-1]}", advice)
    return ok("isolation", "workspaces are kept from this machine, private networks, metadata and each other")


async def _network_policies(settings: "Settings") -> Finding:
    from codehub.bootstrap.kubernetes import missing_network_policies
    from codehub.bootstrap.operator import open_database
    from codehub.bootstrap.services import install_id

    async with open_database(settings) as database:
        missing = await missing_network_policies(settings, await install_id(settings, database))
    if missing:
        advice = (
            "A leader makes them when it begins, and no workspace starts without them; see its log if they stay away."
        )
        return warn("isolation", f"network policies are not up: {', '.join(missing)}", advice)
    return ok("isolation", "network policies are up; `codehub doctor --probe` tries whether the cluster enforces them")


async def disk_limits(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import open_database
    from codehub.bootstrap.runtimes import why_no_disk_limits
    from codehub.bootstrap.services import install_id

    async with open_database(settings) as database:
        install = await install_id(settings, database)
        limited = [found.name for found in await database.templates().all() if found.disk_bytes]
    if settings.runtime == "kubernetes":
        return ok("disk limits", "a claim has the size that its template says; whether it holds is its storage class's")
    if settings.runtime == "docker":
        reason = await why_no_disk_limits(settings, install)
        advice = "Keep the engine's data on xfs mounted with pquota, or on ext4 with prjquota."
    else:
        reason, advice = "a home is a directory here", "Leave the limit out, or run workspaces in Docker."
    if not reason:
        return ok("disk limits", "the engine holds homes to what their templates say")
    if not limited:
        return ok("disk limits", f"no template has one; this installation could not enforce it: {reason}")
    seen = f"not enforced here, because {reason}; templates that have one: {', '.join(limited[:5])}"
    return warn("disk limits", seen, advice)


async def sandbox(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import find_sandbox_tools
    from codehub.bootstrap.runtimes import isolation

    if settings.runtime != "process":
        return ok("sandbox", "not needed: workspaces are containers")
    seen, advice = isolation(await asyncio.to_thread(find_sandbox_tools))
    return warn("sandbox", seen, advice) if advice else ok("sandbox", seen)


async def ide(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import installed_ide
    from codehub.bootstrap.runtimes import ide_cache_dir

    if settings.runtime != "process":
        return ok("ide", "not needed: it is in the workspaces' image")
    if settings.ide_command or settings.ide == "jupyterlab":
        program = settings.ide_command.split()[0] if settings.ide_command else "jupyter-lab"
        named = "CODEHUB_IDE_COMMAND" if settings.ide_command else "CODEHUB_IDE"
        if shutil.which(program) is None:
            return fail("ide", f"{program} is not there", f"Install it, or correct {named}.")
        return ok("ide", f"{program} ({named})")
    found = installed_ide(settings)
    if found is not None:
        return ok("ide", f"code-server {found.version} in {found.directory}")
    place = ide_cache_dir(settings)
    return warn("ide", f"not installed yet in {place}", "The first start fetches it; or now: `codehub ide install`.")


async def secrets(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import open_database
    from codehub.bootstrap.secrets import is_open_to_others, key_file, open_keyring
    from codehub.usecases.key_rotation import examine

    keyring, path = open_keyring(settings), key_file(settings)
    async with open_database(settings) as database:
        report = await examine(database.secrets(), keyring)
    if report.lost:
        keys = ", ".join(f"{number} with {key}" for key, number in report.lost.items())
        seen = (
            f"{sum(report.lost.values())} of {report.count} secrets were encrypted with a key that is not here: {keys}"
        )
        advice = "Add that key to CODEHUB_SECRETS_KEYS, or let people set them again; workspaces start without them."
        return fail("secrets", seen, advice)
    if report.damaged:
        some = ", ".join(report.damaged[:5])
        return fail("secrets", f"{len(report.damaged)} cannot be opened: {some}", "Let their owners set them again.")
    if not keyring.key_ids:
        advice = "Set CODEHUB_SECRETS_KEYS to what `codehub admin secrets new-key` prints."
        return warn("secrets", "there is no key, so nobody can keep any", advice)
    if path is not None and is_open_to_others(path):
        return fail("secrets", f"others may read {path}", f"chmod 600 {path}, then rotate the key.")
    if report.older:
        seen = f"{report.older} of {report.count} are encrypted with an older key"
        return warn("secrets", seen, "`codehub admin secrets rotate`, then take the older key away.")
    return ok("secrets", f"{report.count} are kept, encrypted with the key {keyring.key_ids[0]}")


async def sudo(settings: "Settings") -> Finding:
    """Which templates let people become root in their container, and whether that is the machine's root."""
    from codehub.bootstrap.operator import open_database
    from codehub.bootstrap.runtimes import engine_remaps_users

    async with open_database(settings) as database:
        given = [found.name for found in await database.templates().all() if found.sudo]
    if not given:
        return ok("sudo", "no template gives it")
    named = f"templates that give it: {', '.join(given[:5])}"
    if settings.runtime == "kubernetes":
        advice = (
            "Their pods need a namespace that Pod Security does not hold to `restricted`; root inside is the node's."
        )
        return warn("sudo", named, advice)
    if settings.runtime != "docker":
        return fail("sudo", named, "Their workspaces do not start as processes: take it out, or use Docker.")
    if await engine_remaps_users(settings):
        return ok("sudo", f"{named}; the engine gives containers user ids of their own")
    advice = "Give the engine `userns-remap`, so that root inside is nobody outside; see docs/THREATS.md."
    return warn("sudo", f"{named}; root inside has root's user id on the engine's machine", advice)


async def certificate_authorities(settings: "Settings") -> Finding:
    """Whether the operator's own authorities are valid now."""
    if settings.ca_bundle is None:
        return ok("authorities", "workspaces trust what their system trusts (CODEHUB_CA_BUNDLE is unset)")
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.load_verify_locations(cafile=settings.ca_bundle)
    now, authorities = datetime.now(UTC).timestamp(), found.get_ca_certs()
    expired = [one for one in authorities if ssl.cert_time_to_seconds(str(one["notAfter"])) < now]
    seen = f"workspaces trust {len(authorities)} of {settings.ca_bundle} besides their system's"
    if not expired:
        return ok("authorities", seen)
    return warn("authorities", f"{seen}; {len(expired)} of them expired", "Put their successors into the file.")


async def extension_gallery(settings: "Settings") -> Finding:
    """Which gallery VS Code uses, and whether this machine can reach it."""
    if settings.extension_gallery is None:
        return ok("gallery", "Open VSX (CODEHUB_EXTENSION_GALLERY is unset)")
    address = json.loads(settings.extension_gallery)["serviceUrl"]
    host, port = urlsplit(address).hostname, urlsplit(address).port or (443 if address.startswith("https") else 80)
    try:
        async with asyncio.timeout(GALLERY_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        seen = f"{address} does not answer from here: {error or 'no answer in time'}"
        return warn("gallery", seen, "Start it, or correct CODEHUB_EXTENSION_GALLERY; workspaces must reach it.")
    writer.close()
    return ok("gallery", f"{address} answers")


async def leader(settings: "Settings") -> Finding:
    from codehub.bootstrap.operator import open_database
    from codehub.bootstrap.services import leader_of

    async with open_database(settings) as database:
        try:
            found = await leader_of(database)
        except CodeHubError as error:
            return fail("controller", str(error), "Mend PostgreSQL first.")
    if found is None:
        return fail("controller", "nobody leads", "Start `codehub up`, or a `codehub coordinator`.")
    seen = f"{found.holder} leads, epoch {found.epoch}, heard {found.age_seconds:.1f} s ago"
    if found.is_silent:
        return fail("controller", seen, "It is dead or cut off, and no other stands by: start one, and see its log.")
    return ok("controller", seen)


async def last_pass(settings: "Settings") -> Finding:
    address = settings.coordinator_status_address
    if address is None:
        return ok("last pass", "not looked at: COORDINATOR_STATUS_ADDRESS is not set")
    answer = await _ask(f"http://{address}/readyz")
    if isinstance(answer, str):
        return warn("last pass", answer, "Is the coordinator on another machine? Ask there.")
    status, body = answer
    seen = f"the coordinator here saw everything {body.get('last_pass_age_seconds') or 0:.0f} s ago"
    if not body.get("leads"):
        return ok("last pass", "the coordinator here stands by")
    return ok("last pass", seen) if status == 200 else fail("last pass", seen, "See the coordinator's log.")


async def api(settings: "Settings") -> Finding:
    address = settings.api_upstream or settings.api_address
    answer = await _ask(f"http://{address}/readyz")
    if isinstance(answer, str):
        named = "CODEHUB_API_UPSTREAM" if settings.api_upstream else "CODEHUB_API_ADDRESS"
        return fail("api", answer, f"Start `codehub up` or `codehub api`; {named} says where.")
    status, body = answer
    bad = [check["name"] for check in body.get("checks", []) if not check["ok"]]
    seen = f"http://{address} answers" + (f"; without {', '.join(bad)}" if bad else "")
    if status != 200:
        return fail("api", seen, "It cannot work without that.")
    return warn("api", seen, "It works on without; see the lines of those above.") if bad else ok("api", seen)


async def names(settings: "Settings") -> Finding:
    if ".localhost" not in settings.workspace_url:
        return ok("names", "workspaces have addresses of your own")
    try:
        found = await asyncio.get_running_loop().getaddrinfo("x.localhost", None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    if any(address[4][0] in ("127.0.0.1", "::1") for address in found):
        return ok("names", "x.localhost is this machine")
    advice = "Chromium, Firefox and curl know it by themselves; Safari does not, nor do tools that ask the resolver."
    return warn("names", "this machine's resolver does not know x.localhost", advice)


async def trusted_proxies(settings: "Settings") -> Finding:
    """Whether the proxy that ends TLS is trusted: CodeHub's own speaks plain HTTP, so behind https there is one."""
    if not (settings.public_url or "").startswith("https:"):
        return ok("who asks", "no proxy before the front door is known of (CODEHUB_PUBLIC_URL is not https)")
    if settings.proxy_trusted_proxies is None:
        seen = "nobody's word is taken on who asks, so all behind the TLS proxy count as one address"
        advice = "Name it in CODEHUB_PROXY_TRUSTED_PROXIES, or somebody's wrong passwords make everybody wait."
        return warn("who asks", seen, advice)
    return ok("who asks", f"the word of {settings.proxy_trusted_proxies} is taken on it")


async def _ask(url: str) -> tuple[int, dict[str, Any]] | str:
    import httpx

    try:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            answer = await client.get(url)
            found = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        return f"{url} does not answer ({type(error).__name__})"
    return answer.status_code, found if isinstance(found, dict) else {}


MACHINE_CHECKS: dict[str, DoctorCheck] = {
    "settings": settings_names,
    "data directory": data_directory,
    "disk": disk,
    "open files": open_files,
    "engine": engine,
    "sandbox": sandbox,
    "ide": ide,
    "authorities": certificate_authorities,
    "gallery": extension_gallery,
    "names": names,
    "who asks": trusted_proxies,
}
"""Checks of this machine, which can be made before anything runs."""

SERVICE_CHECKS: dict[str, DoctorCheck] = {
    "postgresql": postgresql,
    "redis": redis,
    "archives": archive_store,
    "backends": backends,
    "isolation": network_isolation,
    "disk limits": disk_limits,
    "secrets": secrets,
    "sudo": sudo,
    "controller": leader,
    "last pass": last_pass,
    "api": api,
}


def doctor(
    probe: Annotated[
        bool, typer.Option("--probe", help="Also send a throw-away workspace the whole way, and look around in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at everything that this installation needs, and say what to do about what is missing.

    It looks at the `codehub up` that runs on this machine, or at what the environment names. `--probe` starts,
    archives, restores and deletes a workspace through the real controller, and tries from inside to reach what it
    must not.

    Exit code 0: all is well, or there are warnings. 1: something is missing or broken.

    Examples: `codehub doctor` · `codehub doctor --probe` · `codehub doctor --json`
    """
    findings = asyncio.run(_examine(probe=probe, quiet=as_json))
    if as_json:
        print_json({"ok": not failed(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    if failed(findings):
        raise typer.Exit(FAILED)


async def _examine(*, probe: bool, quiet: bool) -> list[Finding]:
    from codehub.settings import SettingsError, load_settings

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not quiet and sys.stderr.isatty():
            print(f"{finding.verdict:4}  {finding.name}", file=sys.stderr, flush=True)

    findings: list[Finding] = []
    try:
        settings = operators_settings()
    except SettingsError as missing:
        advice = "Start `codehub up`, or set what it names."
        tell(fail("installation", "; ".join(str(missing).splitlines()), advice))
        try:
            settings = load_settings(database_url="postgresql://none", redis_url="redis://none")
        except SettingsError:
            return findings
        probe, checks = False, MACHINE_CHECKS
    else:
        checks = MACHINE_CHECKS | SERVICE_CHECKS
    for name, check in checks.items():
        tell(await run_check(name, check, settings))
    if probe:
        await _run_probe(settings, findings, tell)
    return findings


async def run_check(name: str, check: DoctorCheck, settings: "Settings") -> Finding:
    from codehub.settings import SettingsError

    try:
        return await check(settings)
    except (CodeHubError, SettingsError, OSError) as error:
        return fail(name, str(error) or type(error).__name__, "See the message.")


async def _run_probe(settings: "Settings", findings: list[Finding], tell: Tell) -> None:
    from codehub.bootstrap.operator import probe
    from codehub.bootstrap.services import open_services

    needed = {"postgresql", "redis", "archives", "controller"}
    if broken := [f.name for f in findings if f.verdict is Verdict.FAIL and f.name in needed]:
        tell(fail("probe", f"not begun: {', '.join(broken)} first", "Mend that, then run it again."))
        return
    async with open_services(settings) as services:
        await (await probe(services)).run(tell)


def _show(findings: list[Finding]) -> None:
    rows = [(Text(f.verdict.value, COLOURS[f.verdict]), f.name, f.seen, f.advice) for f in findings]
    table(("", "what", "seen", "what to do"), rows, empty="Nothing was looked at.")
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    print(f"\n{counts[Verdict.OK]} ok, {counts[Verdict.WARN]} warnings, {counts[Verdict.FAIL]} failures")
