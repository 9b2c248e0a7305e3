"""`codehub admin backends`: which runtime and which archive store are ours, and the way out after a real move."""

from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli.admin import with_services
from codehub.cli.exits import FAILED
from codehub.cli.lookup import AsJson, Yes
from codehub.cli.present import as_json as print_json
from codehub.cli.present import table
from codehub.domain.backend_identity import Backend

if TYPE_CHECKING:
    from codehub.bootstrap.services import Services
    from codehub.usecases.findings import BackendSeen

CONSEQUENCES = {
    Backend.RUNTIME: "The leader adopts the runtime that it finds then. Every home that is not in it counts as lost",
    Backend.ARCHIVES: "The leader adopts the store that it finds then. Every archive that is not in it counts as lost",
}


def register(app: typer.Typer) -> None:
    app.command()(backends)


def backends(
    forget: Annotated[
        Backend | None, typer.Option(help="It was moved on purpose: let the leader adopt what it finds.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show which runtime and which archive store this installation has, and whether they are what is found from here.

    The first leader remembers both. Another one, such as an empty directory where a disk was mounted, is not believed:
    nothing is done there until the right one is back. Exit code 1 if one is another or does not answer.

    Example: `codehub admin backends`

    Example: `codehub admin backends --forget runtime`
    """
    if forget is not None:
        if not yes:
            question = f"{CONSEQUENCES[forget]}. Forget which {forget} is ours?"
            typer.confirm(question, abort=True, err=True)
        forgotten = with_services(lambda services: _forget(services, forget))
        print(f"Forgotten: the leader adopts the {forget} that it finds." if forgotten else "Nothing was remembered.")
        return
    seen = with_services(_seen)
    if as_json:
        print_json([one.to_json() for one in seen])
    else:
        _show(seen)
    if any(one.trouble for one in seen):
        raise typer.Exit(FAILED)


async def _seen(services: "Services") -> "list[BackendSeen]":
    from codehub.usecases.findings import backends_seen

    return await backends_seen(services.database.backend_identities(), services.runtime, services.archives)


async def _forget(services: "Services", backend: Backend) -> bool:
    from codehub.ports.stores import Actor

    forgotten = await services.database.backend_identities().forget(backend)
    if forgotten:
        await services.database.audit().append(Actor("operator"), "forget_backend", f"backend:{backend.value}")
    return forgotten


def _show(seen: "list[BackendSeen]") -> None:
    rows = [
        (
            one.backend.value,
            one.remembered.identity if one.remembered else "none yet",
            f"{one.remembered.since:%Y-%m-%d %H:%M}" if one.remembered else "",
            "no answer" if one.silence else one.found or "no mark",
        )
        for one in seen
    ]
    table(("backend", "ours", "since", "found"), rows, empty="")
    for one in seen:
        if one.trouble:
            print(f"\n{one.backend}: {one.trouble}")
