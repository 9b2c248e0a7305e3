"""Restore points from the terminal: listed, looked into, downloaded whole or not at all."""

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from codehub.adapters.memory.archives import StoredEntry
from codehub.cli.output import FAILED, UNREACHABLE, USAGE
from codehub.domain.judge import ArchiveState
from codehub.ports.archives import EntryKind
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal

FILE, FOLDER, LINK = EntryKind.FILE, EntryKind.FOLDER, EntryKind.LINK
BIG = bytes(range(256)) * 4096
HOME = {
    b"notes.txt": StoredEntry(FILE, b"what I wrote"),
    b"big.bin": StoredEntry(FILE, BIG, mode=0o755),
    b"project": StoredEntry(FOLDER, mode=0o755),
    b"project/a.py": StoredEntry(FILE, b"print()"),
    b"project/\xff\xfe": StoredEntry(FILE, b"no text"),
    b"link": StoredEntry(LINK, target=b"/etc/passwd"),
    "기록.txt".encode(): StoredEntry(FILE, b"korean"),
    b"...": StoredEntry(FILE, b"dots"),
    b"evil\x1b[2J": StoredEntry(FILE, b"clears the screen"),
}


@pytest.fixture
def point(ann: Terminal, server: ApiServer) -> str:
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    return server.keep("demo", HOME)


def here(terminal: Terminal) -> list[str]:
    return sorted(path.name for path in terminal.home.iterdir())


def test_list_and_look_inside(ann: Terminal, point: str) -> None:
    assert point in ann.done("ws", "archives", "demo")
    listed = ann.done("ws", "files", "demo")
    for part in ("project/", "link → /etc/passwd", "12 B", "0755", "기록.txt"):
        assert part in listed
    assert "\x1b" not in listed
    assert "a.py" in ann.done("ws", "files", "demo", "project", "--archive", point[:8])
    names = {entry["name"] for entry in ann("ws", "files", "demo", "--json").json()["entries"]}
    assert "notes.txt" in names


def test_the_present_one_is_read_also_when_it_is_not_the_newest(ann: Terminal, server: ApiServer, point: str) -> None:
    """After going back to an older restore point, that one is what the home stands on."""
    newer = server.keep("demo", {b"notes.txt": StoredEntry(FILE, b"what I regret")})
    assert "notes.txt" in ann.done("ws", "files", "demo", "--archive", newer)
    row = server.rows()["demo"]
    server.controller_writes("demo", archive_key=f"{row.id}/{point}/home.tar.zst")
    starred = [line for line in ann.done("ws", "archives", "demo").splitlines() if line.startswith("*")]
    assert [point in line for line in starred] == [True]
    assert ann.done("ws", "download", "demo", "notes.txt", "-o", "-") == "what I wrote"
    assert "project/" in ann.done("ws", "files", "demo")
    whole = (
        zstandard.ZstdDecompressor().decompressobj().decompress(ann("ws", "download", "demo", "--whole", "-o", "-").raw)
    )
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        assert "project/a.py" in tar.getnames()


def test_a_folder_of_many_pages_is_listed_whole(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    server.keep("demo", {b"%04d" % number: StoredEntry(FILE) for number in range(1001)})
    tree = ann("ws", "files", "demo", "--json").json()
    assert [entry["name"] for entry in tree["entries"]] == [f"{number:04d}" for number in range(1001)]


def test_a_file(ann: Terminal, point: str) -> None:
    assert ann.done("ws", "download", "demo", "notes.txt") == "notes.txt: 12 B\n"
    assert Path("notes.txt").read_bytes() == b"what I wrote"
    assert ann.done("ws", "download", "demo", "기록.txt", "-o", "record") == "record: 6 B\n"
    assert here(ann) == ["notes.txt", "record"]


def test_a_folder_is_a_tar(ann: Terminal, point: str) -> None:
    ann.done("ws", "download", "demo", "project")
    with tarfile.open("project.tar") as tar:
        assert "a.py" in {Path(name).name for name in tar.getnames()}
    ann.done("ws", "download", "demo")
    with tarfile.open("demo.tar") as tar:
        assert "notes.txt" in tar.getnames()
    assert here(ann) == ["demo.tar", "project.tar"]


def test_the_whole_as_it_is_stored(ann: Terminal, point: str) -> None:
    ann.done("ws", "download", "demo", "--whole")
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(Path("demo.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert "project/a.py" in tar.getnames()
    assert ann("ws", "download", "demo", "--whole", "-o", "-").raw == Path("demo.tar.zst").read_bytes()
    assert ann("ws", "download", "demo", "notes.txt", "--whole").code == USAGE
    assert here(ann) == ["demo.tar.zst"]


def test_to_a_pipe(ann: Terminal, point: str) -> None:
    said = ann("ws", "download", "demo", "big.bin", "-o", "-")
    assert (said.code, said.raw, said.err) == (0, BIG, "")
    with tarfile.open(fileobj=io.BytesIO(ann("ws", "download", "demo", "project", "-o", "-").raw)) as tar:
        assert len(tar.getnames()) >= 2
    assert here(ann) == []


def test_into_a_directory(ann: Terminal, point: str) -> None:
    Path("place").mkdir()
    assert ann.done("ws", "download", "demo", "project/a.py", "-o", "place") == "place/a.py: 7 B\n"


def test_names_that_are_no_text(ann: Terminal, point: str) -> None:
    ann.done("ws", "download", "demo", "project/\udcff\udcfe")
    assert b"no text" in [path.read_bytes() for path in ann.home.iterdir()]


@pytest.mark.parametrize("path", ["...", "evil\x1b[2J"])
def test_names_that_would_mislead(path: str, ann: Terminal, point: str) -> None:
    said = ann.done("ws", "download", "demo", path)
    assert "\x1b" not in said
    assert len(here(ann)) == 1


def test_what_is_there_is_kept(ann: Terminal, point: str) -> None:
    Path("notes.txt").write_text("mine")
    said = ann("ws", "download", "demo", "notes.txt")
    assert (said.code, said.lines()) == (
        FAILED,
        ["notes.txt is there already. Say --force, or --output another name."],
    )
    assert Path("notes.txt").read_text() == "mine"
    ann.done("ws", "download", "demo", "notes.txt", "--force")
    assert Path("notes.txt").read_text() == "what I wrote"


def test_what_is_not_there(ann: Terminal, point: str) -> None:
    for words in (("download", "demo", "nothing"), ("files", "demo", "nothing"), ("download", "demo", "link")):
        said = ann("ws", *words)
        assert said.code == FAILED
        assert len(said.lines()) >= 1
    assert ann("ws", "download", "demo", "notes.txt", "-o", "no/such/place").code == FAILED
    assert here(ann) == []


def test_a_download_that_is_cut_off_leaves_no_file(ann: Terminal, server: ApiServer, point: str) -> None:
    archive = next(iter(server.api.backends.archives.state.objects.values()))

    network, pieces = server.api.backends.network, 0
    whole = network.call

    async def cut(name: str, effect: object, *rest: object) -> object:
        nonlocal pieces
        if name == "contents.chunk":
            pieces += 1
            if pieces == 4:
                archive.state = ArchiveState.CORRUPTED
        return await whole(name, effect, *rest)  # type: ignore[arg-type]

    object.__setattr__(server.api.parts.contents._network, "call", cut)  # type: ignore[attr-defined]
    said = ann("ws", "download", "demo", "big.bin")
    assert (said.code, said.out) == (UNREACHABLE, "")
    assert "The download was cut off after " in said.err
    assert here(ann) == []


def test_no_restore_point(ann: Terminal) -> None:
    ann.done("ws", "create", "my demo", "--state", "STANDBY")
    assert ann.done("ws", "archives", "my demo").startswith("No restore points yet")
    said = ann("ws", "download", "my demo", "x")
    assert said.lines() == ["my demo has no restore point yet: `codehub ws archive 'my demo'` makes one."]
    said = ann("ws", "restore", "my demo", "-a", "123")
    assert said.lines() == ["my demo has no restore point '123'. See `codehub ws archives 'my demo'`."]


def test_restoring(ann: Terminal, server: ApiServer, point: str) -> None:
    second = server.keep("demo", {})
    assert ann.done("ws", "restore", "demo", "--archive", point[:13]).startswith("Restoring demo (")
    assert point in (server.rows()["demo"].restore_from or "")
    assert second not in (server.rows()["demo"].restore_from or "")
