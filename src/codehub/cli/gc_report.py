"""The collector's report as a person reads it: what could go, why, since when, and what keeps it from going."""

from collections.abc import Iterator, Mapping
from typing import Any

from codehub.domain.gc_safety import WAIVABLE

HEADINGS = ("KIND", "NAME", "BYTES", "WHY", "MARKED", "MAY GO")


def gc_report(report: Mapping[str, Any], *, dry_run: bool) -> Iterator[str]:
    if "error" in report:
        yield f"Nothing was swept: {report['error']}."
        return
    existing = ", ".join(f"{number} {kind}s" for kind, number in report["existing"].items())
    yield f"{existing} seen; {len(report['candidates'])} are protected by nobody."
    if report["strangers"]:
        yield f"{report['strangers']} objects have names that CodeHub does not give; they are never touched."
    yield from _table(report["candidates"])
    for refusal in report["refusals"]:
        verb = "would be refused" if dry_run else "was refused"
        yield f"A sweep {verb}. {refusal['check']}: {refusal['sentence']}"
    yield from _way_on([refusal["check"] for refusal in report["refusals"]])
    if not dry_run:
        yield from _outcome(report)


def _way_on(checks: list[str]) -> Iterator[str]:
    if checks and all(check in WAIVABLE for check in checks):
        names = " ".join(f"--force-over {check}" for check in dict.fromkeys(checks))
        yield f"Once you have looked at the list, to sweep all the same: codehub admin gc {names}"


def _table(candidates: list[Mapping[str, Any]]) -> Iterator[str]:
    if not candidates:
        return
    rows = [HEADINGS, *(_row(candidate) for candidate in candidates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(candidate: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        candidate["kind"],
        candidate["name"],
        str(candidate["bytes"]) if candidate["kind"] == "object" else "-",
        candidate["why"],
        _minute(candidate["marked_at"]) or "not yet",
        _minute(candidate["may_go_at"]) or "after its grace",
    )


def _minute(at: str | None) -> str | None:
    return at[:16].replace("T", " ") if at else None


def _outcome(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{len(report['swept'])} swept."
    for name, why in report["left"].items():
        yield f"  left: {name}: {why}"
    if report["cap_reached"]:
        yield "The most that one run may sweep was reached; the rest goes with the next."
