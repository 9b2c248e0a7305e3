"""The job's command line.

Everything it needs is in its arguments and environment, everything it says is JSON lines on stdout, and how it ended
is its exit code (`errors.py`). Tracebacks of faults in the job itself go to stderr.
"""

import argparse
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn
from uuid import UUID

from codehub.job.archive import ArchiveRequest, archive
from codehub.job.errors import OUTCOMES, ExitCode, JobFailed
from codehub.job.progress import ProgressReporter
from codehub.job.restore import RestoreRequest, restore
from codehub.job.store import Owner

_EXAMPLES = """\
examples:
  codehub job archive --volume /home-volume --store s3://homes --key ID/OP/home.tar.zst
  codehub job restore --volume /home-volume --store file:///var/lib/archives --key ID/OP/home.tar.zst \\
      --op-id UUID --max-bytes 10737418240

environment for s3://: CODEHUB_S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION

exit codes:
"""


def main(arguments: list[str]) -> int:
    progress = ProgressReporter()
    try:
        verb = _parse(arguments)
        _prepare_process()
        verb(progress)
    except JobFailed as failure:
        return _failed(progress, failure.code, failure.message)
    except Exception as error:  # noqa: BLE001 - the last line must be said whatever happened
        traceback.print_exc(file=sys.stderr)
        return _failed(progress, ExitCode.INTERNAL, f"{type(error).__name__}: {error}")
    except SystemExit as stop:
        code = ExitCode(int(stop.code or 0))
        return _failed(progress, code, "wrong arguments") if code is ExitCode.USAGE else code
    return ExitCode.DONE


def _failed(progress: ProgressReporter, code: ExitCode, message: str) -> int:
    outcome = OUTCOMES[code]
    progress.failed(reason=outcome.reason, detail=outcome.detail, message=message)
    return code


def _parse(arguments: list[str]) -> Callable[[ProgressReporter], None]:
    codes = "\n".join(f"  {code:3}  {outcome.meaning}" for code, outcome in OUTCOMES.items())
    parser = argparse.ArgumentParser(
        prog="codehub job",
        description="Archives a home volume, or restores one. Run it again after any failure.",
        epilog=_EXAMPLES + codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, text in (("archive", "a volume into a proven archive"), ("restore", "an archive into a volume")):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("--volume", type=Path, required=True, metavar="DIR")
        verb.add_argument("--store", required=True, metavar="URL", help="file:///directory or s3://bucket")
        verb.add_argument("--key", required=True, help="the archive's key; .meta is added for its proof")
        verb.add_argument("--backoff-seconds", type=float, default=1.0, help="wait before the second try (default 1)")
        verb.add_argument("--owner", nargs=2, metavar=("KEY", "NAME"), help="the object that must say so")
        if name == "restore":
            verb.add_argument("--op-id", type=_op_id, required=True, metavar="UUID")
            verb.add_argument(
                "--max-bytes",
                type=_bytes,
                default=0,
                metavar="N",
                help="what the volume may hold; 0: any; free: the disk",
            )
    chosen = parser.parse_args(arguments)
    owner = Owner(*chosen.owner) if chosen.owner else None
    if chosen.verb == "archive":
        to_archive = ArchiveRequest(chosen.volume, chosen.store, chosen.key, chosen.backoff_seconds, owner)
        return lambda progress: archive(to_archive, progress)
    to_restore = RestoreRequest(
        chosen.volume, chosen.store, chosen.key, chosen.op_id, chosen.max_bytes, chosen.backoff_seconds, owner
    )
    return lambda progress: restore(to_restore, progress)


def _op_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError("the operation's UUID") from None


def _bytes(text: str) -> int | None:
    if text == "free":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("a number of bytes, or free")
    return int(text)


def _prepare_process() -> None:
    signal.signal(signal.SIGTERM, _stop)
    # One descriptor per level of the deepest directory.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End on SIGTERM: process 1 of a container has no default action, and an upload should be aborted, not
    abandoned."""
    raise SystemExit(ExitCode.STOPPED)
