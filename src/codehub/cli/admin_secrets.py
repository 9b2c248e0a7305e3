"""Secrets, as operators and admins see them: the keys they are encrypted with, and what a template brings."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.account import FromFile, Variable, print_names, read_value
from codehub.cli.admin import with_services
from codehub.cli.client import AsJson, Client, segment
from codehub.cli.output import FAILED
from codehub.ports.stores import Actor

if TYPE_CHECKING:
    from codehub.bootstrap.services import Services
    from codehub.usecases.key_rotation import Rotation

keys = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The keys that people's secrets are encrypted with; beside the database, as an operator.

    Example: `codehub admin secrets rotate`""",
)

template_secrets = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Secrets of a template: environment variables in all workspaces that are made from it.

    A variable of the same name that a workspace's owner keeps wins.

    Example: `codehub admin template-secrets ls default`""",
)

TemplateName = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template's name.")]


def register(app: typer.Typer) -> None:
    app.add_typer(keys, name="secrets")
    app.add_typer(template_secrets, name="template-secrets")


@keys.command("new-key")
def new_key() -> None:
    """Print a new key. It is kept nowhere: put it into CODEHUB_SECRETS_KEYS, and into your safe.

    Example: `codehub admin secrets new-key`
    """
    from codehub.bootstrap.secrets import new_key

    print(new_key())


@keys.command("rotate")
def rotate(as_json: AsJson = False) -> None:
    """Encrypt everything anew with the first key. What cannot be opened stays as it is; exit code 1 then.

    First give the new key before the old ones (CODEHUB_SECRETS_KEYS=NEW,OLD, or as the first line of the file that
    holds them) and restart what uses them. Then this. Then take the old key away. It may be interrupted and run again.

    Example: `codehub admin secrets rotate`
    """

    async def run(services: "Services") -> "Rotation":
        from codehub.usecases.key_rotation import rotate

        database = services.database
        return await rotate(database.secrets(), services.keyring, database.audit(), Actor("operator"))

    done = with_services(run)
    if as_json:
        output.print_json(asdict(done))
    else:
        print(f"{done.resealed} secrets were encrypted anew; all that can be opened are under the key {done.key_id}.")
        for name, why in done.unreadable.items():
            output.say(f"  not opened: {name}: {why}")
    if done.unreadable:
        raise typer.Exit(FAILED)


@template_secrets.command("ls")
def list_template_secrets(template: TemplateName, as_json: AsJson = False) -> None:
    """List the names of a template's secrets.

    Example: `codehub admin template-secrets ls default`
    """
    with Client(contexts.in_use()) as client:
        items = client.get(f"/admin/templates/{segment(template)}/secrets")["items"]
    print_names(items, "No secrets.", as_json=as_json)


@template_secrets.command("set")
def set_template_secret(
    template: TemplateName, name: Variable, from_file: FromFile = None, as_json: AsJson = False
) -> None:
    """Set a template's secret, or replace it. The value is asked for, or read from a file or a pipe.

    Example: `codehub admin template-secrets set default LICENSE_KEY --from-file license.txt`
    """
    path = f"/admin/templates/{segment(template)}/secrets/{segment(name)}"
    value = read_value("Value", from_file)
    with Client(contexts.in_use()) as client:
        made = client.put(path, {"value": value})
    output.outcome(made, f"{made['name']} is set for {template}.", as_json=as_json)


@template_secrets.command("rm")
def remove_template_secret(template: TemplateName, name: Variable) -> None:
    """Delete a template's secret. What runs keeps it until it is stopped.

    Example: `codehub admin template-secrets rm default LICENSE_KEY`
    """
    with Client(contexts.in_use()) as client:
        client.delete(f"/admin/templates/{segment(template)}/secrets/{segment(name)}")
    output.say(f"{name} is deleted from {template}.")
