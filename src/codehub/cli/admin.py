"""What an operator does by hand, beside the database: who leads, mend a workspace, see what the collector would take.

What an admin does as a person, with a token and over HTTP, is in admin_people.py and admin_fleet.py.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from codehub.cli.exits import FAILED
from codehub.cli.gc_report import gc_report
from codehub.cli.lookup import AsJson
from codehub.domain.gc_safety import WAIVABLE
from codehub.domain.workspace import RecoverAction
from codehub.ports.collector import REQUEST_LIVES_SECONDS

if TYPE_CHECKING:
    from codehub.bootstrap.services import Services

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Operate this installation.

    `leader`, `backends`, `recover`, `gc`, `backup`, `restore` and `first-admin` talk to the database itself
    (CODEHUB_DATABASE_URL, or a `codehub up` on this machine); the others ask the API, as the admin you are signed in
    as.

    Examples: `codehub admin leader` · `codehub admin users create ann`""",
)


def with_services(work: "Callable[[Services], Awaitable[T]]") -> T:
    from codehub.bootstrap.services import open_services
    from codehub.cli.local_instance import operators_settings

    async def run() -> T:
        async with open_services(operators_settings()) as services:
            return await work(services)

    return asyncio.run(run())


@app.command()
def leader(as_json: AsJson = False) -> None:
    """Say which coordinator leads, in which epoch, and when it last said so. Exit code 1 if none does.

    Example: `codehub admin leader --json`
    """
    found = with_services(lambda services: services.leader())
    alive = found is not None and not found.is_silent
    if as_json:
        print(
            json.dumps(
                {
                    "leader": None
                    if found is None
                    else {
                        "holder": found.holder,
                        "epoch": found.epoch,
                        "renewed_at": found.renewed_at.isoformat(),
                        "age_seconds": round(found.age_seconds, 3),
                    },
                    "alive": alive,
                }
            )
        )
    elif found is None:
        print("Nobody leads. Start one with `codehub coordinator`.")
    else:
        state = "leads" if alive else "led, and has gone silent"
        print(f"{found.holder} {state}: epoch {found.epoch}, renewed {found.age_seconds:.1f} s ago.")
    if not alive:
        raise typer.Exit(FAILED)


@app.command()
def recover(
    workspace: Annotated[UUID, typer.Argument(help="The workspace's id.")],
    action: Annotated[RecoverAction, typer.Option(help="How to recover.")] = RecoverAction.RETRY,
) -> None:
    """Ask the controller to bring a workspace out of ERROR.

    - `retry`: the cause is mended, try again
    - `use_archive`: go back to the newest readable restore point, but never to the one whose restore has just failed;
      `codehub ws recover --archive` goes to any
    - `forget_archive`: the archive is lost for good, go on without it
    - `remove_container`: end a container that should not be there
    - `empty_home`: begin with an empty home; restore points stay

    Example: `codehub admin recover 6f1c… --action use_archive`
    """
    from codehub.ports.stores import Actor

    row = with_services(lambda services: services.wishes.recover(workspace, action, Actor("admin")))
    print(f"Asked: {row.name} will recover by {action}. See its events for what follows.")


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report; nothing is marked or swept.")] = False,
    force_over: Annotated[
        list[str] | None,
        typer.Option("--force-over", metavar="NAME", help=f"Waive a check: {', '.join(WAIVABLE)}. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Collect garbage now, or only say what would be collected.

    The coordinator that leads does it: what was garbage for the whole grace period and still is goes. A sweep that
    looks catastrophic is refused, and says so; exit code 1.

    Example: `codehub admin gc --dry-run`

    Example: `codehub admin gc --force-over too-many`
    """
    waived = force_over or []
    unknown = [name for name in waived if name not in WAIVABLE]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} cannot be waived; these can: {', '.join(WAIVABLE)}")
    report = with_services(lambda services: _dry_run(services, waived) if dry_run else _collect(services, waived))
    print(json.dumps(report) if as_json else "\n".join(gc_report(report, dry_run=dry_run)))
    if report.get("error") or (report["refusals"] and not dry_run):
        raise typer.Exit(FAILED)


async def _dry_run(services: "Services", waived: list[str]) -> Mapping[str, Any]:
    return (await services.gc_scanner.report(waived)).to_json()


async def _collect(services: "Services", waived: list[str]) -> Mapping[str, Any]:
    """The leader alone sweeps: ask it, and wait for its report."""
    leader = await services.leader()
    if leader is None or leader.is_silent:
        return {"error": "nobody leads, so nobody can sweep; start one with `codehub coordinator`"}
    request = await services.collector.ask("admin", waived)
    for _ in range(REQUEST_LIVES_SECONDS):
        found = await services.collector.request(request)
        if found is not None and found.report is not None:
            return found.report
        await asyncio.sleep(1)
    return {"error": "the leader did not take the request; see its log. Nothing was changed by this command"}
