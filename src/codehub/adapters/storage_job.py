"""The storage job as every runtime runs it: its command line, its environment, and what it said.

Of its output the last line of each kind counts. The output's tail may begin, and while the job runs end, within a line.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from codehub.domain.errors import ErrorReason
from codehub.domain.workspace import Progress
from codehub.job.errors import outcome_of
from codehub.ports.jobs import JobKind, JobResult, JobSeen, JobSpec, JobState

_LONGEST_MESSAGE = 1000
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def job_arguments(spec: JobSpec, volume: str, store_url: str) -> list[str]:
    """The words after the program that name the work. `volume`: the home as the job sees it."""
    words = [spec.kind.value, "--volume", volume, "--store", store_url, "--key", spec.key]
    if spec.owner is not None:
        words += ["--owner", spec.owner.key, spec.owner.name]
    if spec.kind is JobKind.RESTORE:
        words += ["--op-id", str(spec.op_id)]
    return words


def job_environment(environ: Mapping[str, str], passed_on: tuple[str, ...]) -> dict[str, str]:
    """Of our environment the variables that begin with `passed_on`, and the proxies: not the database's password, nor
    anything else that a job has no use for."""
    return {name: value for name, value in environ.items() if name.startswith(passed_on) or name.upper() in _PROXIES}


class JobOutput:
    """What a storage job said, read back from its output and exit code: the same lines whatever ran it."""

    def __init__(self, op_id: UUID, kind: JobKind, output: str) -> None:
        self._op_id = op_id
        self._kind = kind
        self._last = {str(line.get("event")): line for line in _lines(output)}
        said = self._last.get("progress")
        self._progress = _progress(said) if said else None

    def running(self) -> JobSeen:
        return JobSeen(self._op_id, self._kind, JobState.RUNNING, self._progress)

    def succeeded(self, exit_code: int | None) -> JobSeen | None:
        """What a job that succeeded reports; None: it did not succeed."""
        if exit_code != 0 or "done" not in self._last:
            return None
        done = self._last["done"]
        result = JobResult(done["key"], done["sha256"], done["bytes"], done["files"])
        return JobSeen(self._op_id, self._kind, JobState.SUCCEEDED, self._progress, result)

    def failed(self, exit_code: int | None, ending: str, errors: str) -> JobSeen:
        """What a job that failed reports: its own message if it wrote one; else what its exit code means, and its last
        line."""
        said = self._last.get("failed", {})
        outcome = outcome_of(1 if exit_code is None else exit_code)
        message = str(said.get("message") or ": ".join([f"the job {ending}", *errors.strip().splitlines()[-1:]]))
        if exit_code is None and not said:
            return self.interrupted(message)
        known = {known.value: known for known in ErrorReason}
        reason = known.get(str(said.get("reason") or outcome.reason), ErrorReason.ACTION_FAILED)
        failed = self._failed(reason, message)
        return replace(failed, exit_code=exit_code, stderr=errors.strip()[-_LONGEST_MESSAGE:])

    def interrupted(self, message: str) -> JobSeen:
        """What is reported of a job that was ended from outside: nothing is known to be wrong with its work."""
        return self._failed(ErrorReason.UNREACHABLE, message)

    def _failed(self, reason: ErrorReason, message: str) -> JobSeen:
        said = message[:_LONGEST_MESSAGE]
        return JobSeen(self._op_id, self._kind, JobState.FAILED, self._progress, None, reason, said)


def _progress(line: Mapping[str, Any]) -> Progress:
    return Progress(line["bytes"], line["files"], line.get("total_bytes"), line.get("step", ""))


def _lines(output: str) -> Iterator[dict[str, Any]]:
    for text in output.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line
