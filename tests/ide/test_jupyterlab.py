"""JupyterLab as the IDE: its command line, and what of this machine a program in a virtual environment needs to see."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from codehub.bootstrap.runtimes import IdeError, ide, install_ide, programs
from codehub.settings import Settings, SettingsError, load_settings


def settings(**given: object) -> Settings:
    return load_settings(database_url="postgresql://unused", redis_url="redis://unused", **given)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with something that is named as JupyterLab is."""
    venv.create(tmp_path / "environment", with_pip=False)
    program = tmp_path / "environment" / "bin" / "jupyter-lab"
    program.write_text(f"#!{tmp_path}/environment/bin/python\n")
    program.chmod(0o755)
    return tmp_path / "environment"


def seen(paths: list[Path], wanted: Path) -> bool:
    return any(path == wanted or path in wanted.parents for path in paths)


def test_a_program_of_a_virtual_environment_sees_it_and_its_interpreter(environment: Path) -> None:
    visible = programs([str(environment / "bin" / "jupyter-lab"), "{socket}"])
    assert seen(visible, environment / "lib")
    assert seen(visible, environment / "pyvenv.cfg")
    assert seen(visible, Path(sys.base_prefix) / "lib")


def test_a_program_that_is_found_by_path_sees_its_environment(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment / "bin"))
    assert seen(programs(["jupyter-lab", "{socket}"]), environment / "lib")


def test_a_program_elsewhere_sees_no_more_than_its_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ide"
    program.touch(mode=0o755)
    visible = programs([str(program), "{socket}"])
    assert seen(visible, program)
    assert not seen(visible, tmp_path / "secret")


def test_the_preset_runs_the_jupyterlab_that_is_found_by_path(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment / "bin"))
    command, visible = ide(settings(ide="jupyterlab"))
    assert command[:2] == ["sh", "-c"]
    assert str(environment / "bin" / "jupyter-lab") in command
    assert {"--ServerApp.sock={socket}", "--ServerApp.root_dir={home}", "--ServerApp.allow_remote_access=True"} <= set(
        command
    )
    assert seen(visible, environment / "lib")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/team/shop.git//", "shop"),
        ("git@host:shop", "shop"),
        ("https://host/team/.ssh", "ssh"),
        ("https://host/team/.ssh.git", "ssh"),
        ("git@host:.git", "repository"),
        ("https://host/..", "repository"),
        ("https://host/team/bin", "bin-repository"),
        ("https://host/team/.node_modules.git", "node_modules-repository"),
        ("https://host/team/a b\n$(touch ran)", "a-b---touch-ran-"),
        (f"https://host/{'a' * 300}", "a" * 100),
    ],
)
def test_the_clone_s_folder_is_none_that_programs_use(
    url: str, name: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the repository is called. A git of ours tells what it was asked for."""
    home = tmp_path / "home"
    home.mkdir()
    for program, text in (("jupyter-lab", "true"), ("git", 'for last do :; done; printf %s "$last" > asked')):
        (environment / "bin" / program).write_text(f"#!{shutil.which('sh')}\n{text}\n")
        (environment / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{environment / 'bin'}:{os.environ['PATH']}")
    words = [word.replace("{home}", str(home)) for word in ide(settings(ide="jupyterlab"))[0]]
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEHUB_GIT_URL": url}
    subprocess.run(words, env=given, capture_output=True, check=True)  # until its output ends, and so the clone
    assert (home / "asked").read_text() == f"./{name}"
    assert sorted(path.name for path in home.iterdir()) == [".local", "asked"]


async def test_the_preset_without_jupyterlab_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IdeError, match="pip install jupyterlab"):
        await install_ide(settings(ide="jupyterlab"), print)


async def test_a_command_of_one_s_own_comes_before_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    given = settings(ide="jupyterlab", ide_command="my-ide {socket}")
    assert await install_ide(given, print) is None
    assert ide(given)[0] == ["my-ide", "{socket}"]


def test_no_other_preset() -> None:
    with pytest.raises(SettingsError, match=r"CODEHUB_IDE='emacs': must be code-server or jupyterlab"):
        settings(ide="emacs")
