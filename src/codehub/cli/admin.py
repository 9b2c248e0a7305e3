"""What an operator does by hand, beside the database: who leads, mend a workspace, see what the collector would take.

What an admin does as a person, with a token and over HTTP, is in admin_people.py and admin_fleet.py.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer

from codehub.cli.exits import FAILED
from codehub.domain.workspace import RecoverAction

if TYPE_CHECKING:
    from codehub.bootstrap import Services

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Operate this installation. `leader`, `recover` and `gc` talk to the database itself (CODEHUB_DATABASE_URL,
    or a `codehub up` on this machine); the others ask the API, as the admin you are signed in as.

    Examples: `codehub admin leader` · `codehub admin users create ann`""",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]


def _with_services(work: "Callable[[Services], Awaitable[T]]") -> T:
    from codehub.bootstrap import open_services
    from codehub.cli.running import operators_settings

    async def run() -> T:
        async with open_services(operators_settings()) as services:
            return await work(services)

    return asyncio.run(run())


@app.command()
def leader(as_json: AsJson = False) -> None:
    """Say which coordinator leads, in which epoch, and when it last said so. Exit code 1 if none does.

    Example: `codehub admin leader --json`
    """
    found = _with_services(lambda services: services.leader())
    alive = found is not None and found.age_seconds < 4
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
    archive: Annotated[str | None, typer.Option(help="The restore point's key, for use_archive.")] = None,
) -> None:
    """Ask the controller to bring a workspace out of ERROR.

    - `retry`: the cause is mended, try again
    - `use_archive`: go back to the newest readable restore point, or to `--archive`
    - `forget_archive`: the archive is lost for good, go on without it
    - `remove_container`: end a container that should not be there
    - `empty_home`: begin with an empty home; restore points stay

    Example: `codehub admin recover 6f1c… --action use_archive`
    """
    from codehub.ports.stores import Actor

    row = _with_services(lambda services: services.wishes.recover(workspace, action, Actor("admin"), archive))
    print(f"Asked: {row.name} will recover by {action}. See its events for what follows.")


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report; required in this release.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report what the garbage collector would take, and why it would refuse to.

    Example: `codehub admin gc --dry-run`
    """
    if not dry_run:
        raise typer.BadParameter("this release only reports: add --dry-run")
    report = _with_services(lambda services: services.collector.report())
    if as_json:
        print(json.dumps(asdict(report)))
        return
    print(
        f"{report.objects} objects and {report.volumes} volumes seen; {len(report.candidates)} are protected by nobody."
    )
    for candidate in report.candidates:
        print(f"  {candidate.kind:7} {candidate.name}  {candidate.bytes} bytes  {candidate.why}")
    if report.refusal:
        print(f"A sweep would be refused. {report.refusal}")
