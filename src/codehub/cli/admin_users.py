"""Accounts, for an admin who is signed in: made, changed and shut, and who changed what."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, Json, chosen
from codehub.cli.login import own_password
from codehub.cli.output import FAILED, USAGE, ClientFailed
from codehub.domain.identity import Role

users = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Who may sign in here. USER is a username, an id, or the beginning of an id.

    Who may come in, and as what, is changed with your own password each time, whatever token you are signed in with: it
    is asked for, or read from a pipe with `--own-password-stdin`.

    Example: `codehub admin users create ann`""",
)

Who = Annotated[str, typer.Argument(metavar="USER", help="Username, id or beginning of an id.")]
OwnPassword = Annotated[
    bool, typer.Option("--own-password-stdin", help="Read your own password from a pipe, as its first line.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(users, name="users")
    app.command("audit")(audit)


@users.command("ls")
def list_users(as_json: AsJson = False) -> None:
    """List everybody.

    Example: `codehub admin users ls`
    """
    with Client(contexts.in_use()) as client:
        found = list(client.pages("/admin/users"))
    rows = [
        (
            user["username"],
            user["id"][:8],
            user["role"],
            "disabled" if user["disabled_at"] else "",
            "" if user["max_running"] is None else user["max_running"],
            user["issuer"] or ("password" if user["has_password"] else "none"),
        )
        for user in found
    ]
    output.listing(
        found, ("USER", "ID", "ROLE", "", "LIMIT", "SIGNS IN BY"), rows, empty="Nobody yet.", as_json=as_json
    )


@users.command("create")
def create(
    username: Annotated[str, typer.Argument(help="What they sign in as.")],
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.USER,
    max_running: Annotated[int | None, typer.Option(min=0, help="Their own limit of running workspaces.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read their password from a pipe, after your own if that is read.")
    ] = False,
    own_password_stdin: OwnPassword = False,
    as_json: AsJson = False,
) -> None:
    """Make an account. Without a password one is made up and printed once, on stdout alone.

    Example: `codehub admin users create ann --max-running 5`
    """
    body: Json = {"username": username, "role": role.value, "max_running": max_running}
    with _own_session(own_password_stdin) as (client, cookie):
        if password_stdin:
            body["password"] = sys.stdin.readline().rstrip("\r\n")
        made = client.with_session(cookie, "POST", "/admin/users", body)
    _tell(made, f"{made['username']} ({made['role']}) may sign in.", as_json=as_json)


@users.command("disable")
def disable(user: Who, own_password_stdin: OwnPassword = False, as_json: AsJson = False) -> None:
    """Shut somebody out at once: sessions and tokens end. Their workspaces and data stay.

    Example: `codehub admin users disable ann`
    """
    _change(user, {"disabled": True}, "is shut out.", own_password_stdin, as_json=as_json)


@users.command("enable")
def enable(user: Who, own_password_stdin: OwnPassword = False, as_json: AsJson = False) -> None:
    """Let somebody in again.

    Example: `codehub admin users enable ann`
    """
    _change(user, {"disabled": False}, "may sign in.", own_password_stdin, as_json=as_json)


@users.command("role")
def role(
    user: Who,
    new_role: Annotated[Role, typer.Argument(metavar="ROLE")],
    own_password_stdin: OwnPassword = False,
    as_json: AsJson = False,
) -> None:
    """Make somebody an admin, or no longer. There is always one left.

    Example: `codehub admin users role ann admin`
    """
    _change(user, {"role": new_role.value}, f"is {new_role.value} now.", own_password_stdin, as_json=as_json)


@users.command("reset-password")
def reset_password(user: Who, own_password_stdin: OwnPassword = False, as_json: AsJson = False) -> None:
    """Give somebody a new password, printed once on stdout. The old one, their sessions and their tokens end.

    Example: `codehub admin users reset-password ann`
    """
    _change(user, {"reset_password": True}, "has a new password.", own_password_stdin, as_json=as_json)


@users.command("limit")
def limit(
    user: Who,
    max_running: Annotated[str, typer.Argument(metavar="NUMBER", help="Or `default`: the installation's.")],
    as_json: AsJson = False,
) -> None:
    """How many workspaces of somebody may run at once.

    Example: `codehub admin users limit ann 5`
    """
    if max_running != "default" and not (max_running.isascii() and max_running.isdecimal()):
        raise ClientFailed(f"{max_running!r} is neither a number nor `default`.", USAGE)
    number = None if max_running == "default" else int(max_running)
    said = "has the installation's limit." if number is None else f"may run {number} at once."
    with Client(contexts.in_use()) as client:
        changed = client.patch(f"/admin/users/{_found(client, user)['id']}", {"max_running": number})
    _tell(changed, f"{changed['username']} {said}", as_json=as_json)


def audit(
    most: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many of the newest.")] = 30,
    actor: Annotated[str | None, typer.Option(help="Only what this person or robot did.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only what was done to this, such as `workspace:ID`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Who changed what, from where; the newest last.

    Example: `codehub admin audit -n 100 --actor ann`
    """
    with Client(contexts.in_use()) as client:
        found = list(client.pages("/admin/audit", most=most, actor=actor, subject=subject))[::-1]
    rows = [
        (e["at"][:19].replace("T", " "), e["actor"], e["address"], e["action"], e["subject"], _details(e["details"]))
        for e in found
    ]
    output.listing(
        found, ("AT (UTC)", "WHO", "FROM", "DID", "TO", "DETAILS"), rows, empty="Nothing found.", as_json=as_json
    )


def _details(details: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in details.items())


@contextmanager
def _own_session(from_stdin: bool) -> Iterator[tuple[Client, str]]:
    """A client, and the cookie of a session that was opened with one's own password for this alone."""
    context = contexts.in_use()
    with Client(context) as client:
        session = client.get("/session")
        if "admin" not in session["scopes"]:
            raise ClientFailed("Only an admin may do that. Ask one of them, or sign in as one.", FAILED)
        if not session["user"]["has_password"]:
            raise ClientFailed("You have no password here: change accounts on the dashboard.", FAILED)
        password = own_password(from_stdin=from_stdin, otherwise="--own-password-stdin")
    username = session["user"]["username"]
    with Client(contexts.Context(context.url)) as client, client.freshly_signed_in(username, password) as cookie:
        yield client, cookie


def _change(wanted: str, body: Json, said: str, from_stdin: bool, *, as_json: bool) -> None:
    with Client(contexts.in_use()) as client:
        user = _found(client, wanted)
    with _own_session(from_stdin) as (client, cookie):
        changed = client.with_session(cookie, "PATCH", f"/admin/users/{user['id']}", body)
    _tell(changed, f"{changed['username']} {said}", as_json=as_json)


def _found(client: Client, wanted: str) -> Json:
    everybody = list(client.pages("/admin/users"))
    return chosen(everybody, wanted, "user", "codehub admin users ls", name="username")


def _tell(user: Json, said: str, *, as_json: bool) -> None:
    """Prints what changed. A new password alone goes to stdout, so that it can be piped to where it belongs."""
    if as_json:
        output.print_json(user)
    elif user["password"] is None:
        output.say(said)
    else:
        output.note(f"{said} The password is shown only now:")
        print(user["password"])
