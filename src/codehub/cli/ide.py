"""The IDE as people meet it: the verb that installs it beforehand, and a bar while it is installed on first use."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def group() -> None:
    """The IDE that workspaces run, if CODEHUB_IDE_COMMAND names no other.

    Example: `codehub ide install`
    """


@app.command()
def install() -> None:
    """Install code-server into the cache now, so that no first start has to wait for it or needs a network.

    Does nothing if it is there. npm's own configuration says where it comes from.

    Example: `CODEHUB_IDE_CACHE_DIR=/srv/codehub/cache codehub ide install`
    """
    from codehub.bootstrap.runtimes import install_ide
    from codehub.settings import load_settings

    # an image build has neither, and the IDE needs none
    settings = load_settings(
        database_url=os.environ.get("CODEHUB_DATABASE_URL") or "postgresql://unused",
        redis_url=os.environ.get("CODEHUB_REDIS_URL") or "redis://unused",
    )
    with progress_bar() as progress:
        installed = asyncio.run(install_ide(settings, progress))
    if installed is None:
        why = f"CODEHUB_RUNTIME={settings.runtime} has it in its images"
        if settings.ide_command:
            why = "CODEHUB_IDE_COMMAND names another IDE"
        elif settings.runtime == "process":
            why = f"CODEHUB_IDE={settings.ide} is there"
        print(f"{why}: nothing to install.")
        return
    print(f"code-server {installed.version} is installed in {installed.directory}.")
    for note in installed.notes:
        print(f"Note: {note}")


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A progress bar that appears with the first progress; without a terminal, each step is a line."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console)
    task = bar.add_task("", total=1.0)
    said = ""

    with ExitStack() as stack:

        def report(text: str, fraction: float) -> None:
            nonlocal said
            if not console.is_terminal:
                if text != said:
                    print(f"{text} …", flush=True)
            else:
                bar.update(task, description=text, completed=fraction)
                if not said:
                    stack.enter_context(bar)
            said = text

        yield report
