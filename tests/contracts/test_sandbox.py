"""What a sandboxed workspace sees: the arguments as a value, and a look around from inside."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from codehub.adapters.ide.toolchain import of_the_wheel
from codehub.adapters.process import ProcessRuntime
from codehub.adapters.process.sandbox import (
    CLEAN,
    HOME_INSIDE,
    SandboxPaths,
    SandboxTools,
    find_sandbox_tools,
    sandboxed,
)
from codehub.domain.errors import BackendError
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec
from tests.certificates import Authority
from tests.eventually import eventually
from tests.tls_in_workspace import TRUSTED, UNTRUSTED, put_tls_site, tls_script


def sandbox_paths(root: Path, **more: Any) -> SandboxPaths:
    home, sockets = root / "volumes/v/home", root / "sockets/a"
    return SandboxPaths(1234, home, sockets, root / "volumes/v/etc", root / "containers/c/network", root, **more)


def shown(words: Sequence[str], *options: str) -> list[Path]:
    return [Path(words[at + 1]) for at, word in enumerate(words) if word in options]


def test_only_what_is_named_is_seen_and_only_the_home_and_the_socket_are_written() -> None:
    root = Path("/data/process")
    words = sandboxed(SandboxTools("bwrap"), ["ide", "x"], sandbox_paths(root, readable=[Path("/data")]))
    assert words[:7] == [
        *("bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"),
        *("--cap-drop", "ALL"),
    ]
    assert words[words.index("/data") - 1 :] == [
        *("--ro-bind", "/data", "/data", "--tmpfs", "/data/process"),
        *("--perms", "0755", "--dir", "/data/process/sockets"),
        *("--bind", "/data/process/sockets/a", "/data/process/sockets/a"),
        *("--perms", "0755", "--dir", "/home", "--bind", "/data/process/volumes/v/home", "/home/coder"),
        *("--remount-ro", "/", "--chdir", "/home/coder", "--", *CLEAN, "ide", "x"),
    ]
    assert shown(words, "--bind") == [root / "sockets/a", root / "volumes/v/home"]
    system = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc/sys", "/data"}
    seen = {str(path) for path in shown(words, "--ro-bind")} - system
    ours = {str(root / "volumes/v/etc" / name) for name in ("passwd", "group")}
    assert ours <= seen
    assert all(path.startswith("/etc/") or path == "/run/systemd/resolve" for path in seen - ours)
    assert "/etc" not in seen


def test_who_is_root_gives_a_user_of_its_own_from_inside_and_a_network_from_outside() -> None:
    sandbox_tools = SandboxTools("bwrap", "setpriv", "slirp4netns")
    words = sandboxed(sandbox_tools, ["ide"], sandbox_paths(Path("/data")))
    assert words[:2] == [sys.executable, "-I"]
    assert words[4:7] == ["slirp4netns", "/data/containers/c/network", "bwrap"]
    assert words[words.index("--") + 1 :][:4] == ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"]
    assert words[-1 - len(CLEAN) :] == [*CLEAN, "ide"]
    assert "--unshare-user" not in words


def test_who_is_not_root_stays_who_it_is_in_a_network_of_its_own() -> None:
    words = sandboxed(SandboxTools("bwrap", None, "slirp4netns"), ["ide"], sandbox_paths(Path("/data")))
    assert words[words.index("--unshare-user") :][:3] == ["--unshare-user", "--uid", "1234"]
    assert words[-1 - len(CLEAN) :] == [*CLEAN, "ide"]


def test_a_hidden_directory_stays_so_whatever_is_readable_around_it() -> None:
    """Passwords lie beside the runtime's root; a data directory below /opt, or an IDE named by a path in it, must not
    bring them in."""
    data = Path("/", "opt", "codehub")
    readable = [data.parent, data, data / "ide", Path("/srv/tools")]
    words = sandboxed(SandboxTools("bwrap"), ["ide"], sandbox_paths(data / "runtime", readable=readable, hidden=[data]))
    seen = shown(words, "--ro-bind", "--tmpfs")
    assert seen[-6:] == [data.parent, data, Path("/srv/tools"), data, data / "ide", data / "runtime"]
    assert words[words.index("/srv/tools") + 2 :][:2] == ["--tmpfs", str(data)]


@pytest.mark.system
async def test_in_a_sandbox_there_is_nothing_of_the_others(tmp_path: Path) -> None:
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    root, workspace_id, other = tmp_path / "root", uuid4(), uuid4()
    script = f"ls -a {root}/volumes {root}/containers {Path.home()} /tmp; echo $HOME; ps -e | wc -l; touch /etc/x"
    runtime = ProcessRuntime(root, "here", ["sh", "-c", script], sandbox=True)
    assert await runtime.isolates()
    for owner in (workspace_id, other):
        await runtime.create_volume(owner, volume_name(owner, 1))
    (runtime.homes.home(volume_name(other, 1)) / "diary").write_text("private")
    await runtime.start_container(ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image"))

    async def ended() -> bool:
        return not (await runtime.containers())[workspace_id].running

    await eventually(ended)
    output = (root / "containers" / str(workspace_id) / "output").read_text()
    assert str(other) not in output
    assert f"{root}/volumes" in output  # only in the complaint that it is not there
    assert "No such file" in output
    assert str(HOME_INSIDE) in output
    assert "Read-only" in output
    await runtime.remove_container(workspace_id)
    shutil.rmtree(runtime._sockets._directory)


TRIES = """
grep CapEff /proc/self/status
mount -o remount,rw,bind /usr 2>/dev/null && echo REMOUNTED
(: > /proc/sys/kernel/core_pattern) 2>/dev/null && echo KERNEL
cat /etc/shadow 2>/dev/null | grep -q . && echo SHADOW
ls /etc/ssh 2>/dev/null | grep -q . && echo SSH
touch /usr/codehub-was-here 2>/dev/null && echo WROTE
true
"""


@pytest.mark.system
async def test_in_a_sandbox_root_is_nobody(tmp_path: Path) -> None:
    """Also where CodeHub itself runs as root: no capability, nothing of the kernel's, no secret of the system's."""
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    runtime, workspace_id = ProcessRuntime(tmp_path / "root", "here", ["true"], sandbox=True), uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    spec = ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image")
    code, output = await runtime.run_inside(spec, ["sh", "-c", TRIES])
    assert (code, output.split()) == (0, ["CapEff:", "0000000000000000"])
    assert not Path("/usr/codehub-was-here").exists()


@pytest.mark.system
async def test_hidden_directories_are_empty_inside(tmp_path: Path) -> None:
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    archives = tmp_path / "archives"
    archives.mkdir()
    tmp_path.chmod(0o755)
    (archives / "somebody's").write_text("archive")
    runtime = ProcessRuntime(
        tmp_path / "root",
        "here",
        ["true"],
        sandbox=True,
        readable=[tmp_path],
        hidden=[archives, tmp_path / "not there"],
    )
    workspace_id = uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    spec = ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image")
    assert await runtime.run_inside(spec, ["ls", str(archives)]) == (0, "")


@pytest.mark.parametrize("lost", [None, SandboxTools("/usr/bin/bwrap")])
async def test_what_was_isolated_never_runs_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: SandboxTools | None
) -> None:
    """Somebody may rely on it: a bubblewrap or slirp4netns that stops working stops the starts, not the isolation."""
    whole = SandboxTools("/usr/bin/bwrap", None, "/usr/bin/slirp4netns")
    works = [whole]
    monkeypatch.setattr("codehub.adapters.process.runtime.find_sandbox_tools", lambda **_: works[0])
    assert await ProcessRuntime(tmp_path, "here", ["true"]).isolates()
    works[0] = lost  # type: ignore[assignment]
    later, workspace_id = ProcessRuntime(tmp_path, "here", ["true"]), uuid4()
    await later.create_volume(workspace_id, volume_name(workspace_id, 1))
    assert not await later.isolates()
    with pytest.raises(BackendError, match="worked here before"):
        await later.start_container(ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image"))
    assert not await later.containers()
    works[0] = whole
    assert await later.isolates(), "a failed trial is not the last word"


@pytest.mark.parametrize(
    ("found", "isolates"),
    [
        (None, False),
        (SandboxTools("bwrap"), False),
        (SandboxTools("bwrap", "setpriv"), True),
        (SandboxTools("bwrap", None, "slirp4netns"), True),
    ],
)
async def test_who_shares_our_user_and_our_network_is_not_kept_from_the_front_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: SandboxTools | None, isolates: bool
) -> None:
    monkeypatch.setattr("codehub.adapters.process.runtime.find_sandbox_tools", lambda **_: found)
    assert await ProcessRuntime(tmp_path, "here", ["true"]).isolates() is isolates


@pytest.mark.system
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives workspaces users of their own")
async def test_an_ide_that_its_user_could_not_read_is_refused_in_words(tmp_path: Path) -> None:
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    private = tmp_path / "ide"
    private.mkdir(mode=0o700)
    runtime = ProcessRuntime(tmp_path / "root", "here", ["true"], sandbox=True, readable=[private])
    workspace_id = uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    with pytest.raises(BackendError, match=r"cannot read .*chmod"):
        await runtime.start_container(ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image"))


@pytest.mark.system
async def test_what_runs_since_before_is_told_from_what_has_all_the_isolation(tmp_path: Path) -> None:
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    before = ProcessRuntime(tmp_path / "root", "here", ["sleep", "60"], sandbox=False)
    now = ProcessRuntime(tmp_path / "root", "here", ["sleep", "60"], sandbox=True)
    old, new = uuid4(), uuid4()
    for runtime, workspace_id in ((before, old), (now, new)):
        await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
        await runtime.start_container(ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image"))
    assert await now.started_with_less() == [old]
    assert await before.started_with_less() == []
    for workspace_id in (old, new):
        await now.remove_container(workspace_id)
    assert await now.started_with_less() == []


@pytest.mark.system
@pytest.mark.parametrize("sandbox", [True, False])
@pytest.mark.parametrize("given", [True, False])
async def test_an_authority_of_the_operator_is_trusted_by_every_program(
    tmp_path: Path, sandbox: bool, given: bool
) -> None:
    if sandbox and find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    authority, workspace_id, tools = Authority(), uuid4(), of_the_wheel()
    runtime = ProcessRuntime(
        tmp_path / "root",
        "here",
        ["true"],
        sandbox=sandbox,
        readable=[tools.root],
        ca_bundle=authority.pem if given else b"",
    )
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    put_tls_site(runtime.homes.home(volume_name(workspace_id, 1)), authority)
    spec = ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image")
    code, said = await runtime.run_inside(spec, ["bash", "-c", tls_script(str(tools.node))])
    assert (code, said.splitlines()) == (0, TRUSTED if given else UNTRUSTED)


@pytest.mark.system
async def test_every_workspace_has_the_variables_of_its_site_unless_its_template_says_otherwise(tmp_path: Path) -> None:
    runtime, workspace_id = ProcessRuntime(tmp_path / "root", "here", ["true"], env={"A": "1", "B": "2"}), uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    spec = ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image", {"B": "3"})
    assert await runtime.run_inside(spec, ["sh", "-c", "echo $A $B"]) == (0, "1 3\n")
