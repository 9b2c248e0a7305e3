"""Each test has a front desk of its own."""

import pytest

from codehub.domain.identity import Caller
from tests.usecases.front_desk import FrontDesk


@pytest.fixture
def desk() -> FrontDesk:
    return FrontDesk()


@pytest.fixture
async def admin(desk: FrontDesk) -> Caller:
    return await desk.admin()
