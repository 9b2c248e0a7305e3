"""The SSH keys with which one reaches one's workspaces, on the account page: added, refused with a reason, removed."""

import asyncssh
import pytest
from playwright.async_api import expect

from tests.browser.dashboard_harness import DashboardHarness
from tests.browser.test_account_secrets import button, confirm, panel, wrong

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


async def test_a_key_is_added_and_removed(harness: DashboardHarness) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519", comment="ann@laptop")
    line = key.export_public_key().decode().strip()
    user = await harness.user("ann")
    page = user.page
    await user.goes("/account")
    keys = panel(page, "SSH access to your workspaces")
    await expect(keys).to_contain_text("There are none yet.")
    await button(page, "Add SSH key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Public key").fill("-----BEGIN OPENSSH PRIVATE KEY-----")
    await confirm(page, "Add SSH key")
    await wrong(dialog, "Public key", "private key")
    user.expect_complaints("422")
    await dialog.get_by_label("Public key").fill(line)
    await confirm(page, "Add SSH key")
    await expect(keys).to_contain_text("ann@laptop")
    await expect(keys).to_contain_text(key.get_fingerprint())
    await button(page, "Remove the SSH key ann@laptop").click()
    await confirm(page, "Remove")
    await expect(keys).to_contain_text("There are none yet.")
