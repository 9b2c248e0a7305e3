"""`codehub admin`, as an operator beside the database uses it: who leads, recover a workspace, collect garbage, make
the first admin, and say which runtime and archive store are ours.

What an admin does as a person, with a token and over HTTP, is in admin_users.py and admin_workspaces.py.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from codehub.cli.client import AsJson, Yes
from codehub.cli.output import FAILED, print_json, table
from codehub.domain.gc_rules import REQUEST_LIFETIME_SECONDS
from codehub.domain.gc_safety import WAIVABLE
from codehub.domain.naming import Backend
from codehub.domain.workspace import RecoverAction
from codehub.ports.stores import Actor

if TYPE_CHECKING:
    from codehub.bootstrap.services import Services
    from codehub.usecases.self_check import ObservedBackend

T = TypeVar("T")

CONSEQUENCES = {
    Backend.RUNTIME: "The leader adopts the runtime that it finds then. Every home that is not in it counts as lost",
    Backend.ARCHIVES: "The leader adopts the store that it finds then. Every archive that is not in it counts as lost",
}
"""What forgetting a backend means, for the question before it is done."""

_GC_HEADINGS = ("KIND", "NAME", "BYTES", "WHY", "MARKED", "MAY GO")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Operate this installation.

    `leader`, `backends`, `recover`, `gc`, `backup`, `restore`, `secrets` and `first-admin` talk to the database itself
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
        shown = found and {
            "holder": found.holder,
            "epoch": found.epoch,
            "renewed_at": found.renewed_at.isoformat(),
            "age_seconds": round(found.age_seconds, 3),
        }
        print(json.dumps({"leader": shown, "alive": alive}))
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
    row = with_services(lambda services: services.commands.recover(workspace, action, Actor("admin")))
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
    print(json.dumps(report) if as_json else "\n".join(_gc_report(report, dry_run=dry_run)))
    if report.get("error") or (report["refusals"] and not dry_run):
        raise typer.Exit(FAILED)


async def _dry_run(services: "Services", waived: list[str]) -> Mapping[str, Any]:
    return (await services.gc_scanner.report(waived)).to_json()


async def _collect(services: "Services", waived: list[str]) -> Mapping[str, Any]:
    """Asks the leader, which alone sweeps, and waits for its report."""
    leader = await services.leader()
    if leader is None or leader.is_silent:
        return {"error": "nobody leads, so nobody can sweep; start one with `codehub coordinator`"}
    request = await services.collector.ask("admin", waived)
    for _ in range(REQUEST_LIFETIME_SECONDS):
        found = await services.collector.request(request)
        if found is not None and found.report is not None:
            return found.report
        await asyncio.sleep(1)
    return {"error": "the leader did not take the request; see its log. Nothing was changed by this command"}


def _gc_report(report: Mapping[str, Any], *, dry_run: bool) -> Iterator[str]:
    if "error" in report:
        yield f"Nothing was swept: {report['error']}."
        return
    existing = ", ".join(f"{number} {kind}s" for kind, number in report["existing"].items())
    yield f"{existing} seen; {len(report['candidates'])} are protected by nobody."
    if report["strangers"]:
        yield f"{report['strangers']} objects have names that CodeHub does not give; they are never touched."
    yield from _candidates(report["candidates"])
    for refusal in report["refusals"]:
        verb = "would be refused" if dry_run else "was refused"
        yield f"A sweep {verb}. {refusal['check']}: {refusal['sentence']}"
    yield from _how_to_waive([refusal["check"] for refusal in report["refusals"]])
    if not dry_run:
        yield from _swept(report)


def _how_to_waive(checks: list[str]) -> Iterator[str]:
    if checks and all(check in WAIVABLE for check in checks):
        names = " ".join(f"--force-over {check}" for check in dict.fromkeys(checks))
        yield f"Once you have looked at the list, to sweep all the same: codehub admin gc {names}"


def _candidates(candidates: list[Mapping[str, Any]]) -> Iterator[str]:
    if not candidates:
        return
    rows = [_GC_HEADINGS, *(_candidate_row(candidate) for candidate in candidates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_GC_HEADINGS))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _candidate_row(candidate: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        candidate["kind"],
        candidate["name"],
        str(candidate["bytes"]) if candidate["kind"] == "object" else "-",
        candidate["why"],
        _minute(candidate["marked_at"]) or "not yet",
        _minute(candidate["may_go_at"]) or "after its grace",
    )


def _minute(at: str | None) -> str | None:
    return at[:16].replace("T", " ") if at else None


def _swept(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{len(report['swept'])} swept."
    for name, why in report["left"].items():
        yield f"  left: {name}: {why}"
    if report["cap_reached"]:
        yield "The most that one run may sweep was reached; the rest goes with the next."


@app.command("first-admin")
def first_admin(username: Annotated[str, typer.Option(help="The name to sign in with.")] = "admin") -> None:
    """Make the first account of a new installation, an admin, and show its password once. Exit code 1 if there is any.

    Example: `codehub migrate && codehub admin first-admin`
    """
    password = with_services(lambda services: services.ensure_admin(username))
    if password is None:
        print(
            "There are accounts already, so nothing was made. An admin makes more: `codehub admin users create NAME`."
        )
        raise typer.Exit(FAILED)
    print(
        f"Username: {username}\nPassword: {password}\n\nThis password is shown only now. Sign in with `codehub login`."
    )


@app.command()
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
        forgotten = with_services(lambda services: _forget_backend(services, forget))
        print(f"Forgotten: the leader adopts the {forget} that it finds." if forgotten else "Nothing was remembered.")
        return
    seen = with_services(_found_backends)
    if as_json:
        print_json([one.to_json() for one in seen])
    else:
        _show_backends(seen)
    if any(one.trouble for one in seen):
        raise typer.Exit(FAILED)


async def _found_backends(services: "Services") -> "list[ObservedBackend]":
    from codehub.usecases.self_check import observe_backends

    return await observe_backends(services.database.backend_identities(), services.runtime, services.archives)


async def _forget_backend(services: "Services", backend: Backend) -> bool:
    forgotten = await services.database.backend_identities().forget(backend)
    if forgotten:
        await services.database.audit().append(Actor("operator"), "forget_backend", f"backend:{backend.value}")
    return forgotten


def _show_backends(seen: "list[ObservedBackend]") -> None:
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
