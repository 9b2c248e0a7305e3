"""What a sandboxed workspace sees: the arguments as a value, and a look around from inside."""

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from codehub.adapters.process import ProcessRuntime
from codehub.adapters.process.sandbox import HOME_INSIDE, find_bubblewrap, sandboxed
from codehub.domain.errors import BackendError
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec
from tests.contracts.patience import eventually


def test_only_what_is_named_is_seen_and_only_the_home_and_the_socket_are_written() -> None:
    root, home, sockets = Path("/data/process"), Path("/data/process/volumes/v/home"), Path("/data/process/sockets/a")
    words = sandboxed("bwrap", ["ide", "x"], home=home, sockets=sockets, root=root, readable=[Path("/data")])
    assert words[:7] == [
        *("bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"),
        *("--cap-drop", "ALL"),
    ]
    private = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--tmpfs", "/tmp"]
    assert words[words.index("--proc") :][: len(private)] == private
    assert words[words.index("/data") - 1 :] == [
        *("--ro-bind", "/data", "/data", "--tmpfs", "/data/process"),
        *("--bind", str(sockets), str(sockets), "--bind", str(home), "/home/coder", "--chdir", "/home/coder"),
        *("--", "ide", "x"),
    ]
    seen = {words[at + 1] for at, word in enumerate(words) if word in {"--ro-bind", "--bind"}}
    assert seen <= {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"} | {
        "/data",
        "/proc/sys",
        "/dev/null",
        str(home),
        str(sockets),
    }


def test_a_hidden_directory_stays_so_whatever_is_readable_around_it() -> None:
    """Passwords lie beside the runtime's root; a data directory below /opt, or an IDE named by a path in it, must not
    bring them in."""
    data = Path("/", "opt", "codehub")
    words = sandboxed(
        "bwrap",
        ["ide"],
        home=data / "runtime/volumes/v/home",
        sockets=data / "runtime/sockets/a",
        root=data / "runtime",
        readable=[data.parent, data, data / "ide", Path("/srv/tools")],
        hidden=[data],
    )
    shown = [Path(words[at + 1]) for at, word in enumerate(words) if word in {"--ro-bind", "--tmpfs"}]
    assert shown[-6:] == [data.parent, data, Path("/srv/tools"), data, data / "ide", data / "runtime"]
    assert words[words.index("/srv/tools") + 2 :][:2] == ["--tmpfs", str(data)]


@pytest.mark.system
async def test_in_a_sandbox_there_is_nothing_of_the_others(tmp_path: Path) -> None:
    if find_bubblewrap() is None:
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
    if find_bubblewrap() is None:
        pytest.skip("bubblewrap is not there or does not work")
    runtime, workspace_id = ProcessRuntime(tmp_path / "root", "here", ["true"], sandbox=True), uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    spec = ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image")
    code, output = await runtime.run_inside(spec, ["sh", "-c", TRIES])
    assert (code, output.split()) == (0, ["CapEff:", "0000000000000000"])
    assert not Path("/usr/codehub-was-here").exists()


@pytest.mark.system
async def test_hidden_directories_are_empty_inside(tmp_path: Path) -> None:
    if find_bubblewrap() is None:
        pytest.skip("bubblewrap is not there or does not work")
    archives = tmp_path / "archives"
    archives.mkdir()
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


async def test_what_ran_behind_walls_never_runs_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may rely on the walls: a bubblewrap that stops working stops the starts, not the walls."""
    works: list[str | None] = ["/usr/bin/bwrap"]
    monkeypatch.setattr("codehub.adapters.process.runtime.find_bubblewrap", lambda: works[0])
    assert await ProcessRuntime(tmp_path, "here", ["true"]).isolates()
    works[0] = None
    later, workspace_id = ProcessRuntime(tmp_path, "here", ["true"]), uuid4()
    await later.create_volume(workspace_id, volume_name(workspace_id, 1))
    assert not await later.isolates()
    with pytest.raises(BackendError, match="worked here before"):
        await later.start_container(ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image"))
    assert not await later.containers()
    works[0] = "/usr/bin/bwrap"
    assert await later.isolates(), "a failed trial is not the last word"
