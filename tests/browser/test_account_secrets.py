"""One's own things in every workspace, on the account page and in an admin's templates: set, replaced, deleted, never
shown again."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect

from codehub.adapters.encryption import new_key
from codehub.adapters.postgres.schema import migrate
from codehub.domain.identity import Role
from codehub.domain.secrets import Dotfiles, GitIdentity, SecretKind, SecretName, template_owner, user_owner
from tests.browser.dashboard_harness import DashboardHarness
from tests.browser.deployment import PASSWORD, DashboardUser, Deployment, running_deployment

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SECRET = "-----BEGIN KEY-----\n  two = 'lines' <b>\n-----END KEY-----\n"


def panel(page: Page, title: str) -> Locator:
    return page.locator("section.panel").filter(has=page.get_by_role("heading", name=title, exact=True))


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


async def confirm(page: Page, name: str) -> None:
    await page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


async def wrong(place: Page | Locator, label: str, text: str) -> None:
    """What is wrong is said at the field, and the focus is there."""
    control = place.get_by_label(label, exact=True)
    await expect(control).to_have_attribute("aria-invalid", "true")
    await expect(control).to_be_focused()
    await expect(place.locator(".field-wrong:not(:empty)")).to_contain_text(text)


async def set_secret(page: Page, name: str, value: str) -> None:
    await button(page, "New secret").click()
    await page.get_by_role("dialog").get_by_label("Name").fill(name)
    await page.get_by_label("Value").fill(value)
    await confirm(page, "Save")


class Kept:
    """What the memory API keeps for somebody."""

    def __init__(self, harness: DashboardHarness, name: str) -> None:
        self._backends, self._user = harness.backends, harness.people[name]
        self._tables = harness.backends.database.state.accounts

    def value(self, kind: SecretKind, name: str) -> str | None:
        row = self._tables.secrets.get(SecretName(user_owner(self._user), kind, name))
        return self._backends.keyring.open(row.secret) if row else None

    def public(self, kind: SecretKind, name: str) -> str:
        return self._tables.secrets[SecretName(user_owner(self._user), kind, name)].secret.public

    def profile(self) -> Any:
        return self._tables.profiles.get(self._user)


async def test_a_secret_is_set_replaced_and_deleted_and_never_shown(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page, kept = user.page, Kept(harness, "ann")
    answers: list[str] = []

    async def note(route: Route) -> None:
        """Before the page has it: a page that is left takes the answers along."""
        response = await route.fetch()
        answers.append(await response.text())
        await route.fulfill(response=response)

    await page.route("**/api/v1/account/**", note)
    await user.goes("/account")
    await page.get_by_text("nobody can read them back").wait_for()
    await page.get_by_text("can be seen by whoever is in it").wait_for()
    secrets = panel(page, "Secrets")
    await expect(secrets).to_contain_text("for example NPM_TOKEN")
    await set_secret(page, "DEPLOY_KEY", SECRET)
    await page.get_by_text("DEPLOY_KEY is saved. Workspaces have it from their next start.").wait_for()
    await expect(button(page, "New secret")).to_be_focused()
    await expect(secrets.get_by_role("listitem")).to_contain_text("set now")
    assert kept.value(SecretKind.VARIABLE, "DEPLOY_KEY") == SECRET

    await button(page, "Replace DEPLOY_KEY").click()
    await expect(page.get_by_label("New value")).to_be_focused()
    await expect(page.get_by_label("New value")).to_have_value("")
    await page.get_by_label("New value").fill("hunter2")
    await confirm(page, "Save")
    await page.get_by_role("dialog").wait_for(state="detached")
    await expect(button(page, "Replace DEPLOY_KEY")).to_be_focused()
    assert kept.value(SecretKind.VARIABLE, "DEPLOY_KEY") == "hunter2"
    await page.reload()
    await expect(secrets).to_contain_text("DEPLOY_KEY")
    assert any("DEPLOY_KEY" in text for text in answers)
    assert not [text for text in [await page.content(), *answers] if "BEGIN KEY" in text or "hunter2" in text]

    await button(page, "Delete DEPLOY_KEY").click()
    await confirm(page, "Cancel")
    assert kept.value(SecretKind.VARIABLE, "DEPLOY_KEY") == "hunter2"
    await button(page, "Delete DEPLOY_KEY").click()
    await confirm(page, "Delete")
    await expect(secrets).to_contain_text("There are none yet.")
    await expect(button(page, "New secret")).to_be_focused()
    assert kept.value(SecretKind.VARIABLE, "DEPLOY_KEY") is None


async def test_the_focus_stays_although_the_list_is_drawn_anew(harness: DashboardHarness) -> None:
    """On a slow network the list comes anew when the next dialog is open already. Nothing is drawn after a Cancel."""
    user = await harness.user("ann")
    page, arrives, loads = user.page, asyncio.Event(), 0
    assert (await user.http.put("/api/v1/account/secrets/TOKEN", json={"value": "x"})).status_code == 200
    await user.goes("/account")
    await button(page, "Replace TOKEN").wait_for()

    async def load_slowly(route: Route) -> None:
        nonlocal loads
        loads += 1
        await arrives.wait()
        await route.continue_()

    await page.route("**/api/v1/account/secrets", load_slowly)
    await button(page, "Delete TOKEN").click()
    await confirm(page, "Cancel")
    await button(page, "Replace TOKEN").click()
    await page.get_by_label("New value").fill("y")
    await confirm(page, "Save")
    await page.get_by_text("TOKEN is saved.").wait_for()
    drawn_before = await button(page, "Delete TOKEN").element_handle()
    await button(page, "Delete TOKEN").click()
    arrives.set()
    await page.wait_for_function("button => !button.isConnected", arg=drawn_before)
    await confirm(page, "Cancel")
    await expect(button(page, "Delete TOKEN")).to_be_focused()
    await button(page, "Delete TOKEN").click()
    await confirm(page, "Delete")
    await expect(button(page, "New secret")).to_be_focused()
    assert loads == 2, "after what was saved and what was deleted"


async def test_a_secret_that_cannot_be_says_why_at_its_field(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page, kept = user.page, Kept(harness, "ann")
    await user.goes("/account")
    await set_secret(page, "TOKEN", "first")
    await page.get_by_role("dialog").wait_for(state="detached")
    dialog = page.get_by_role("dialog")
    for name, text in (
        ("a/../b", "right form"),
        ("2ND", "right form"),
        ("PATH", "PATH is what the workspace itself needs"),
        ("TOKEN", "There is a secret TOKEN already."),
    ):
        await set_secret(page, name, "second")
        await wrong(dialog, "Name", text)
        await expect(page.get_by_label("Value")).to_have_value("second")
        await page.keyboard.press("Escape")
    await set_secret(page, "BIG", "가" * 22_000)
    await wrong(dialog, "Value", "64 KiB")
    await page.keyboard.press("Escape")
    assert kept.value(SecretKind.VARIABLE, "TOKEN") == "first"
    harness.backends.keyring.keys.clear()
    await set_secret(page, "OTHER", "second")
    await expect(dialog.get_by_role("alert")).to_contain_text("no key")
    user.expect_complaints("422", "409")


async def test_in_korean_what_is_wrong_is_korean(harness: DashboardHarness) -> None:
    user = await harness.user("ann", locale="ko-KR")
    page = user.page
    await user.goes("/account")
    for name, text in (
        ("PATH", "워크스페이스가 스스로 쓰는 이름"),
        ("TOKEN", ""),
        ("TOKEN", "TOKEN이(가) 이미 있습니다."),
    ):
        await button(page, "새 비밀").click()
        await page.get_by_role("dialog").get_by_label("이름").fill(name)
        await page.get_by_label("값", exact=True).fill("x")
        await confirm(page, "저장")
        if text:
            await wrong(page.get_by_role("dialog"), "이름", text)
            await page.keyboard.press("Escape")
        else:
            await button(page, "TOKEN 바꾸기").wait_for()
    await button(page, "토큰 추가").click()
    await page.get_by_label("호스트").fill("git@git.example.com:ann/x")
    await page.get_by_role("dialog").get_by_label("토큰").fill("x")
    await confirm(page, "저장")
    await wrong(page.get_by_role("dialog"), "호스트", "git.example.com 같은 이름")
    user.expect_complaints("422")


async def test_somebody_who_signed_in_long_ago_is_asked_for_the_password(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page, kept = user.page, Kept(harness, "ann")
    proven = harness.backends.database.state.accounts.proven
    proven.update(dict.fromkeys(proven, harness.ago(hours=1)))
    await user.goes("/account")
    await set_secret(page, "TOKEN", "x")
    await page.get_by_label("Your password").fill(PASSWORD)
    await confirm(page, "Go on")
    await page.get_by_text("TOKEN is saved.").wait_for()
    assert kept.value(SecretKind.VARIABLE, "TOKEN") == "x"
    user.expect_complaints("403")


async def test_a_git_token_of_a_host(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page, kept = user.page, Kept(harness, "ann")
    await user.goes("/account")
    credentials = panel(page, "Git credentials")
    await expect(credentials).to_contain_text("https://git.example.com/team/shop.git")
    for host in ("https://Git.Example.com:8443/ann/shop.git", "git.example.com:8443"):
        await button(page, "Add token").click()
        await page.get_by_label("Host").fill(host)
        await page.get_by_role("dialog").get_by_label("Token").fill("glpat-1 ")
        await confirm(page, "Save")
        if host.startswith("https"):
            await page.get_by_text("The token for git.example.com:8443 is saved.").wait_for()
    await wrong(page.get_by_role("dialog"), "Host", "There is a token for git.example.com:8443 already.")
    await page.keyboard.press("Escape")
    await expect(credentials.get_by_role("listitem")).to_contain_text("as git")
    assert kept.value(SecretKind.GIT_TOKEN, "git.example.com:8443") == "glpat-1"

    await button(page, "Replace the token for git.example.com:8443").click()
    await expect(page.get_by_label("Username")).to_have_value("git")
    await page.get_by_label("Username").fill("a nn")
    await page.get_by_role("dialog").get_by_label("Token").fill("glpat-2")
    await confirm(page, "Save")
    await wrong(page.get_by_role("dialog"), "Username", "without blanks")
    await page.get_by_label("Username").fill("ann")
    await confirm(page, "Save")
    await expect(credentials.get_by_role("listitem")).to_contain_text("as ann")
    assert kept.value(SecretKind.GIT_TOKEN, "git.example.com:8443") == "glpat-2"
    await button(page, "Delete the token for git.example.com:8443").click()
    await confirm(page, "Delete")
    await expect(credentials).to_contain_text("There are none yet.")
    await expect(button(page, "Add token")).to_be_focused()
    user.expect_complaints("422")


async def test_an_ssh_key_s_public_half_is_there_to_copy(harness: DashboardHarness) -> None:
    user = await harness.user("ann", permissions=["clipboard-read", "clipboard-write"])
    page, kept = user.page, Kept(harness, "ann")
    await user.goes("/account")
    await button(page, "New SSH key").click()
    await page.get_by_label("Host").fill("git.example.com")
    await confirm(page, "Make key pair")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("as soon as the server knows its public half").wait_for()
    await expect(button(page, "Done")).to_be_focused()
    await dialog.get_by_role("button", name="Copy the public key").click()
    await page.get_by_text("Copied.").wait_for()
    first = kept.public(SecretKind.SSH_KEY, "git.example.com")
    assert await page.evaluate("navigator.clipboard.readText()") == first
    await confirm(page, "Done")
    shown = panel(page, "Git credentials").get_by_label("Public key for git.example.com", exact=True)
    await expect(shown).to_have_value(first)
    await expect(panel(page, "Git credentials")).to_contain_text("SSH keys")

    await button(page, "New pair for git.example.com").click()
    await confirm(page, "Cancel")
    assert kept.public(SecretKind.SSH_KEY, "git.example.com") == first
    await button(page, "New pair for git.example.com").click()
    await confirm(page, "New pair")
    await confirm(page, "Done")
    second = kept.public(SecretKind.SSH_KEY, "git.example.com")
    assert second != first
    await expect(shown).to_have_value(second)
    await expect(button(page, "New pair for git.example.com")).to_be_focused()
    await button(page, "New SSH key").click()
    await page.get_by_label("Host").fill("git.example.com")
    await confirm(page, "Make key pair")
    await wrong(dialog, "Host", "There is an SSH key for git.example.com already.")
    assert kept.public(SecretKind.SSH_KEY, "git.example.com") == second
    await page.keyboard.press("Escape")
    await button(page, "Delete the SSH key for git.example.com").click()
    await confirm(page, "Delete")
    await expect(panel(page, "Git credentials")).to_contain_text("There are none yet.")


async def test_what_can_no_longer_be_decrypted_says_what_to_do(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page = user.page
    for path, body in (("git-credentials/git.example.com/token", {"token": "x"}), ("secrets/TOKEN", {"value": "x"})):
        assert (await user.http.put(f"/api/v1/account/{path}", json=body)).status_code == 200
    made = await user.http.post("/api/v1/account/git-credentials/git.example.com/ssh-key", json={})
    assert made.status_code == 201
    harness.backends.keyring.keys[:] = ["second"]
    await user.goes("/account")
    await expect(page.get_by_text("must be set again")).to_have_count(3)
    await expect(panel(page, "Secrets")).to_contain_text("workspaces start without it. Replace it with its value.")
    credentials = panel(page, "Git credentials")
    await expect(credentials).to_contain_text("Make a new pair and give its public half to the server.")
    await expect(credentials.get_by_label("Public key for")).to_have_count(0)
    await button(page, "Replace TOKEN").click()
    await page.get_by_label("New value").fill("y")
    await confirm(page, "Save")
    await expect(page.get_by_text("must be set again")).to_have_count(2)


async def test_a_git_identity_and_dotfiles_are_kept_and_removed(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page, kept = user.page, Kept(harness, "ann")
    await user.goes("/account")
    identity, dotfiles = panel(page, "Git identity"), panel(page, "Dotfiles")
    await expect(button(page, "Remove")).to_have_count(0)
    await identity.get_by_label("Name").fill("Ann Lee")
    await identity.get_by_label("Email").fill("ann")
    await button(identity, "Save").click()
    await wrong(identity, "Email", "ann@example.com")
    await identity.get_by_label("Email").fill("ann@example.com")
    await identity.get_by_label("Email").press("Enter")
    await page.get_by_text("Saved. Workspaces have it from their next start.").wait_for()
    await dotfiles.get_by_label("Git repository").fill("https://ann:pass@git.example.com/dotfiles.git")
    await button(dotfiles, "Save").click()
    await wrong(dotfiles, "Git repository", "")
    await dotfiles.get_by_label("Git repository").fill("https://git.example.com/ann/dotfiles.git")
    await dotfiles.get_by_label("Install command").fill("./install.sh --all")
    await button(dotfiles, "Save").click()
    await expect(button(page, "Remove")).to_have_count(2)
    await page.reload()
    await expect(identity.get_by_label("Name")).to_have_value("Ann Lee")
    await expect(dotfiles.get_by_label("Install command")).to_have_value("./install.sh --all")
    found = kept.profile()
    assert found.git_identity == GitIdentity("Ann Lee", "ann@example.com")
    assert found.dotfiles == Dotfiles("https://git.example.com/ann/dotfiles.git", "./install.sh --all")

    for place, label in ((identity, "Name"), (dotfiles, "Git repository")):
        await button(place, "Remove").click()
        await confirm(page, "Remove")
        await expect(place.get_by_label(label)).to_have_value("")
        await expect(place.get_by_label(label)).to_be_focused()
    await expect(button(page, "Remove")).to_have_count(0)
    assert (kept.profile().git_identity, kept.profile().dotfiles) == (None, None)
    user.expect_complaints("422")


async def test_many_secrets_are_shown_when_asked_for(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    for number in range(52):
        answer = await user.http.put(f"/api/v1/account/secrets/KEY_{number:02}", json={"value": "x"})
        assert answer.status_code == 200
    await user.goes("/account")
    rows = panel(user.page, "Secrets").get_by_role("listitem")
    await expect(rows).to_have_count(50)
    await button(user.page, "Show more").click()
    await expect(rows).to_have_count(52)
    await expect(button(user.page, "Replace KEY_50")).to_be_focused()
    await expect(button(user.page, "Show more")).to_have_count(0)


async def test_an_admin_sets_the_secret_variables_of_a_template(harness: DashboardHarness) -> None:
    user = await harness.user("root", Role.ADMIN)
    page = user.page
    await user.goes("/admin/templates")
    await button(page, "More for default").click()
    await page.get_by_role("menuitem", name="Secret variables").click()
    await expect(page.get_by_role("heading", name="Secret variables of default")).to_be_focused()
    await set_secret(page, "LICENSE_KEY", "a\nb")
    await button(page, "Replace LICENSE_KEY").wait_for()
    tables, name = harness.backends.database.state.accounts, template_owner("default")
    row = tables.secrets[SecretName(name, SecretKind.VARIABLE, "LICENSE_KEY")]
    assert harness.backends.keyring.open(row.secret) == "a\nb"
    assert "LICENSE_KEY" not in await (await user.goes("/account")).page.inner_text("main")
    await user.goes("/admin/templates")
    await button(page, "More for default").click()
    await page.get_by_role("menuitem", name="Secret variables").click()
    await button(page, "Delete LICENSE_KEY").click()
    await confirm(page, "Delete")
    await page.get_by_text("LICENSE_KEY is deleted.").wait_for()
    assert tables.secrets == {}


@pytest.fixture
async def keyed_deployment(fresh_database: str, fresh_redis: str) -> AsyncIterator[Deployment]:
    await migrate(fresh_database)
    async with running_deployment(fresh_database, fresh_redis, CODEHUB_SECRETS_KEYS=new_key()) as running:
        yield running


async def test_on_a_real_database_with_real_keys(keyed_deployment: Deployment) -> None:
    ann: DashboardUser = await keyed_deployment.user("ann")
    page = ann.page
    await ann.goes("/account")
    await set_secret(page, "DEPLOY_KEY", SECRET)
    await button(page, "Replace DEPLOY_KEY").wait_for()
    await button(page, "New SSH key").click()
    await page.get_by_label("Host").fill("git.example.com")
    await confirm(page, "Make key pair")
    await confirm(page, "Done")
    shown = panel(page, "Git credentials").get_by_label("Public key for git.example.com", exact=True)
    await expect(shown).to_have_value(re.compile(r"^ssh-ed25519 AAAA\S{64} ann@codehub:git\.example\.com$"))
    await page.reload()
    await expect(shown).to_be_visible()
    await button(page, "Delete DEPLOY_KEY").click()
    await confirm(page, "Delete")
    await expect(panel(page, "Secrets")).to_contain_text("There are none yet.")
