"""`codehub up`: a whole CodeHub on this machine, from one command to one address."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codehub.cli.local_instance import announce, running_workspaces, stop_all_workspaces
from codehub.cli.serve import check_port_is_free, supervise_ssh_gateway, until_signalled, worker_supervisor

if TYPE_CHECKING:
    from codehub.bootstrap.services import EmbeddedDatabases, Services
    from codehub.settings import Settings

ADMIN = "admin"
PORT = 8000
SSH_PORT = 2222


def up(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where everything is kept.", show_default="~/.local/share/codehub")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen, on this machine alone.")] = PORT,
    ssh_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Where SSH clients reach workspaces, on this machine alone. 0: nowhere."),
    ] = SSH_PORT,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="docker|kubernetes|process", help="What runs the workspaces.", show_default="docker if it can"
        ),
    ] = None,
    stop_all: Annotated[
        bool, typer.Option("--stop-all", help="Stop every workspace of this data directory instead, and end.")
    ] = False,
) -> None:
    """Run everything on this machine: PostgreSQL and Redis, coordinator, API, front door and SSH gateway.

    The first time it installs the IDE and shows the admin's password. Ctrl-C stops it; workspaces that run go on, and
    running it again finds everything as it was. `--stop-all` stops those, whether a `codehub up` runs or not, as
    `codehub ws stop` does.

    Examples: `codehub up` · `codehub up --port 9000 --data-dir /srv/codehub` · `codehub up --runtime process` ·
    `codehub up --runtime kubernetes` · `codehub up --stop-all`
    """
    from codehub.bootstrap.runtimes import data_dir as data_dir_of
    from codehub.settings import load_settings

    given = _given_settings(data_dir, port, ssh_port, runtime)
    # Everything else is checked before anything is started or made.
    settings = load_settings(database_url="postgresql://ours", redis_url="unix://ours", **given)
    directory = data_dir_of(settings)
    if stop_all:
        _stop_all(directory)
    else:
        asyncio.run(until_signalled(lambda: _run(settings, given, directory, port, runtime)))


def _given_settings(data_dir: Path | None, port: int, ssh_port: int, runtime: str | None) -> dict[str, object]:
    """The settings that the options name, and those that are otherwise than for a deployment of several processes."""
    given: dict[str, object] = {"proxy_address": f"127.0.0.1:{port}"}
    if ssh_port:
        given["ssh_address"] = f"127.0.0.1:{ssh_port}"
    if data_dir is not None:
        given["data_dir"] = data_dir
    if runtime is not None:
        given["runtime"] = runtime
    if not os.environ.get("CODEHUB_WORKSPACE_URL"):
        given["workspace_url"] = f"http://{{slug}}.localhost:{port}/"
    if not os.environ.get("CODEHUB_LOG_LEVEL"):
        given["log_level"] = "warning"  # a person watches
    return given


def _stop_all(directory: Path) -> None:
    from codehub.settings import SettingsError

    if not directory.is_dir():
        raise SettingsError(f"there is no {directory}: nothing was ever started there")
    asyncio.run(until_signalled(lambda: stop_all_workspaces(directory)))


async def _run(
    settings: "Settings", given: Mapping[str, object], directory: Path, port: int, asked_runtime: str | None
) -> None:
    from codehub.bootstrap.runtimes import record_runtime
    from codehub.bootstrap.secrets import ensure_key
    from codehub.bootstrap.services import embedded_databases
    from codehub.bootstrap.services import migrate as migrate_schema
    from codehub.settings import load_settings

    _must_be_free(port)
    runtime = await _runtime(settings, asked_runtime, directory)
    print(f"Starting PostgreSQL and Redis in {directory} …", flush=True)
    async with embedded_databases(directory) as databases:
        await migrate_schema(databases.addresses["database_url"])
        record_runtime(directory, runtime)
        ensure_key(settings)
        address = f"127.0.0.1:{port}"
        found_by = {"api_address": address, "proxy_address": address, "runtime": runtime}
        with (
            announce(directory, databases.addresses | found_by),
            tempfile.TemporaryDirectory(prefix="codehub-") as private,
        ):
            place = {**databases.addresses, **given, "runtime": runtime, "api_upstream": f"unix:{private}/api"}
            await _serve(load_settings(**place), place, databases, port)


async def _runtime(settings: "Settings", asked: str | None, directory: Path) -> str:
    """Chooses the runtime, and prints why in one line."""
    from codehub.bootstrap.runtimes import choose_runtime

    chosen, why = await choose_runtime(settings, asked or os.environ.get("CODEHUB_RUNTIME") or None, directory)
    print(f"{why[0].upper()}{why[1:]}.", flush=True)
    return chosen


def _must_be_free(port: int) -> None:
    """Refuses a port that is in use, before anything is started."""
    from codehub.settings import SettingsError

    try:
        check_port_is_free("127.0.0.1", port)
    except OSError as error:
        raise SettingsError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from error


async def _serve(settings: "Settings", place: Mapping[str, object], databases: "EmbeddedDatabases", port: int) -> None:
    from codehub.api.server import listen_on_unix_socket, serve
    from codehub.bootstrap.api import open_api
    from codehub.bootstrap.proxy import api_endpoint
    from codehub.bootstrap.runtimes import install_ide
    from codehub.bootstrap.services import open_services, start_logging
    from codehub.cli.ide import progress_bar
    from codehub.settings import environment_name

    start_logging(settings)
    with progress_bar() as progress:
        installed = await install_ide(settings, progress)
    for note in installed.notes if installed else ():
        print(f"Note: {note}", flush=True)
    async with open_services(settings) as services, open_api(services) as app:
        await _check_isolation(services)
        password = await services.ensure_admin(ADMIN)
        url = f"http://localhost:{port}"
        environment = {environment_name(name): str(value) for name, value in place.items()}
        ssh = _ssh_port(place)
        proxy = worker_supervisor("127.0.0.1", port, 1, services.metrics, environment, lambda: _welcome(url, password))
        # Nobody but the front door can reach it there, so what that says of a caller is believed.
        api = listen_on_unix_socket(api_endpoint(settings).socket or "")
        try:
            await _until_one_ends(
                services.coordinator().run(),
                serve(app, api, lambda: None, trusted_proxies="*"),
                proxy.run(),
                *([supervise_ssh_gateway(environment)] if ssh else []),
                databases.until_one_dies(),
            )
        except asyncio.CancelledError:
            await _name_running_workspaces(services)
            raise


def _ssh_port(place: Mapping[str, object]) -> int | None:
    """The port of the SSH gateway; None if none is wanted, or, which is said, another program has it: everything else
    works without."""
    port = int(str(place.get("ssh_address", ":0")).rpartition(":")[2])
    if not port:
        return None
    try:
        check_port_is_free("127.0.0.1", port)
    except OSError as error:
        print(f"No SSH: port {port} cannot be used ({error.strerror}); choose another with --ssh-port.", flush=True)
        return None
    return port


async def _check_isolation(services: "Services") -> None:
    """Says what keeps workspaces apart; refuses to start if nothing does and several people have accounts."""
    from codehub.bootstrap.runtimes import isolation
    from codehub.usecases.users import refuse_several_users

    if services.settings.runtime == "process":
        seen, advice = isolation(await services.processes.sandbox_tools())
        print(f"{seen[0].upper()}{seen[1:]}. {advice}".rstrip(), flush=True)
        if older := await services.database.views().some(await services.processes.started_with_less()):
            names = ", ".join(sorted(f"{owned.workspace.name} ({owned.owner})" for owned in older.values()))
            print(f"With less than that, since they run from before: {names}. Stop and start them.", flush=True)
    await refuse_several_users(services.database.accounts(), services.runtime.isolates)


async def _name_running_workspaces(services: "Services") -> None:
    from codehub.domain.errors import CodeHubError

    try:
        names = await running_workspaces(services)
    except CodeHubError as error:
        print(f"Stopped. Which workspaces go on cannot be told: {error}", flush=True)
        return
    if names:
        some = "workspace goes" if len(names) == 1 else "workspaces go"
        print(f"Stopped. {len(names)} {some} on: {', '.join(names)}.")
        print(f"`{_program()} up --stop-all` stops them; `{_program()} up` finds them as they are.", flush=True)


async def _until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs all of these until one ends, which none should; what one raises ends all."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _welcome(url: str, password: str | None) -> None:
    lines = [f"CodeHub is running. Open {url} in a browser. Ctrl-C stops it."]
    command_line = "There is a command line, too; in another terminal:"
    if password is not None:
        lines += ["", f"  Username: {ADMIN}", f"  Password: {password}", ""]
        command_line = f"This password is shown only now. {command_line}"
    program = _program()
    lines += [command_line, "", f"  {program} login {url} -u {ADMIN}", f"  {program} ws create demo --wait"]
    print("\n".join(lines), flush=True)


def _program() -> str:
    """What to type for this program: its name alone, if the shell finds it by that."""
    ours, found = Path(sys.argv[0]).absolute(), shutil.which("codehub")
    if found is not None and Path(found).resolve() == ours.resolve():
        return "codehub"
    return str(ours.relative_to(Path.cwd())) if ours.is_relative_to(Path.cwd()) else str(ours)
