"""The proxy's pages as pictures in docs/screens: `python -m tests.proxy.screens` takes them anew.

One sheet for each kind of screen, from real pages in a real browser.
"""

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import UUID

from playwright.async_api import Browser

from codehub.domain.access import access_to
from codehub.domain.errors import ErrorReason
from codehub.domain.workspace import Condition, Conditions, Desired, Operation, Phase, Progress, Workspace
from codehub.proxy.access.verdicts import UpstreamFailure
from codehub.proxy.pages.content import (
    failure_page,
    limit_page,
    making_room_page,
    no_listener_page,
    not_found_page,
    signed_out_page,
    workspace_page,
)
from tests import rows
from tests.chromium import chromium
from tests.proxy.page_server import PageServer, Tell

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screens"
HOME_THERE = Conditions(volume_ready=Condition(status=True, reason="VolumeProvisioned"))


@dataclass(frozen=True)
class Sheet:
    name: str
    locale: str
    scheme: Literal["light", "dark"]
    width: int
    height: int
    columns: int
    scale: float


SHEETS = (
    Sheet("pages-light", "en-GB", "light", 900, 660, 4, 0.5),
    Sheet("pages-dark-korean", "ko-KR", "dark", 900, 660, 4, 0.5),
    Sheet("pages-phone-light-korean", "ko-KR", "light", 390, 720, 6, 0.6),
    Sheet("pages-phone-dark", "en-GB", "dark", 390, 720, 6, 0.6),
)


def of(row: Workspace, *, wakes: bool = False) -> Tell:
    return lambda language: workspace_page(row, access_to(row), language, wakes=wakes)


def pages() -> Iterator[Tell | None]:
    """The page to show; None: the sign-in page."""
    wanted = rows.with_home(desired_state=Desired.RUNNING, name="blog")
    others = [
        rows.workspace(id=UUID(int=n), name=name, phase=Phase.RUNNING, desired_state=Desired.RUNNING)
        for n, name in enumerate(("shop", "data-pipeline"), 1)
    ]
    restoring = rows.busy(rows.archived(desired_state=Desired.RUNNING, name="blog"), Operation.RESTORING)
    message = "STARTING failed 3 times; the last time: the container ended before it answered: exit code 137"
    broken = rows.broken(
        rows.with_home(name="blog", conditions=HOME_THERE), error_info=rows.error_info(message=message)
    )
    yield None
    yield of(rows.with_home(desired_state=Desired.STANDBY, name="blog"))
    yield of(rows.busy(wanted, Operation.STARTING))
    yield of(rows.archived(desired_state=Desired.ARCHIVED, name="blog"))
    yield lambda language: workspace_page(
        row := rows.busy(restoring, Operation.RESTORING, op_progress=Progress(1_240_000_000, 18_300, 3_400_000_000)),
        access_to(row),
        language,
        wakes=False,
    )
    yield of(rows.workspace(name="blog"))
    yield of(broken)
    gone = rows.error_info(ErrorReason.DATA_LOST, message="the volume ws-7f3a-home is not there any more")
    yield of(rows.broken(rows.workspace(name="blog"), ErrorReason.DATA_LOST, error_info=gone))
    yield partial(limit_page, wanted, others)
    yield partial(making_room_page, wanted, others[0])
    yield partial(signed_out_page, sign_in="/signin")
    yield not_found_page
    yield partial(no_listener_page, 3000, "blog")
    yield lambda language: failure_page(UpstreamFailure.UNREACHABLE, language, "blog")
    yield of(
        rows.busy(rows.with_home(phase=Phase.RUNNING, desired_state=Desired.STANDBY, name="blog"), Operation.STOPPING)
    )
    yield of(rows.with_home(desired_state=Desired.STANDBY, name="a-workspace-with-quite-a-long-name-" * 2))


async def taken(browser: Browser, sheet: Sheet) -> list[bytes]:
    shots = []
    context = await browser.new_context(
        locale=sheet.locale,
        color_scheme=sheet.scheme,
        reduced_motion="reduce",
        viewport={"width": sheet.width, "height": sheet.height},
        device_scale_factor=1,
    )
    async with PageServer() as page_server:
        page_server.provider = "Example ID"
        for tell in pages():
            page_server.show(tell)
            page = await context.new_page()
            await page.goto(page_server.url + ("/signin" if tell is None else "/"))
            await page.wait_for_function("document.fonts.status === 'loaded'")
            shots.append(await page.screenshot(animations="disabled"))
            await page.close()
    await context.close()
    return shots


async def put_together(browser: Browser, sheet: Sheet, shots: list[bytes]) -> bytes:
    width = round(sheet.width * sheet.scale)
    images = "".join(
        f'<img width={width} src="data:image/png;base64,{base64.b64encode(shot).decode()}">' for shot in shots
    )
    page = await browser.new_page(viewport={"width": sheet.columns * (width + 8) + 8, "height": 100})
    await page.set_content(f"<body style='margin:8px;display:flex;flex-wrap:wrap;gap:8px;background:#888'>{images}")
    picture = await page.screenshot(full_page=True)
    await page.close()
    return picture


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    async with chromium() as browser:
        for sheet in SHEETS:
            picture = await put_together(browser, sheet, await taken(browser, sheet))
            (FOLDER / f"{sheet.name}.png").write_bytes(picture)
            print(f"docs/screens/{sheet.name}.png: {len(picture) // 1000} kB")


if __name__ == "__main__":
    asyncio.run(main())
