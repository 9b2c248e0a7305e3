"""What a self-check says: one finding for each thing looked at, with what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`seen` is a fact; `advice` is empty when there is nothing to do."""

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
