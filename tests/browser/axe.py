"""axe-core, the accessibility checker, fetched once by npm into pytest's cache. For tests alone: never served."""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from codehub.adapters.ide.toolchain import environment, of_the_wheel

VERSION = "4.11.0"
GRAVE = {"serious", "critical"}


def axe_source(cache: Path) -> str:
    kept = cache / f"axe-{VERSION}.js"
    if not kept.exists():
        _fetch(cache)
        with tarfile.open(cache / f"axe-core-{VERSION}.tgz") as package:
            member = package.extractfile("package/axe.min.js")
            assert member is not None
            kept.write_bytes(member.read())
    return kept.read_text()


def _fetch(cache: Path) -> None:
    tools = of_the_wheel()
    words = ["pack", f"axe-core@{VERSION}", f"--cache={cache / 'npm'}", f"--logs-dir={cache / 'logs'}"]
    ran = subprocess.run(
        [tools.node, tools.npm, *words],
        cwd=cache,
        env=environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if ran.returncode:
        pytest.skip(f"axe-core cannot be fetched by npm: {ran.stderr.strip()[-300:]}")


async def findings(page: Page, source: str) -> list[str]:
    """The violations that axe calls serious or critical, each with where it is."""
    await page.evaluate(source)
    told: dict[str, Any] = json.loads(
        await page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((told) => JSON.stringify(told))")
    )
    return [
        f"{found['id']} ({found['impact']}): {found['help']}: {[node['target'] for node in found['nodes']][:3]}"
        for found in told["violations"]
        if found["impact"] in GRAVE
    ]
