"""The screens that the documentation shows are what the program says today; `python -m tests.system.screens` takes them
anew."""

import asyncio

import pytest

from codehub.adapters.ide import IdeError, ensure_code_server
from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.settings import load_settings
from tests.system.screens import FOLDER, masked, taken

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture
def installed() -> None:
    given = load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)
    try:
        asyncio.run(ensure_code_server(ide_cache_dir(given), lambda text, fraction: None))
    except IdeError as error:
        pytest.skip(f"code-server is not in the cache and cannot be installed: {error}")


@pytest.mark.usefixtures("installed")
def test_the_documentation_shows_what_is_said() -> None:
    seen = dict(taken())
    assert sorted(seen) == sorted(path.name for path in FOLDER.glob("*.txt"))
    for name, text in seen.items():
        assert masked((FOLDER / name).read_text()) == masked(text), name
