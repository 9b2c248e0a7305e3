"""Each test has a front harness of its own."""

import pytest

from codehub.domain.identity import Caller
from tests.usecases.accounts_harness import AccountsHarness


@pytest.fixture
def harness() -> AccountsHarness:
    return AccountsHarness()


@pytest.fixture
async def admin(harness: AccountsHarness) -> Caller:
    return await harness.admin()
