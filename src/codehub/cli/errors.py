"""Errors for people: one line on stderr that says what to do, and an exit code a script can test."""

import os
import sys
from collections.abc import Callable

from typer.exceptions import Abort, TyperException

from codehub.domain.errors import CodeHubError, Refused, Unreachable

FAILED = 1
USAGE = 2
UNREACHABLE = 3
SCHEMA = 4
TIMED_OUT = 5
INTERRUPTED = 130


class ClientFailed(Exception):
    """Ends a command with its message. `code`: the exit code. `problem`: the API's own code, if it gave one."""

    def __init__(self, message: str, code: int = FAILED, problem: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.problem = problem


def run_and_explain(app: Callable[..., object]) -> int:
    """Runs the command line and returns its exit code; an expected error becomes a sentence, not a traceback."""
    try:
        # What a verb returns is nothing; a number is the exit code that it asked for.
        asked = app(standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone is no error
    except TyperException as wrong:
        return _wrong_usage(wrong)
    except Abort:  # a question that nobody answered
        print(file=sys.stderr)  # the question stands on a line of its own
        return _say("given up; nothing was changed.", INTERRUPTED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        code, advice = _meaning(error)
        if code is None:
            raise
        return _say(f"{error}{advice}", code)
    return asked if isinstance(asked, int) else 0


def _wrong_usage(wrong: TyperException) -> int:
    """Prints Typer's own words on one line. Without words, the help was asked for by saying nothing, and is printed."""
    described = wrong.format_message().strip().rstrip(".")
    where = getattr(getattr(wrong, "ctx", None), "command_path", "codehub")
    return _say(f"{described}. See `{where} --help`.", USAGE) if described else USAGE


def _meaning(error: Exception) -> tuple[int | None, str]:

    if isinstance(error, ClientFailed):
        return error.code, ""
    from codehub.bootstrap.databases import EmbeddedError, SchemaMismatch
    from codehub.bootstrap.ide import IdeError
    from codehub.settings import SettingsError

    meanings: tuple[tuple[type[Exception], int, str], ...] = (
        (SettingsError, USAGE, ""),
        (Refused, USAGE, ""),
        (SchemaMismatch, SCHEMA, ""),
        (
            Unreachable,
            UNREACHABLE,
            ". Is it running, and is its address right (CODEHUB_DATABASE_URL, CODEHUB_REDIS_URL)?",
        ),
        (CodeHubError, FAILED, ""),
        (EmbeddedError, FAILED, ""),
        (IdeError, FAILED, ""),
    )
    return next(((code, advice) for kind, code, advice in meanings if isinstance(error, kind)), (None, ""))


def _say(message: str, code: int) -> int:
    for line in message.splitlines() or [""]:
        print(f"codehub: {printable(line)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
