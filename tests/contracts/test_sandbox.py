"""What a sandboxed workspace sees: the arguments as a value, and a look around from inside."""

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from codehub.adapters.process import ProcessRuntime
from codehub.adapters.process.sandbox import HOME_INSIDE, find_bubblewrap, sandboxed
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec
from tests.contracts.patience import eventually


def test_only_what_is_named_is_seen_and_only_the_home_and_the_socket_are_written() -> None:
    root, home, sockets = Path("/data/process"), Path("/data/process/volumes/v/home"), Path("/data/process/sockets/a")
    words = sandboxed("bwrap", ["ide", "x"], home=home, sockets=sockets, root=root, readable=[Path("/data")])
    assert words[:5] == ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    assert words[words.index("--proc") :] == [
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp"),
        *("--ro-bind", "/data", "/data", "--tmpfs", "/data/process"),
        *("--bind", str(sockets), str(sockets), "--bind", str(home), "/home/coder", "--chdir", "/home/coder"),
        *("--", "ide", "x"),
    ]
    seen = {words[at + 1] for at, word in enumerate(words) if word in {"--ro-bind", "--bind"}}
    assert seen <= {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"} | {
        "/data",
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
        hidden=data,
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
