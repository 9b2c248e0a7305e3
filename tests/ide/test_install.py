"""An installation is there, whole and tried, or it is not; whatever happens on the way, and however many want it."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from codehub.adapters.ide import IdeError, code_server, is_installed
from codehub.adapters.ide.cache import WAITING
from codehub.adapters.ide.install import CODE_SERVER, Package, unneeded
from codehub.adapters.ide.toolchain import Toolchain, node_platform
from tests.eventually import eventually
from tests.ide.fake_release import DROPPED, KEPT, FakeRelease

INSTALLER = """
import asyncio, sys
from pathlib import Path
from codehub.adapters.ide.install import Package, ensure_code_server
from codehub.adapters.ide.install import unneeded
from codehub.adapters.ide.toolchain import Toolchain, node_platform
cache, root, sha512 = sys.argv[1:]
tools, package = Toolchain(Path(root), "24.0.0"), Package("code-server", "1.2.3", sha512)
asyncio.run(ensure_code_server(Path(cache), print, tools=tools, package=package))
"""


async def test_what_is_installed_is_whole_slim_and_tried(release: FakeRelease) -> None:
    ide = await release.ensure()
    assert is_installed(ide)
    assert (ide.version, ide.notes, ide.node) == ("1.2.3", (), release.tools.node)
    found = {str(path.relative_to(ide.package)) for path in ide.package.rglob("*") if path.is_file()}
    assert (set(KEPT) - found, found & set(DROPPED)) == (set(), set())
    assert ide.configuration.read_text() == ""
    assert len(release.calls("entry.js")) == 1
    assert release.left() == [ide.directory.name, "ide.lock"]
    assert ide.directory.name.startswith("code-server-1.2.3-node-24.0.0-")


async def test_everybody_may_read_what_is_installed(release: FakeRelease) -> None:
    """Root's workspaces have users of their own. One of an earlier version, which was private, is opened when found."""
    ide = await release.ensure()
    for path in (ide.entry, ide.entry.parent, ide.package, ide.directory):
        path.chmod(path.stat().st_mode & 0o700)
    await release.ensure()
    for path in (ide.directory, *ide.directory.rglob("*")):
        wanted = 0o005 if path.is_dir() else 0o004
        assert path.stat().st_mode & wanted == wanted, path


def test_on_a_platform_that_nobody_prebuilt_for_nothing_prebuilt_is_dropped(release: FakeRelease) -> None:
    package = release.root / "published" / "package"
    here, elsewhere = ({path.parent.name for path in unneeded(package, p)} for p in (node_platform(), "linux-odd"))
    assert {"prebuilds", "bin"} <= here
    assert not {"prebuilds", "bin"} & elsewhere


async def test_what_is_in_the_cache_needs_nobody(release: FakeRelease) -> None:
    first = await release.ensure()
    before = len(release.calls())
    release.trouble("no network")
    told: list[str] = []
    assert await release.ensure(lambda text, fraction: told.append(text)) == first
    assert (len(release.calls()), told) == (before, [])


async def test_another_version_or_another_node_stands_beside_it(release: FakeRelease) -> None:
    ide = await release.ensure()
    newer = Package("code-server", "1.2.4", release.package.sha512)
    assert not is_installed(code_server(release.cache, tools=release.tools, package=newer))
    upgraded = Toolchain(release.root, "26.0.0")
    assert not is_installed(code_server(release.cache, tools=upgraded, package=release.package))
    assert is_installed(ide)


async def test_progress_goes_from_nothing_to_all_and_never_back(release: FakeRelease) -> None:
    told: list[tuple[str, float]] = []
    await release.ensure(lambda text, fraction: told.append((text, fraction)))
    fractions = [fraction for _, fraction in told]
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert all(before <= after for before, after in pairwise(fractions))
    assert told[0][0] == "Downloading code-server 1.2.3"
    assert len({text for text, _ in told}) == 7


async def test_two_at_once_install_it_once(release: FakeRelease) -> None:
    release.trouble("slow")
    told: list[str] = []
    one, other = await asyncio.gather(
        *(release.ensure(lambda text, fraction: told.append(text)) for _ in range(2)),
    )
    assert one == other
    assert len([call for call in release.calls("npm") if call["words"][0] == "pack"]) == 1
    assert told.count(WAITING) == 1


async def test_killed_half_way_the_next_one_begins_anew(release: FakeRelease) -> None:
    release.trouble("hangs")
    words = [str(release.cache), str(release.root), release.package.sha512]
    with subprocess.Popen([sys.executable, "-c", INSTALLER, *words], stdout=subprocess.DEVNULL) as installer:
        npm = await hanging(release)
        unfinished = [name for name in release.left() if name.startswith(".")]
        assert len(unfinished) == 1
        installer.kill()
    await eventually(lambda: gone(npm))
    assert unfinished[0] in release.left()

    release.trouble("")
    ide = await release.ensure()
    assert is_installed(ide)
    assert release.left() == [ide.directory.name, "ide.lock"]


async def test_cancelled_it_leaves_nothing(release: FakeRelease) -> None:
    release.trouble("hangs")
    installing = asyncio.ensure_future(release.ensure())
    npm = await hanging(release)
    installing.cancel()
    with suppress(asyncio.CancelledError):
        await installing
    assert await gone(npm)
    assert release.left() == ["ide.lock"]


async def hanging(release: FakeRelease) -> int:
    path = release.root / "hanging"

    async def written() -> bool:
        return path.exists() and path.read_text() != ""

    await eventually(written)
    return int(path.read_text())


async def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def test_without_a_network_it_says_what_failed_and_what_to_do(release: FakeRelease) -> None:
    release.trouble("no network")
    message = await failure(release)
    first, *rest = message.splitlines()
    assert first == "the IDE cannot be installed: `npm pack code-server@1.2.3` failed with exit code 1"
    assert rest[:2] == ["npm error code ENOTFOUND", "npm error network request to the registry failed"]
    assert len(rest) == 4  # no stack, and no log that is gone
    for remedy in ("~/.npmrc", "npm_config_registry", "HTTPS_PROXY", "NODE_EXTRA_CA_CERTS", "CODEHUB_IDE_COMMAND"):
        assert remedy in message
    assert release.left() == ["ide.lock"]


async def test_one_that_was_tampered_with_is_not_even_unpacked(release: FakeRelease) -> None:
    with (release.root / "published.tgz").open("ab") as tarball:
        tarball.write(b"a little more")
    message = await failure(release)
    assert "not the one that was published" in message
    assert [call["words"][0] for call in release.calls()] == ["pack"]
    assert release.left() == ["ide.lock"]


async def test_one_that_does_not_run_is_thrown_away(release: FakeRelease) -> None:
    release.trouble("does not run")
    message = await failure(release)
    assert "Cannot find module 'express'" in message
    assert release.left() == ["ide.lock"]


async def test_a_damaged_one_is_installed_again(release: FakeRelease) -> None:
    ide = await release.ensure()
    ide.entry.unlink()
    assert not is_installed(ide)
    assert is_installed(await release.ensure())


async def test_a_cache_that_cannot_be_made_is_explained(release: FakeRelease) -> None:
    release.cache.write_text("a file")
    message = await failure(release)
    assert str(release.cache) in message
    assert "CODEHUB_IDE_CACHE_DIR" in message
    assert release.calls() == []


async def failure(release: FakeRelease) -> str:
    with pytest.raises(IdeError) as caught:
        await release.ensure()
    return str(caught.value)


async def test_without_a_compiler_it_says_what_is_missed(release: FakeRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    release.trouble("no native modules")
    monkeypatch.setenv("PATH", str(release.root))
    ide = await release.ensure()
    assert release.calls("node-gyp") == []
    assert len(ide.notes) == 4
    assert "node-pty is not there, terminals do not work: install a C++ compiler and make" in "\n".join(ide.notes)
    assert (await release.ensure()).notes == ide.notes


async def test_with_a_compiler_native_modules_are_made(release: FakeRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    release.trouble("no native modules")
    for name in ("make", "c++"):
        (release.root / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(release.root))
    monkeypatch.delenv("CXX", raising=False)
    ide = await release.ensure()
    assert ide.notes == ()
    given = [call["env"] for call in release.calls("node-gyp")]
    assert [env["CXX"] for env in given] == ["c++"] * 4
    assert {env["npm_config_nodedir"] for env in given} == {str(release.root)}
    assert not list(ide.package.rglob("obj.target"))


async def test_npm_is_configured_by_its_user_and_writes_only_where_we_say(
    release: FakeRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"NODE_EXTRA_CA_CERTS": "/etc/ca.pem", "HTTPS_PROXY": "http://proxy:1", "npm_config_registry": "mirror"}
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CODEHUB_DATABASE_URL", "postgresql://codehub:hunter22@db/codehub")
    await release.ensure()
    calls = release.calls("npm")
    assert len(calls) == 4
    for call in calls:
        assert theirs.items() <= call["env"].items()
        assert not any(name.startswith("CODEHUB_") for name in call["env"])
        for option in ("--cache", "--logs-dir"):
            [where] = [word.partition("=")[2] for word in call["words"] if word.startswith(f"{option}=")]
            assert Path(where).is_relative_to(release.cache)
        assert "--ignore-scripts" in call["words"]
        assert not any("registry" in word for word in call["words"])


async def test_a_program_killed_from_outside_is_named(release: FakeRelease) -> None:
    release.trouble("hangs")
    installing = asyncio.ensure_future(release.ensure())
    os.kill(await hanging(release), signal.SIGTERM)
    with pytest.raises(IdeError, match="`npm install` in package was ended by SIGTERM"):
        await installing


def test_the_pinned_hash_is_one() -> None:
    assert len(CODE_SERVER.sha512) == 88
