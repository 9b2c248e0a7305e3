"""One workshop per test."""

from pathlib import Path

import pytest

from tests.ide.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop.build(tmp_path)
