"""The terminal screens in docs/screens, taken from the real program: `python -m tests.system.screens` takes them anew.

What differs from run to run (ids, times, sizes, the password) is masked when two screens are compared.
"""

import os
import pty
import re
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.settings import load_settings
from tests.real_services import free_port
from tests.system.deployment import CODEHUB
from tests.system.local_instance import temporary_data_dir, up

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screens"
FIRST_STEPS = ("ws create demo --wait", "ws ls", "ws show demo", "ws lifecycle demo")
SLEEP = ("ws stop demo --wait", "ws archive demo --wait", "ws archives demo", "ws files demo", "ws events demo -n 8")
BACK = (
    "ws start demo --wait",
    "ws delete demo --yes --wait",
    "ws ls --deleted",
    "ws undelete demo --wait",
    "whoami",
)
HELP = ("--help", "ws --help")

MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"demo-[0-9a-z]+\."), "demo-SLUG."),
    (re.compile(r"\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?"), "TIME"),
    (re.compile(r"\d+ (s|min|h|d)\b"), "SPAN"),
    (re.compile(r"[\d.]+ (B|kB|MB)\b +\d+"), "SIZE FILES"),
    (re.compile(r"(?<=Password: )\S+"), "PASSWORD"),
    (re.compile(r"\.venv/bin/codehub"), "codehub"),
    (re.compile(r" +"), " "),
)


def masked(text: str) -> list[str]:
    """Without the lines that tell how it goes (who looks seldom sees fewer), without what the IDE put at home, and
    without what it uses, which is not known at once."""
    lines = [line for line in text.splitlines() if not re.match(r"demo: [A-Z]+|0\d{3} |(CPU|cpu|memory|disk) ", line)]
    for mask, word in MASKS:
        lines = [mask.sub(word, line) for line in lines]
    return [line.rstrip() for line in lines]


def taken() -> Iterator[tuple[str, str]]:
    """(file name, screen) of each, in the order in which a newcomer sees them."""
    with temporary_data_dir() as directory:
        home, port = directory / "home", free_port()
        home.mkdir()
        unused = load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)
        environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "CODEHUB_IDE_CACHE_DIR": str(ide_cache_dir(unused)),
            "COLUMNS": "80",
        }

        def tidy(text: str) -> str:
            shown = text.replace(str(directory / "data"), "~/.local/share/codehub").replace(str(port), "8000")
            shown = shown.replace(str(CODEHUB), ".venv/bin/codehub")
            return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"

        def screen(commands: Sequence[str]) -> str:
            return tidy("\n".join(f"$ codehub {words}\n{typed(words.split(), environment)}" for words in commands))

        with up(directory / "data", port, environment) as running:
            yield "up.txt", tidy(f"$ make up\n{running.screen}")
            signed_in = answered(
                ["login", f"http://localhost:{port}", "-u", "admin"], running.password or "", environment
            )
            yield "login.txt", tidy(f"$ codehub login -u admin\n{signed_in}")
            yield "first-steps.txt", screen(FIRST_STEPS)
            yield "sleep.txt", screen(SLEEP)
            yield "back.txt", screen(BACK)
            yield "help.txt", screen(HELP)


def typed(words: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [CODEHUB, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def answered(words: Sequence[str], password: str, environment: dict[str, str]) -> str:
    """At a real terminal, where the password is asked for and does not show."""
    process, terminal = pty.fork()
    if process == 0:
        os.execve(CODEHUB, [str(CODEHUB), *words], environment)
    said = b""
    while b"Password" not in said:
        said += os.read(terminal, 1024)
    while termios.tcgetattr(terminal)[3] & termios.ECHO:  # what is typed before is thrown away
        time.sleep(0.01)
    os.write(terminal, f"{password}\n".encode())
    while True:
        try:
            piece = os.read(terminal, 1024)
        except OSError:  # what Linux says when the other side has closed
            break
        if not piece:
            break
        said += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, said
    return said.decode().replace("\r\n", "\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in taken():
        (FOLDER / name).write_text(text)
        print(f"docs/screens/{name}")


if __name__ == "__main__":
    main()
