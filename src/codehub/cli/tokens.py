"""Personal tokens, for scripts: made once, shown once, taken back at any time."""

from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, chosen
from codehub.cli.login import own_password

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Personal access tokens, for scripts.

    Example: `codehub token create ci --days 7`""",
)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, write or admin; may be repeated.")] = ["read"],  # noqa: B006 - typer's way
    days: Annotated[int, typer.Option(min=0, max=366, help="How long it holds; 0: until it is revoked.")] = 30,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from a pipe.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a token. It takes your password; the token is printed once, on stdout alone.

    Examples:
    - `codehub token create ci --scope read --scope write --days 7`
    - `pass show codehub | codehub token create ci --password-stdin`

    """
    context = contexts.in_use()
    with Client(context) as client:
        username = client.get("/session")["user"]["username"]
    password = own_password(from_stdin=password_stdin)
    order = {"name": name, "scopes": scope, "expires_in_seconds": days * 86400 or None}
    with Client(contexts.Context(context.url)) as client, client.freshly_signed_in(username, password) as cookie:
        made = client.with_session(cookie, "POST", "/tokens", order)
    if as_json:
        output.print_json(made)
        return
    ends = f"ends {output.ago(made['expires_at'])}" if made["expires_at"] else "has no end: revoke it when it is over"
    output.note(f"This token is shown once; use it as CODEHUB_TOKEN. It {ends}.")
    print(made["token"])


@app.command("ls")
def list_tokens(as_json: AsJson = False) -> None:
    """List your tokens; their secrets are nowhere.

    Example: `codehub token ls`
    """
    with Client(contexts.in_use()) as client:
        items = client.get("/tokens")["items"]
    rows = [
        (
            t["id"],
            t["name"],
            " ".join(t["scopes"]),
            output.ago(t["last_used_at"]) or "never",
            output.ago(t["expires_at"]) or "never",
        )
        for t in items
    ]
    output.listing(
        items,
        ("ID", "NAME", "MAY", "LAST USED", "ENDS"),
        rows,
        empty="No tokens. Make one with `codehub token create`.",
        as_json=as_json,
    )


@app.command("revoke")
def revoke(token: Annotated[str, typer.Argument(help="Its name, its id or the beginning of its id.")]) -> None:
    """Take a token back; whoever uses it is out at once.

    Example: `codehub token revoke ci`
    """
    with Client(contexts.in_use()) as client:
        found = chosen(client.get("/tokens")["items"], token, "token", "codehub token ls")
        client.delete(f"/tokens/{found['id']}")
    output.say(f"{found['name']} is taken back.")
