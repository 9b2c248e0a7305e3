"""The findings of a self-check, each with what to do about it; and whether the backends are those that the database
remembers, for commands that only look.
"""

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from codehub.domain.backend_identity import Backend, wrong_backend_message
from codehub.domain.errors import BackendError
from codehub.ports.archives import Archives
from codehub.ports.runtime import Runtime
from codehub.ports.stores import BackendIdentities, BackendRecord


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `seen` is a fact; `advice` is empty when there is nothing to do."""

    name: str
    verdict: Verdict
    seen: str
    advice: str = ""


def ok(name: str, seen: str) -> Finding:
    return Finding(name, Verdict.OK, seen)


def warn(name: str, seen: str, advice: str) -> Finding:
    return Finding(name, Verdict.WARN, seen, advice)


def fail(name: str, seen: str, advice: str) -> Finding:
    return Finding(name, Verdict.FAIL, seen, advice)


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.verdict is Verdict.FAIL for finding in findings)


@dataclass(frozen=True, slots=True)
class ObservedBackend:
    """A backend as remembered and as found. `silence`: why it could not be asked. `found` None: a store without a
    mark."""

    backend: Backend
    remembered: BackendRecord | None
    found: str | None = None
    silence: str = ""

    @property
    def trouble(self) -> str:
        """Why this is not the remembered backend; empty if it is, or if none is remembered yet."""
        if self.silence or self.remembered is None or self.found == self.remembered.identity:
            return self.silence
        return wrong_backend_message(self.backend, self.remembered.identity, self.found)

    def to_json(self) -> dict[str, Any]:
        known = self.remembered
        return {
            "backend": self.backend.value,
            "remembered": known.identity if known else None,
            "since": known.since.isoformat() if known else None,
            "found": self.found,
            "trouble": self.trouble,
        }


async def observe_backends(
    identities: BackendIdentities, runtime: Runtime, archives: Archives
) -> list[ObservedBackend]:
    remembered = await identities.remembered()
    return [
        await _observe(Backend.RUNTIME, remembered.get(Backend.RUNTIME), runtime.identity()),
        await _observe(Backend.ARCHIVES, remembered.get(Backend.ARCHIVES), archives.owner()),
    ]


async def _observe(backend: Backend, known: BackendRecord | None, asked: Awaitable[str | None]) -> ObservedBackend:
    try:
        return ObservedBackend(backend, known, await asked)
    except BackendError as error:
        return ObservedBackend(backend, known, silence=str(error))
