"""A private repository, with credentials that were only set in the account: clone, commit and push, and no trace."""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import zstandard

from tests.browser.end_to_end.browser_user import BrowserUser, runs, until
from tests.browser.end_to_end.installation import PASSWORD, Installation, Person, Workspace
from tests.certificates import Authority
from tests.git_servers import commits, https_server, make_repository, outward_address, ssh_server
from tests.real_services import free_port

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no openssh-server"),
]

TOKEN = f"glpat-{uuid4().hex}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repositories"
    make_repository(root / "private.git")
    return root


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def git_host(root: Path, authority: Authority) -> Iterator[str]:
    with https_server(root, authority, outward_address(), "ann", TOKEN) as host:
        yield host


async def opened(ann: Person, hub: Installation, authority: Authority, git_url: str) -> Workspace:
    """A workspace with that repository, whose home has the git server's authority."""
    template = f"git-{uuid4().hex[:6]}"
    body = {"env": {"GIT_SSL_CAINFO": "/home/coder/.ca.pem"}}
    answer = hub.admin.put(f"/api/v1/admin/templates/{template}", json=body)
    assert answer.status_code in (200, 201), answer.text
    desk = await ann.workspace(f"desk {uuid4().hex[:6]}", template=template, git_url=git_url)
    (desk.home / ".ca.pem").write_bytes(authority.pem)
    await desk.brought_to("RUNNING")
    return desk


def put(ann: Person, method: str, path: str, body: dict[str, str] | None = None) -> str:
    assert ann.http.post("/api/v1/session/proof", json={"password": PASSWORD}).status_code == 204
    answer = ann.http.request(method, f"/api/v1/account/{path}", json=body or {})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json().get("public_key"))


async def commit_and_push(desk: Workspace, user: BrowserUser, repository: Path) -> None:
    """In a terminal of the editor, whose folder is the repository."""
    (desk.home / "push").write_text("git commit -q --allow-empty -m pushed && git push -q\n")
    tab = await user.opens(desk.url)
    await tab.open_terminal()
    await runs(tab, "sh ~/push")
    await until(lambda: len(commits(repository)) > 1, "the push", say=lambda: setup_log(desk))


async def commit_and_push_in_vs_code(desk: Workspace, user: BrowserUser, repository: Path) -> None:
    """By the editor's own source control, without a terminal."""
    (desk.home / "private" / "readme.md").write_text("changed\n")
    page = (await user.opens(desk.url)).page
    await page.keyboard.press("Control+Shift+g")
    await page.wait_for_selector(".scm-view [aria-label*='readme.md']")
    await page.click(".scm-view .scm-input .view-line")
    await page.keyboard.type("by the editor")
    await page.wait_for_selector(".scm-view .scm-input .view-line:has-text('by the editor')")
    await page.keyboard.press("Control+Enter")
    await page.click(".monaco-dialog-box .monaco-button:has-text('Yes')")  # nothing is staged: commit all
    await page.click(".scm-view .monaco-button:has-text('Sync Changes')")
    await page.click(".monaco-dialog-box .monaco-button:text-is('OK')")  # it pulls and pushes
    await until(lambda: " by the editor" in commits(repository)[0], "the push", say=lambda: commits(repository))


async def test_over_https_with_a_token(
    hub: Installation, ann: Person, user: BrowserUser, root: Path, authority: Authority, git_host: str
) -> None:
    put(ann, "PUT", f"git-credentials/{git_host}/token", {"username": "ann", "token": TOKEN})
    desk = await opened(ann, hub, authority, f"https://{git_host}/private.git")
    await until((desk.home / "private" / "readme.md").exists, "the clone", say=lambda: setup_log(desk))
    await commit_and_push(desk, user, root / "private.git")
    assert commits(root / "private.git")[0] == f"{ann.username} <{ann.username}@localhost> pushed"
    await commit_and_push_in_vs_code(desk, user, root / "private.git")

    kept = subprocess.run(["grep", "-rlF", TOKEN, hub.data], capture_output=True, text=True, check=False).stdout
    assert kept == ""
    assert TOKEN not in desk.http.get(f"{desk.path}/logs").text
    await desk.brought_to("ARCHIVED")
    [archive] = (hub.data / "archives").rglob(f"{desk.id}/**/home.tar.zst")
    with tarfile.open(fileobj=io.BytesIO(_unpacked(archive))) as home:
        names = home.getnames()
        held = [one.name for one in home if one.isfile() and TOKEN.encode() in _read(home, one)]
    assert any(name.endswith("private/readme.md") for name in names)
    assert held == []


async def test_over_ssh_with_a_key_that_we_made(
    hub: Installation, ann: Person, user: BrowserUser, root: Path, authority: Authority, tmp_path: Path
) -> None:
    host, port = outward_address(), free_port()
    public_key = put(ann, "POST", f"git-credentials/{host}:{port}/ssh-key")
    with ssh_server(tmp_path, host, port, public_key):
        desk = await opened(ann, hub, authority, f"ssh://root@{host}:{port}{root}/private.git")
        await until((desk.home / "private" / "readme.md").exists, "the clone", say=lambda: setup_log(desk))
        await commit_and_push(desk, user, root / "private.git")
        assert commits(root / "private.git")[0].endswith(" pushed")
        await desk.brought_to("STANDBY")
    assert subprocess.run(["grep", "-rl", "PRIVATE KEY", desk.home], capture_output=True, check=False).stdout == b""


async def test_a_colleague_with_the_same_repository_has_no_credential(
    hub: Installation, ann: Person, authority: Authority, git_host: str
) -> None:
    put(ann, "PUT", f"git-credentials/{git_host}/token", {"username": "ann", "token": TOKEN})
    bob = hub.person()
    desk = await opened(bob, hub, authority, f"https://{git_host}/private.git")
    await until(lambda: "failed" in setup_state(desk), "the refusal", say=lambda: setup_log(desk))
    assert not (desk.home / "private" / "readme.md").exists()
    await desk.brought_to("STANDBY")


def setup_state(desk: Workspace) -> str:
    state = desk.home / ".local/state/codehub/setup.json"
    return state.read_text() if state.exists() else ""


def setup_log(desk: Workspace) -> str:
    return setup_state(desk) + "".join(file.read_text() for file in (desk.home / ".local/state/codehub").glob("*.log"))


def _unpacked(archive: Path) -> bytes:
    with zstandard.open(archive, "rb") as file:
        content: bytes = file.read()
    return content


def _read(home: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = home.extractfile(member)
    assert file is not None
    return file.read()
