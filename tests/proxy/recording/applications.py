"""Applications that people run at a port of a workspace: how each is installed and started, and a person in it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Page

APPLICATION_TAPES = Path(__file__).parent / "application_tapes"


@dataclass
class Person:
    """A person in front of a page, whose acts come at no steady period."""

    page: Page
    until: float
    pauses: random.Random = field(default_factory=lambda: random.Random(14))

    @property
    def works_on(self) -> bool:
        return asyncio.get_running_loop().time() < self.until

    async def pause(self, mean: float = 3.0) -> None:
        await asyncio.sleep(min(0.3 + self.pauses.expovariate(1 / mean), 12.0))

    async def types(self, text: str) -> None:
        for letter in text:
            await self.page.keyboard.type(letter)
            await asyncio.sleep(0.05 + self.pauses.expovariate(8.0))

    def chooses(self, count: int) -> int:
        return self.pauses.randrange(count)


@dataclass(frozen=True)
class Application:
    command: tuple[str, ...]
    """The command of the application. {programs}: where it is installed; {port}: where it listens; {folder}: with its
    files."""
    ready: str
    """A selector of its page that is there when it can be worked with."""
    works: Callable[[Person], Awaitable[None]]
    files: dict[str, str] = field(default_factory=dict)
    path: str = "/"
    python: tuple[str, ...] = ()
    node: tuple[str, ...] = ()


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def in_a_notebook(person: Person) -> None:
    """Cells are written and run."""
    await person.page.click(".jp-LauncherCard[data-category='Notebook']")
    await person.page.wait_for_selector(".jp-Notebook .cm-content")
    number = 0
    while person.works_on:
        number += 1
        await person.types(f"print({number} + {number})")
        await person.page.keyboard.press("Shift+Enter")
        await person.pause()


async def in_links_and_buttons(person: Person) -> None:
    """The page asks its server at each click; now and then it is opened anew."""
    while person.works_on:
        if person.chooses(6) == 0:
            await person.page.reload()
            await person.page.wait_for_selector("#ask")
        else:
            await person.page.click("#ask")
        await person.pause()


async def with_one_button(person: Person) -> None:
    """One and the same request is made at each click."""
    while person.works_on:
        await person.page.click("#same")
        await person.pause()


async def in_streamlit(person: Person) -> None:
    while person.works_on:
        await person.page.click("[data-testid='stBaseButton-secondary']")
        await person.pause()


async def in_gradio(person: Person) -> None:
    number = 0
    while person.works_on:
        number += 1
        await person.page.click("textarea")
        await person.types(f"who {number}")
        await person.page.click("#ask")
        await person.pause()


async def in_a_screen(person: Person) -> None:
    """A mouse is moved and a line typed."""
    while person.works_on:
        x, y = 100 + person.chooses(300), 100 + person.chooses(200)
        await person.page.mouse.move(x, y, steps=5)
        await person.page.mouse.click(x, y)
        await person.types("ls\n" if person.chooses(2) else "pwd\n")
        await person.pause()


async def in_a_terminal(person: Person) -> None:
    await person.page.click(".xterm-screen")
    while person.works_on:
        await person.types("ls\n" if person.chooses(2) else "pwd\n")
        await person.pause()


async def with_one_key(person: Person) -> None:
    """Nothing but Enter is typed."""
    await person.page.click(".xterm-screen")
    while person.works_on:
        await person.page.keyboard.press("Enter")
        await person.pause()


# ── what they run ────────────────────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
let number = 0;
const ask = path => fetch(path).then(answer => answer.text());
document.querySelector('#ask').onclick = () => ask(`/data.json?page=${++number}`);
document.querySelector('#same').onclick = () => ask('/data.json');
"""
PAGE = "<!doctype html><title>page</title><button id=ask>ask</button><button id=same>same</button>"
WEBPACK = """
const path = require('node:path');
module.exports = {
  mode: 'development', entry: './main.js', context: __dirname,
  devServer: {static: __dirname, host: '127.0.0.1', allowedHosts: 'all'},
};
"""
NEXT_PAGE = """'use client';
import { useState } from 'react';
export default function Page() {
  const [number, setNumber] = useState(0);
  const ask = () => { setNumber(number + 1); fetch(`/data.json?page=${number}`); };
  return <><button id="ask" onClick={ask}>{number}</button><button id="same">same</button></>;
}
"""
NEXT_LAYOUT = "export default ({ children }) => <html><body>{children}</body></html>;\n"
STREAMLIT = """
import streamlit
streamlit.title('page')
if streamlit.button('ask'):
    streamlit.write('asked')
"""
GRADIO = """
import sys
import gradio
with gradio.Blocks() as page:
    asked, answer = gradio.Textbox(label='asked'), gradio.Textbox(label='answer')
    gradio.Button('ask', elem_id='ask').click(lambda text: text.upper(), asked, answer)
page.launch(server_name='127.0.0.1', server_port=int(sys.argv[1]))
"""
SCREEN = """<!doctype html><title>screen</title><body style="margin:0;height:100vh"><script type="module">
import RFB from './novnc/core/rfb.js';
const screen = new RFB(document.body, `ws://${location.host}/websockify`);
screen.addEventListener('connect', () => { document.body.className = 'connected'; screen.focus(); });
</script>"""
SCREEN_SERVER = """
set -e
number=$1 port=$2 programs=$3
ln -sfn "$programs/node/node_modules/@novnc/novnc" web/novnc
Xtigervnc ":$number" -geometry 800x600 -SecurityTypes None -rfbport $((port + 1)) -localhost >screen.log 2>&1 &
sleep 3
DISPLAY=":$number" xterm -geometry 80x24+50+50 &
exec "$programs/novnc/bin/websockify" --web web "127.0.0.1:$port" "127.0.0.1:$((port + 1))"
"""
_NODE = "{programs}/node/node_modules/.bin"
WETTY = (
    *(f"{_NODE}/wetty", "--port", "{port}", "--host", "127.0.0.1", "--base", "/"),
    *("--command", "bash --norc"),
)
VITE = (f"{_NODE}/vite", "--host", "127.0.0.1", "--port", "{port}", "--strictPort")
VITE_FILES = {
    "index.html": f"{PAGE}<script type=module src=/main.js></script>",
    "main.js": SCRIPT,
    "public/data.json": "{}",
}

APPLICATIONS = {
    "jupyterlab": Application(
        (
            *("{programs}/jupyterlab/bin/jupyter-lab", "--no-browser", "--allow-root", "--port", "{port}"),
            *("--IdentityProvider.token=", "--ServerApp.allow_remote_access=True", "--ServerApp.root_dir={folder}"),
        ),
        ".jp-LauncherCard",
        in_a_notebook,
        path="/lab",
        python=("jupyterlab==4.6.6",),
    ),
    "vite": Application(VITE, "#ask", in_links_and_buttons, VITE_FILES, node=("vite@8.3.8",)),
    "vite-one-button": Application(VITE, "#same", with_one_button, VITE_FILES, node=("vite@8.3.8",)),
    "webpack": Application(
        (f"{_NODE}/webpack-dev-server", "--config", "{folder}/webpack.config.js", "--port", "{port}"),
        "#ask",
        in_links_and_buttons,
        {
            "index.html": f"{PAGE}<script src=/main.js></script>",
            "main.js": SCRIPT,
            "data.json": "{}",
            "webpack.config.js": WEBPACK,
        },
        node=("webpack@5.112.2", "webpack-cli@7.3.1", "webpack-dev-server@5.2.7"),
    ),
    "next": Application(
        (f"{_NODE}/next", "dev", "--port", "{port}", "--hostname", "127.0.0.1", "{folder}"),
        "#ask",
        in_links_and_buttons,
        {
            "app/page.jsx": NEXT_PAGE,
            "app/layout.jsx": NEXT_LAYOUT,
            "public/data.json": "{}",
            "package.json": '{"private": true}',
        },
        node=("next@15.5.29", "react@19.3.1", "react-dom@19.3.1"),
    ),
    "streamlit": Application(
        (
            *("{programs}/streamlit/bin/streamlit", "run", "{folder}/page.py", "--server.port", "{port}"),
            *("--server.headless", "true", "--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false"),
            *("--server.enableCORS", "false", "--server.enableXsrfProtection", "false"),
        ),
        "[data-testid='stBaseButton-secondary']",
        in_streamlit,
        {"page.py": STREAMLIT},
        python=("streamlit==1.67.0",),
    ),
    "gradio": Application(
        ("{programs}/gradio/bin/python", "{folder}/page.py", "{port}"),
        "#ask",
        in_gradio,
        {"page.py": GRADIO},
        python=("gradio==6.31.0",),
    ),
    "novnc": Application(
        ("sh", "{folder}/serve.sh", "57", "{port}", "{programs}"),
        "body.connected canvas",
        in_a_screen,
        {"web/index.html": SCREEN, "serve.sh": SCREEN_SERVER},
        path="/index.html",
        python=("websockify==0.13.0",),
        node=("@novnc/novnc@1.7.0",),
    ),
    "wetty": Application(WETTY, ".xterm-screen", in_a_terminal, node=("wetty@3.2.0",)),
    "wetty-one-key": Application(WETTY, ".xterm-screen", with_one_key, node=("wetty@3.2.0",)),
}
