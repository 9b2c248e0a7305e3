"""What you keep for your workspaces: secrets, git credentials, your git identity and your dotfiles; and the SSH keys
with which you reach them.

A value comes from a prompt that does not show it, from a file or from a pipe, and never from the command line, which
other people on the machine and the shell's history can read.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, Json, segment
from codehub.cli.login import own_password
from codehub.cli.output import FAILED, USAGE, ClientFailed

secrets = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Secrets, which are environment variables in your workspaces.

    They are kept encrypted, and their values are never shown again. A workspace has them from its next start on. To
    set one takes your password.

    Example: `codehub secrets set NPM_TOKEN`""",
)

account = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Who you are to git, and what your workspaces begin with.

    Example: `codehub account git-identity --name "Ann Lee" --email ann@example.com`""",
)

ssh_keys = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The public keys with which you reach your workspaces over SSH.

    Example: `codehub account ssh-keys add ~/.ssh/id_ed25519.pub`""",
)

Variable = Annotated[str, typer.Argument(metavar="NAME", help="The variable's name.")]
GitHost = Annotated[str, typer.Argument(metavar="HOST", help="Such as git.example.com, or git.example.com:8443.")]
FromFile = Annotated[
    Path | None, typer.Option("--from-file", metavar="FILE", help="Read the value from a file, as it is.")
]
PasswordStdin = Annotated[
    bool,
    typer.Option("--password-stdin", help="Read your password from a pipe, as its first line; the value may follow."),
]
Remove = Annotated[bool, typer.Option("--rm", help="Remove it.")]


def register(app: typer.Typer) -> None:
    app.add_typer(secrets, name="secrets")
    account.add_typer(ssh_keys, name="ssh-keys")
    app.add_typer(account, name="account")


@secrets.command("ls")
def list_secrets(as_json: AsJson = False) -> None:
    """List the names of your secrets; their values are shown nowhere.

    Example: `codehub secrets ls`
    """
    with Client(contexts.in_use()) as client:
        items = client.get("/account/secrets")["items"]
    print_names(items, "No secrets. Set one with `codehub secrets set NAME`.", as_json=as_json)


@secrets.command("set")
def set_secret(
    name: Variable, from_file: FromFile = None, password_stdin: PasswordStdin = False, as_json: AsJson = False
) -> None:
    """Set a secret, or replace it. The value is asked for, or read from a file or a pipe.

    From a pipe, the line end after the value is left out; a file is taken as it is. At most 64 KiB.

    Examples:
    - `codehub secrets set NPM_TOKEN`
    - `codehub secrets set DEPLOY_KEY --from-file ~/.ssh/deploy`

    """
    with own_session(password_stdin) as (client, cookie):
        value = read_value("Value", from_file)
        made = client.with_session(cookie, "PUT", f"/account/secrets/{segment(name)}", {"value": value})
    output.outcome(made, f"{made['name']} is set. Workspaces have it from their next start on.", as_json=as_json)


@secrets.command("rm")
def remove_secret(name: Variable) -> None:
    """Delete a secret. What runs keeps it until it is stopped.

    Example: `codehub secrets rm NPM_TOKEN`
    """
    with Client(contexts.in_use()) as client:
        client.delete(f"/account/secrets/{segment(name)}")
    output.say(f"{name} is deleted.")


@account.command("show")
def show(as_json: AsJson = False) -> None:
    """Show what you keep for your workspaces; no secret's value is in it.

    Example: `codehub account show`
    """
    with Client(contexts.in_use()) as client:
        identity, dotfiles = client.get("/account/git-identity"), client.get("/account/dotfiles")
        credentials, names = client.get("/account/git-credentials")["items"], client.get("/account/secrets")["items"]
    if as_json:
        output.print_json(
            {"git_identity": identity, "dotfiles": dotfiles, "git_credentials": credentials, "secrets": names}
        )
        return
    pairs: list[tuple[str, object]] = [
        ("git identity", f"{identity['name']} <{identity['email']}>" if identity["name"] else "not set"),
        ("dotfiles", dotfiles["url"] or "none"),
        ("their command", dotfiles["command"]),
    ]
    for one in credentials:
        shown = one["public_key"] or f"a token of {one['username']}"
        pairs.append((one["host"], f"{shown}{_state(one)}"))
    pairs.append(("secrets", ", ".join(f"{one['name']}{_state(one)}" for one in names) or "none"))
    output.facts(pairs)


@account.command("git-identity")
def git_identity(
    name: Annotated[str | None, typer.Option(help="Your name in commits.")] = None,
    email: Annotated[str | None, typer.Option(help="Your email address in commits.")] = None,
    remove: Remove = False,
    as_json: AsJson = False,
) -> None:
    """Say who your commits are by, in every workspace; without options, show it.

    Example: `codehub account git-identity --name "Ann Lee" --email ann@example.com`
    """
    if remove and (name or email):
        raise ClientFailed("Say either --rm or who you are.", USAGE)
    with Client(contexts.in_use()) as client:
        if remove:
            client.delete("/account/git-identity")
        found = client.get("/account/git-identity")
        if name or email:
            found = client.put(
                "/account/git-identity", {"name": name or found["name"] or "", "email": email or found["email"] or ""}
            )
    said = f"{found['name']} <{found['email']}>" if found["name"] else "Git does not know who you are."
    output.outcome(found, said, as_json=as_json)


@account.command("git-token")
def git_token(
    host: GitHost,
    username: Annotated[str, typer.Option(help="Whose token it is, at that host.")] = "git",
    from_file: FromFile = None,
    remove: Remove = False,
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Keep a token with which git signs in at a host over https. It is asked for, or read from a file or a pipe.

    Example: `codehub account git-token git.example.com --username ann`
    """
    path = f"/account/git-credentials/{segment(host)}/token"
    if remove:
        _remove(path, f"There is no token for {host} any more.", as_json=as_json)
        return
    with own_session(password_stdin) as (client, cookie):
        token = read_value("Token", from_file).strip()
        made = client.with_session(cookie, "PUT", path, {"username": username, "token": token})
    output.outcome(made, f"Git signs in at {made['host']} as {made['username']}.", as_json=as_json)


@account.command("ssh-key")
def ssh_key(
    host: GitHost, remove: Remove = False, password_stdin: PasswordStdin = False, as_json: AsJson = False
) -> None:
    """Make an SSH key for a host and print its public half, which you give to that host. It replaces an older one.

    The private half is kept encrypted, and reaches your workspaces through memory alone.

    Example: `codehub account ssh-key git.example.com`
    """
    path = f"/account/git-credentials/{segment(host)}/ssh-key"
    if remove:
        _remove(path, f"There is no SSH key for {host} any more.", as_json=as_json)
        return
    with own_session(password_stdin) as (client, cookie):
        made = client.with_session(cookie, "POST", path)
    if as_json:
        output.print_json(made)
        return
    output.note(f"Give this public key to {made['host']}:")
    print(output.printable(made["public_key"]))


@account.command("dotfiles")
def dotfiles(
    url: Annotated[str | None, typer.Argument(help="The repository.")] = None,
    command: Annotated[str | None, typer.Option(help="What installs them, run in the repository.")] = None,
    remove: Remove = False,
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Name the repository of your configuration, which every workspace installs; without one, show it.

    Example: `codehub account dotfiles https://git.example.com/ann/dotfiles.git --command ./install.sh`
    """
    if (remove and url) or (command and not url):
        raise ClientFailed("Say the repository's address, with --command if you like, or --rm alone.", USAGE)
    if url is not None:
        with own_session(password_stdin) as (client, cookie):
            found = client.with_session(cookie, "PUT", "/account/dotfiles", {"url": url, "command": command})
    else:
        with Client(contexts.in_use()) as client:
            if remove:
                client.delete("/account/dotfiles")
            found = client.get("/account/dotfiles")
    said = f"{found['url']} ({found['command'] or 'what it brings'})" if found["url"] else "You have no dotfiles."
    output.outcome(found, said, as_json=as_json)


@ssh_keys.command("list")
def list_ssh_keys(as_json: AsJson = False) -> None:
    """List the public keys with which you reach your workspaces.

    Example: `codehub account ssh-keys list`
    """
    with Client(contexts.in_use()) as client:
        items = client.get("/account/ssh-keys")["items"]
    rows = [
        (one["name"], one["algorithm"], one["fingerprint"], output.ago(one["last_used_at"]) or "never") for one in items
    ]
    empty = "No SSH keys. Add one with `codehub account ssh-keys add ~/.ssh/id_ed25519.pub`."
    output.listing(items, ("NAME", "TYPE", "FINGERPRINT", "USED"), rows, empty=empty, as_json=as_json)


@ssh_keys.command("add")
def add_ssh_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The public key: a file that ends in .pub.")],
    name: Annotated[str, typer.Option(help="What to call it; without it, the key's comment.")] = "",
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Add a public key. It works at once, in all of your workspaces, and takes your password.

    Example: `codehub account ssh-keys add ~/.ssh/id_ed25519.pub --name laptop`
    """
    line = read_value("Public key", file)
    with own_session(password_stdin) as (client, cookie):
        made = client.with_session(cookie, "POST", "/account/ssh-keys", {"public_key": line, "name": name})
    output.outcome(made, f"{made['name']} is added: {made['fingerprint']}", as_json=as_json)


@ssh_keys.command("remove")
def remove_ssh_key(
    which: Annotated[str, typer.Argument(metavar="KEY", help="Its name, its fingerprint or its id.")],
) -> None:
    """Remove a public key. Connections that were opened with it end.

    Example: `codehub account ssh-keys remove laptop`
    """
    with Client(contexts.in_use()) as client:
        items = client.get("/account/ssh-keys")["items"]
        found = [one for one in items if which in (one["name"], one["fingerprint"], one["id"])]
        if len(found) != 1:
            many = f"You have {len(found)} SSH keys of that name: say the fingerprint." if found else ""
            raise ClientFailed(many or f"You have no SSH key {output.printable(which)}.", FAILED)
        client.delete(f"/account/ssh-keys/{found[0]['id']}")
    output.say(f"{found[0]['name']} is removed.")


def print_names(items: list[Json], empty: str, *, as_json: bool) -> None:
    rows = [(one["name"], output.ago(one["updated_at"]), _state(one).strip(" ()")) for one in items]
    output.listing(items, ("NAME", "SET", ""), rows, empty=empty, as_json=as_json)


def read_value(what: str, from_file: Path | None) -> str:
    """The value of a secret: from a file, from a pipe, or asked for without showing it."""
    if from_file is not None:
        try:
            return from_file.expanduser().read_bytes().decode()
        except OSError as error:
            raise ClientFailed(f"{from_file} cannot be read: {error.strerror}.", USAGE) from None
        except UnicodeDecodeError:
            raise ClientFailed(f"{from_file} is not text. Encode it first, for example with base64.", USAGE) from None
    if not sys.stdin.isatty():
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    answer: str = typer.prompt(what, hide_input=True)
    return answer


@contextmanager
def own_session(from_stdin: bool) -> Iterator[tuple[Client, str]]:
    """A client, and the cookie of a session that was opened with one's own password for this alone."""
    context = contexts.in_use()
    with Client(context) as client:
        user = client.get("/session")["user"]
    if not user["has_password"]:
        raise ClientFailed("You have no password here: do it on the dashboard's account page.", FAILED)
    password = own_password(from_stdin=from_stdin)
    name = user["username"]
    with Client(contexts.Context(context.url)) as client, client.freshly_signed_in(name, password) as cookie:
        yield client, cookie


def _state(item: Json) -> str:
    return "" if item["is_readable"] else " (cannot be opened: set it again)"


def _remove(path: str, said: str, *, as_json: bool) -> None:
    with Client(contexts.in_use()) as client:
        client.delete(path)
    output.outcome({}, said, as_json=as_json)
