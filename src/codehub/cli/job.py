"""The storage job as a verb, for images that have only `codehub` on their path."""

import typer


def register(app: typer.Typer) -> None:
    app.command(
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        help="The storage job: `archive` or `restore` one home. Run by the controller, not by people.",
    )(job)


def job(context: typer.Context) -> None:
    from codehub.job.command import main

    raise typer.Exit(main(context.args))
