"""Where the IDE is kept and which is run, by the settings alone."""

from pathlib import Path

import pytest

from codehub.bootstrap.runtimes import ide, ide_cache_dir, install_ide
from codehub.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("CODEHUB_IDE_CACHE_DIR", "CODEHUB_IDE_COMMAND", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def settings() -> Settings:
    return load_settings(database_url="postgresql://db/codehub", redis_url="redis://cache")


def test_the_cache_is_where_a_person_keeps_caches(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ide_cache_dir(settings()) == tmp_path / ".cache" / "codehub"
    environment.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert ide_cache_dir(settings()) == tmp_path / ".cache" / "codehub"
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert ide_cache_dir(settings()) == tmp_path / "caches" / "codehub"
    environment.setenv("CODEHUB_IDE_CACHE_DIR", "~/ide")
    assert ide_cache_dir(settings()) == tmp_path / "ide"


def test_unset_it_is_code_server_from_the_cache_and_a_sandbox_shows_it(tmp_path: Path) -> None:
    command, readable = ide(settings())
    [entry] = [Path(word) for word in command if word.endswith("entry.js")]
    [place] = [path for path in readable if entry.is_relative_to(path)]
    assert place.parent == tmp_path / ".cache" / "codehub"
    assert not place.parent.exists()


async def test_another_ide_is_taken_as_it_is_and_nothing_is_installed(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("CODEHUB_IDE_COMMAND", "my-ide --listen {socket}")
    assert ide(settings())[0] == ["my-ide", "--listen", "{socket}"]
    assert await install_ide(settings(), print) is None
    assert list(tmp_path.iterdir()) == []
