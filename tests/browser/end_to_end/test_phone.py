"""A fresh editor on a telephone's screen: there is room for the text."""

import json

import pytest

from codehub.adapters.ide.command import FIRST_SETTINGS
from tests.chromium import installed
from tests.proxy.harness import ProxyHarness
from tests.proxy.recording.workbench import code_server, tab

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_with_the_first_settings_the_editor_has_room_on_a_telephone() -> None:
    if installed() is None:
        pytest.skip("there is no Chromium")
    async with (
        code_server(settings=json.loads(FIRST_SETTINGS)) as (endpoint, _),
        ProxyHarness(endpoint) as proxy,
        tab(proxy.port) as opened,
    ):
        await opened.page.set_viewport_size({"width": 390, "height": 844})
        await opened.page.locator(".part.auxiliarybar").wait_for(state="hidden")
        assert await opened.page.locator(".part.editor").evaluate("part => part.clientWidth") >= 150
        await opened.page.locator(".activitybar .codicon-explorer-view-icon").first.click()
        await opened.page.locator(".part.sidebar").wait_for(state="hidden")
        await opened.page.wait_for_function("document.querySelector('.part.editor').clientWidth >= 320")
