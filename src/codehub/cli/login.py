"""Signing in and out from a terminal, and choosing which CodeHub the commands talk to.

A password is asked for once; what is kept is a token that can be revoked.
"""

import platform
import sys
from dataclasses import replace
from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, Json, chosen, segment
from codehub.cli.contexts import Context, Contexts
from codehub.cli.output import USAGE, ClientFailed

context_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Which CodeHub the commands talk to.

    Example: `codehub context use work`, or for one command `CODEHUB_CONTEXT=work codehub ws ls`""",
)

sessions = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The browsers that you are signed in with.

    Example: `codehub sessions ls`""",
)

TOKEN_DAYS = 90


def register(app: typer.Typer) -> None:
    app.command()(login)
    app.command()(logout)
    app.command()(whoami)
    app.command("password")(change_password)
    app.add_typer(context_app, name="context")
    app.add_typer(sessions, name="sessions")


def login(
    url: Annotated[
        str | None, typer.Argument(help="The address of the CodeHub.", show_default="http://localhost:8000")
    ] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", help="Asked for if it is not given.")] = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from a pipe.")] = False,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read a personal token instead.")] = False,
    context: Annotated[str, typer.Option(help="Keep it under this name.")] = "default",
) -> None:
    """Sign in, and stay signed in on this machine.

    Examples:
    - `codehub login`
    - `codehub login https://codehub.example.com -u ann --context work`
    - `pass show codehub | codehub login -u ann --password-stdin`

    """
    known = contexts.load()
    address = contexts.checked_url(url or contexts.in_use().url)
    if contexts.is_unencrypted(address):
        output.note(f"Careful: {address} is not encrypted. Whoever is on the way there can read what you send.")
    if token_stdin:
        fresh = _with_token(address, sys.stdin.readline().strip())
    else:
        username = username or asked("Username", "--username")
        password = sys.stdin.readline().rstrip("\r\n") if password_stdin else asked("Password", "--password-stdin")
        fresh = _with_password(address, username, password)
    contexts.save(known.with_context(context, fresh))
    output.say(f"Signed in to {fresh.url} as {fresh.username}. Try `codehub ws ls`.")
    if context in known.known:
        _revoke_token(known.known[context])


def asked(what: str, otherwise: str, shown: str | None = None) -> str:
    if not sys.stdin.isatty():
        raise ClientFailed(f"There is no terminal to ask for the {what.lower()}: use {otherwise}.", USAGE)
    answer: str = typer.prompt(shown or what, hide_input=what == "Password")
    return answer


def own_password(*, from_stdin: bool, otherwise: str = "--password-stdin") -> str:
    """The password of the signed-in user, asked for where a token is not enough."""
    return sys.stdin.readline().rstrip("\r\n") if from_stdin else asked("Password", otherwise)


def change_password(
    revoke_tokens: Annotated[bool, typer.Option("--revoke-tokens", help="Revoke all your tokens too.")] = False,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the present and the new password, two lines, from a pipe.")
    ] = False,
) -> None:
    """Change your password. Everywhere else you are signed out; this machine stays signed in.

    With `--revoke-tokens` every token of yours ends too; this machine gets a new one.

    Examples:
    - `codehub password`
    - `codehub password --revoke-tokens`

    """
    known, context = contexts.load(), contexts.in_use()
    with Client(context) as client:
        username = client.get("/session")["user"]["username"]
    old = own_password(from_stdin=password_stdin)
    new = sys.stdin.readline().rstrip("\r\n") if password_stdin else _new_password()
    body = {"old_password": old, "new_password": new, "revoke_tokens": revoke_tokens}
    with Client(Context(context.url)) as client, client.freshly_signed_in(username, old) as cookie:
        client.with_session(cookie, "PUT", "/session/password", body)
        if revoke_tokens and context.token_id:
            made = _make_token(client, cookie, client.with_session(cookie, "GET", "/session")["scopes"])
            contexts.save(known.with_context(known.current, replace(context, token=made["token"], token_id=made["id"])))
    output.say("Your password is changed." + (" Your tokens are revoked." if revoke_tokens else ""))


def _new_password() -> str:
    answer: str = typer.prompt("New password", hide_input=True, confirmation_prompt=True)
    return answer


def _make_token(client: Client, cookie: str, scopes: object) -> Json:
    order: Json = {
        "name": f"codehub on {platform.node() or 'a computer'}"[:100],
        "scopes": scopes,
        "expires_in_seconds": TOKEN_DAYS * 86400,
    }
    return client.with_session(cookie, "POST", "/tokens", order)


def _with_token(url: str, token: str) -> Context:
    if not token:
        raise ClientFailed("There was no token to read.", USAGE)
    with Client(Context(url, token=token)) as client:
        return Context(url, client.get("/session")["user"]["username"], token)


def _with_password(url: str, username: str, password: str) -> Context:
    with Client(Context(url)) as client:
        session, cookie = client.sign_in(username, password)
        made = _make_token(client, cookie, session["scopes"])
        client.with_session(cookie, "DELETE", "/session")
    return Context(url, session["user"]["username"], made["token"], made["id"])


def logout(
    context: Annotated[str | None, typer.Option(help="Another context than the current one.")] = None,
) -> None:
    """Take the token back and forget it.

    Example: `codehub logout`
    """
    known = contexts.load()
    name = context or known.current
    if not name:
        print("You are not signed in.")
        return
    left = known.named(name)
    contexts.save(known.without(name))
    _revoke_token(left)
    output.say(f"Signed out of {left.url}.")


def _revoke_token(context: Context) -> None:
    """Revokes a context's token if `codehub login` made it; another may be in use elsewhere."""
    if not context.token_id:
        return
    try:
        with Client(context) as client:
            client.delete(f"/tokens/{segment(context.token_id)}")
    except ClientFailed as failed:
        if failed.problem != "unauthenticated":  # else it has ended already
            output.note(f"The old token could not be taken back at {context.url}: {failed}")


def whoami(as_json: AsJson = False) -> None:
    """Say who you are, where, and what you may do.

    Example: `codehub whoami`
    """
    context = contexts.in_use()
    with Client(context) as client:
        session = client.get("/session")
    if as_json:
        output.print_json(session)
        return
    user = session["user"]
    output.say(f"{user['username']} ({user['role']}) at {context.url}; may: {', '.join(session['scopes'])}.")


@context_app.command("ls")
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; a star marks the current one.

    Example: `codehub context ls`
    """
    known = contexts.load()
    if as_json:
        shown = [
            {"name": n, "url": c.url, "username": c.username, "current": n == known.current}
            for n, c in known.known.items()
        ]
        output.print_json(shown)
        return
    rows = [("*" if name == known.current else "", name, c.url, c.username) for name, c in sorted(known.known.items())]
    output.table(("", "NAME", "ADDRESS", "USER"), rows, empty="No contexts yet. Sign in with `codehub login`.")


@context_app.command("use")
def use_context(name: Annotated[str, typer.Argument(help="The context's name.")]) -> None:
    """Make a context the current one.

    Example: `codehub context use work`
    """
    known = contexts.load()
    chosen = known.named(name)
    contexts.save(Contexts(known.known, name))
    output.say(f"Commands now talk to {chosen.url}.")


@sessions.command("ls")
def list_sessions(as_json: AsJson = False) -> None:
    """List the browsers that you are signed in with.

    Example: `codehub sessions ls`
    """
    with Client(contexts.in_use()) as client:
        found = client.get("/sessions")["items"]
    rows = [(s["id"][:8], s["agent"][:60], s["address"], output.ago(s["last_seen_at"])) for s in found]
    output.listing(
        found, ("ID", "PROGRAM", "FROM", "LAST SEEN"), rows, empty="You are signed in with no browser.", as_json=as_json
    )


@sessions.command("end")
def end_session(session: Annotated[str, typer.Argument(help="Its id or the beginning of it.")]) -> None:
    """Sign a browser out.

    Example: `codehub sessions end 3f1c22ab`
    """
    with Client(contexts.in_use()) as client:
        known = [{**found, "name": found["id"]} for found in client.get("/sessions")["items"]]
        found = chosen(known, session, "session", "codehub sessions ls")
        client.delete(f"/sessions/{segment(found['id'])}")
    output.say("That browser is signed out.")
