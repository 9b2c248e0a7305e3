"""One workshop per test."""

from pathlib import Path

import pytest

from tests.ide.fake_release import FakeRelease


@pytest.fixture
def release(tmp_path: Path) -> FakeRelease:
    return FakeRelease.build(tmp_path)
