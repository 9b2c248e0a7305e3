"""A real workbench: code-server as a workspace, our proxy before it, and a tab of a real browser."""

import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from playwright.async_api import Page

from codehub.adapters.process import ProcessRuntime
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.bootstrap.runtimes import ide
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, Endpoint
from codehub.settings import load_settings
from tests.chromium import chromium
from tests.eventually import eventually

TIMEOUT_SECONDS = 90.0
FILES = {
    "notes.txt": "one\ntwo\nthree\n",
    "style.css": "body {\n  color: red;\n}\n",
    "other.css": "p {\n  margin: 0;\n}\n",
    ".bashrc": "PS1='$ '\n",
}
SETTINGS = {
    "chat.disableAIFeatures": True,
    "files.autoSave": "off",  # a save is a save
    "workbench.startupEditor": "none",  # it would open late and take the focus from whoever types
    "terminal.integrated.environmentChangesRelaunch": False,  # a terminal that a test types into stays the same one
    "terminal.integrated.gpuAcceleration": "off",  # rows of text can be read
}
SETTINGS_FILE = ".local/share/code-server/User/settings.json"


@asynccontextmanager
async def code_server(
    *, sandbox: bool | None = None, git: bool = False, settings: Mapping[str, object] = SETTINGS
) -> AsyncIterator[tuple[Endpoint, Path]]:
    """Run code-server; gives its endpoint and its home, which has a few files."""
    command, readable = ide(load_settings(database_url="postgresql://unused", redis_url="redis://unused"))
    if sandbox is None:
        sandbox = find_sandbox_tools() is not None
    with tempfile.TemporaryDirectory(prefix="codehub-tab-") as directory:
        runtime = ProcessRuntime(Path(directory), "here", command, sandbox=sandbox, readable=readable)
        key = uuid4()
        volume = volume_name(key, 1)
        await runtime.create_volume(key, volume)
        home = runtime.homes.home(volume)
        for name, text in {**FILES, SETTINGS_FILE: json.dumps(settings)}.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        if git:
            subprocess.run(["git", "init", "--quiet", str(home)], check=True)
        try:
            await runtime.start_container(ContainerSpec(key, volume, "image"))
            await eventually(lambda: runtime.answers(key), TIMEOUT_SECONDS)
            endpoint = await runtime.endpoint(key)
            assert endpoint is not None
            yield endpoint, home
        finally:
            await runtime.remove_container(key)


class Tab:
    """A tab of the workbench, and what a person does in it."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def open_terminal(self) -> None:
        await self.page.keyboard.press("Control+`")
        await self.page.wait_for_selector(".terminal-wrapper .xterm-rows", state="visible")
        await self.reads("$ ")

    async def reads(self, text: str) -> None:
        """Wait until the text stands in the terminal."""
        await self.page.wait_for_function(
            "text => [...document.querySelectorAll('.xterm-rows > div')]"
            ".some(row => row.textContent.replaceAll('\\u00a0', ' ').includes(text))",
            arg=text,
        )

    async def click_terminal(self) -> None:
        await self.page.click(".terminal-wrapper .xterm-screen")

    async def open_file(self, name: str) -> None:
        await self.page.keyboard.press("Control+p")
        await self.page.wait_for_selector(".quick-input-widget input:focus")
        await self.page.keyboard.type(name)
        await self.page.wait_for_selector(f".quick-input-list .monaco-list-row.focused[aria-label*='{name}']")
        await self.page.keyboard.press("Enter")
        await self.page.wait_for_selector(f".tab.active[data-resource-name='{name}']")
        await self.page.wait_for_selector(".editor-group-container.active .monaco-editor.focused .view-line")

    async def complete(self) -> None:
        await self.page.keyboard.press("Control+Space")
        await self.page.wait_for_selector(".suggest-widget.visible .monaco-list-row")

    async def search(self, text: str) -> None:
        await self.page.keyboard.press("Control+Shift+f")
        await self.page.wait_for_selector(".search-view textarea:focus")
        await self.page.keyboard.type(text)
        await self.page.keyboard.press("Enter")
        await self.page.wait_for_selector(".search-view .monaco-list-row")


@asynccontextmanager
async def tab(port: int) -> AsyncIterator[Tab]:
    async with chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(TIMEOUT_SECONDS * 1000)
        await page.goto(f"http://w.localhost:{port}/")
        await page.wait_for_selector(".monaco-workbench .part.statusbar")
        await page.wait_for_selector(".explorer-folders-view .monaco-list-row")
        yield Tab(page)
