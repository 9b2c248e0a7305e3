"""`codehub doctor`: is everything there, does it work, and what to do about what does not."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from codehub.cli.exits import FAILED
from codehub.cli.lookup import AsJson
from codehub.cli.present import as_json as print_json
from codehub.cli.present import table
from codehub.usecases.findings import Finding, Verdict, fail, failed

if TYPE_CHECKING:
    from codehub.cli.checks import Check
    from codehub.settings import Settings

Tell = Callable[[Finding], None]
COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    probe: Annotated[
        bool, typer.Option("--probe", help="Also send a throw-away workspace the whole way, and look around in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at everything that this installation needs, and say what to do about what is missing.

    It looks at the `codehub up` that runs on this machine, or at what the environment names. `--probe` starts,
    archives, restores and deletes a workspace through the real controller, and tries from inside to reach what it
    must not.

    Exit code 0: all is well, or there are warnings. 1: something is missing or broken.

    Examples: `codehub doctor` · `codehub doctor --probe` · `codehub doctor --json`
    """
    findings = asyncio.run(_examine(probe=probe, quiet=as_json))
    if as_json:
        print_json({"ok": not failed(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    if failed(findings):
        raise typer.Exit(FAILED)


async def _examine(*, probe: bool, quiet: bool) -> list[Finding]:
    from codehub.cli import checks
    from codehub.cli.local_instance import operators_settings
    from codehub.settings import SettingsError, load_settings

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not quiet and sys.stderr.isatty():
            print(f"{finding.verdict:4}  {finding.name}", file=sys.stderr, flush=True)

    findings: list[Finding] = []
    try:
        settings = operators_settings()
    except SettingsError as missing:
        advice = "Start `codehub up`, or set what it names."
        tell(fail("installation", "; ".join(str(missing).splitlines()), advice))
        try:
            settings = load_settings(database_url="postgresql://none", redis_url="redis://none")
        except SettingsError:
            return findings
        await _made(checks.MACHINE, settings, tell)
        return findings
    await _made(checks.MACHINE | checks.SERVICES, settings, tell)
    if probe:
        await _probed(settings, findings, tell)
    return findings


async def _made(table_of_checks: "dict[str, Check]", settings: "Settings", tell: Tell) -> None:
    from codehub.cli.checks import made

    for name, check in table_of_checks.items():
        tell(await made(name, check, settings))


async def _probed(settings: "Settings", findings: list[Finding], tell: Tell) -> None:
    from codehub.bootstrap.operator import probe
    from codehub.bootstrap.services import open_services

    needed = {"postgresql", "redis", "archives", "controller"}
    if broken := [f.name for f in findings if f.verdict is Verdict.FAIL and f.name in needed]:
        tell(fail("probe", f"not begun: {', '.join(broken)} first", "Mend that, then run it again."))
        return
    async with open_services(settings) as services:
        await (await probe(services)).run(tell)


def _show(findings: list[Finding]) -> None:
    rows = [(Text(f.verdict.value, COLOURS[f.verdict]), f.name, f.seen, f.advice) for f in findings]
    table(("", "what", "seen", "what to do"), rows, empty="Nothing was looked at.")
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    print(f"\n{counts[Verdict.OK]} ok, {counts[Verdict.WARN]} warnings, {counts[Verdict.FAIL]} failures")
