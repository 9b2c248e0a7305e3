"""The setup program, run by node with real repositories: clone, dotfiles, and what devcontainer.json asks for."""

import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from codehub.adapters.ide.install import SETUP
from codehub.adapters.ide.toolchain import of_the_wheel

MAIN = SETUP / "main.js"
NAMED = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")
DEADLINE_SECONDS = 60.0
PRETENDED_IDE = """
const fs = require("node:fs");
fs.appendFileSync(process.env.HOME + "/asked", process.argv.slice(2).join(" ") + "\\n");
process.exit(process.argv.at(-1).startsWith("bad.") ? 1 : 0);
"""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")


def until(check: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not check():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.02)


def git(place: Path, *words: str) -> str:
    alone = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    ran = subprocess.run(
        ["git", "-C", str(place), *NAMED, *words], env=alone, check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


@dataclass(frozen=True)
class Repository:
    place: Path

    @classmethod
    def made(cls, place: Path, files: dict[str, str]) -> "Repository":
        place.mkdir(parents=True)
        git(place, "init", "-q")
        made = cls(place)
        made.commit(files)
        return made

    def commit(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o644)
        git(self.place, "add", "-A")
        git(self.place, "commit", "-q", "-m", "more")

    @property
    def url(self) -> str:
        return f"file://{self.place}"


@dataclass
class Home:
    place: Path
    ide: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def state_directory(self) -> Path:
        return self.place / ".local" / "state" / "codehub"

    @property
    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.state_directory / "setup.json").read_text())
        except FileNotFoundError:
            return {"steps": {}}
        return found

    def step(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.state["steps"].get(name, {})
        return found

    @property
    def log(self) -> str:
        return (self.state_directory / "setup.log").read_text()

    @property
    def machine_settings(self) -> Path:
        return self.place / ".local" / "share" / "code-server" / "Machine" / "settings.json"

    def words(self, verb: str) -> list[str]:
        data = str(self.place / ".local" / "share" / "code-server")
        ide = ("node", str(self.ide), "--config", "/c", "--auth", "none", "--user-data-dir", data)
        more = (str(of_the_wheel().node), *ide[1:], "--extensions-dir", "/e") if verb == "run" else ()
        return [str(of_the_wheel().node), str(MAIN), verb, str(self.place), *more]

    def environment(self) -> dict[str, str]:
        alone = {"PATH": os.environ["PATH"], "HOME": str(self.place), "GIT_CONFIG_NOSYSTEM": "1"}
        return alone | self.env

    def folder(self) -> Path:
        ran = subprocess.run(self.words("folder"), env=self.environment(), check=True, capture_output=True, text=True)
        return Path(ran.stdout.strip())

    def start(self) -> Path:
        """One start of the workspace, until nothing is left to do or something has failed. Returns what is opened."""
        opened = self.folder()
        with self.running() as program:
            until(lambda: program.poll() is not None or self.has_failed, "the end of the setup")
        return opened

    @property
    def has_failed(self) -> bool:
        steps = [step["status"] for step in self.state["steps"].values()]
        return "failed" in steps and not {"pending", "running"} & set(steps)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        (self.state_directory / "setup.json").unlink(missing_ok=True)  # of an earlier start
        program = subprocess.Popen(self.words("run"), env=self.environment(), start_new_session=True)
        try:
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = tmp_path / "a home; with 'odd' $letters"
    place.mkdir()
    (tmp_path / "ide.js").write_text(PRETENDED_IDE)
    return Home(place, tmp_path / "ide.js")


@pytest.fixture
def shop(tmp_path: Path, home: Home) -> Repository:
    shop = Repository.made(tmp_path / "repositories" / "shop", {"readme.md": "# Shop", "src/main.py": "print()"})
    home.env["CODEHUB_GIT_URL"] = shop.url
    return shop


# ── the repository ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_folder_is_there_before_the_clone_and_filled_by_it(shop: Repository, home: Home) -> None:
    assert home.folder() == home.place / "shop"
    assert list((home.place / "shop").iterdir()) == []
    assert home.start() == home.place / "shop"
    assert (home.place / "shop" / "src" / "main.py").read_text() == "print()"
    assert git(home.place / "shop", "status", "--porcelain") == ""
    assert git(home.place / "shop", "config", "remote.origin.url") == shop.url
    assert (home.step("clone")["status"], home.step("clone")["subject"]["name"]) == ("done", "shop")
    assert not (home.state_directory / "clone").exists()


def test_a_person_who_removed_it_does_not_get_it_back(shop: Repository, home: Home) -> None:
    del shop
    home.start()
    shutil.rmtree(home.place / "shop")
    assert home.start() == home.place
    assert not (home.place / "shop").exists()


def test_a_clone_of_an_earlier_version_is_opened_and_left_alone(shop: Repository, home: Home) -> None:
    marker = home.place / ".local" / "share" / "code-server" / "cloned"
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert home.start() == home.place, "the person had removed it"
    shop.commit({".devcontainer.json": '{"postCreateCommand": "touch created", "postStartCommand": "touch started"}'})
    subprocess.run(["git", "clone", "-q", shop.url, home.place / "shop"], check=True)
    assert home.start() == home.place / "shop"
    assert (home.place / "shop" / "started").exists()
    assert not (home.place / "shop" / "created").exists(), "it was created long ago"


@pytest.mark.parametrize("ref", ["release/1.2", "v1"])
def test_a_branch_or_a_tag(ref: str, shop: Repository, home: Home) -> None:
    git(shop.place, "branch", "release/1.2")
    git(shop.place, "tag", "v1")
    shop.commit({"later.txt": "later"})
    home.env["CODEHUB_GIT_REF"] = ref
    home.start()
    assert home.step("clone")["status"] == "done"
    assert not (home.place / "shop" / "later.txt").exists()


def test_a_branch_that_is_not_there(shop: Repository, home: Home) -> None:
    home.env["CODEHUB_GIT_REF"] = "nowhere"
    assert home.start() == home.place / "shop"
    failed = home.step("clone")
    assert (failed["status"], failed["reason"]) == ("failed", "ref")
    assert f"{shop.url} has no branch or tag called nowhere" in failed["message"]
    assert "Remote branch nowhere not found" in failed["detail"]
    assert "Remote branch nowhere not found" in home.log


def test_a_repository_that_is_not_there_is_tried_again_when_asked(shop: Repository, home: Home) -> None:
    away = shop.place.rename(shop.place.with_name("away"))
    home.folder()
    with home.running() as program:
        until(lambda: home.has_failed, "the failure")
        assert home.step("clone")["reason"] == "not_found"
        away.rename(shop.place)
        Path(home.state["again"]).touch()
        until(lambda: home.step("clone")["status"] == "done", "another try")
        assert program.wait(DEADLINE_SECONDS) == 0, "when all is done nothing stays"
    assert (home.place / "shop" / "readme.md").exists()


def test_a_repository_that_is_not_there_is_tried_again_at_the_next_start(shop: Repository, home: Home) -> None:
    away = shop.place.rename(shop.place.with_name("away"))
    home.start()
    assert home.step("clone")["status"] == "failed"
    away.rename(shop.place)
    home.start()
    assert (home.place / "shop" / "readme.md").exists()


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Nothing is said."""


@contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_private_repository_says_where_credentials_go(home: Home) -> None:
    with serving(Refusing) as site:
        home.env |= {"CODEHUB_GIT_URL": f"{site}/team/shop.git", "GIT_ASKPASS": "/bin/false"}
        home.start()
    failed = home.step("clone")
    assert (failed["status"], failed["reason"]) == ("failed", "credentials")
    assert "under Account" in failed["message"]
    assert failed["subject"]["host"] == site.removeprefix("http://")


def test_credentials_come_from_the_helper_that_the_environment_names(
    shop: Repository, home: Home, tmp_path: Path
) -> None:
    """The credential is asked for as git does it, and no password is written to the log."""
    git(shop.place, "update-server-info")

    class Private(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") == "Basic YW5uOnNlY3JldA==":
                super().do_GET()
            else:
                Refusing.do_GET(self)  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Nothing is said."""

    config = tmp_path / "system.gitconfig"
    config.write_text('[credential]\n\thelper = "!echo username=ann; echo password=secret; :"\n')
    git(shop.place, "gc", "-q")
    git(shop.place, "update-server-info")
    with serving(functools.partial(Private, directory=str(shop.place))) as site:
        del home.env["CODEHUB_GIT_URL"]
        home.env |= {"CODEHUB_GIT_URL": f"{site}/.git", "GIT_CONFIG_SYSTEM": str(config), "GIT_CONFIG_NOSYSTEM": "0"}
        home.start()
    assert home.step("clone")["status"] == "done", home.log
    assert "secret" not in home.log


def test_a_host_that_cannot_be_reached(home: Home) -> None:
    home.env["CODEHUB_GIT_URL"] = "git://127.0.0.1:1/team/shop.git"
    home.start()
    failed = home.step("clone")
    assert (failed["reason"], failed["subject"]["host"]) == ("host", "127.0.0.1:1")


def test_without_git_the_image_is_to_blame(shop: Repository, home: Home, tmp_path: Path) -> None:
    del shop
    (tmp_path / "empty").mkdir()
    home.env["PATH"] = str(tmp_path / "empty")
    home.start()
    assert home.step("clone")["reason"] == "git_missing"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/team/.ssh", "ssh"),
        ("https://host/team/shop.git/", "shop"),
        ("git@host:shop", "shop"),
        ("git@host:.git", "repository"),
        ("https://host/..", "repository"),
        ("https://host/team/a%20b", "a-20b"),
        ("https://host/team/bin.git", "bin-repository"),
        ("https://host/team/.bin", "bin-repository"),
        ("https://host/team/node_modules", "node_modules-repository"),
        ("https://host/team/cabin", "cabin"),
    ],
)
def test_the_folder_is_called_as_the_repository_and_is_none_that_programs_use(url: str, name: str, home: Home) -> None:
    home.env["CODEHUB_GIT_URL"] = url
    assert home.folder() == home.place / name


def test_a_folder_of_the_person_is_opened_and_not_touched(shop: Repository, home: Home) -> None:
    del shop
    (home.place / "shop").mkdir()
    (home.place / "shop" / "mine.txt").write_text("mine")
    assert home.start() == home.place / "shop"
    assert [path.name for path in (home.place / "shop").iterdir()] == ["mine.txt"]
    assert (home.step("clone")["status"], home.step("clone")["reason"]) == ("done", "kept")


def test_a_file_of_that_name_is_not_touched_and_the_home_is_opened(shop: Repository, home: Home) -> None:
    del shop
    (home.place / "shop").write_text("mine")
    assert home.start() == home.place
    assert (home.place / "shop").read_text() == "mine"
    assert home.step("clone")["reason"] == "kept"


def test_what_a_person_put_into_the_empty_folder_stays(shop: Repository, home: Home) -> None:
    away = shop.place.rename(shop.place.with_name("away"))
    folder = home.start()
    for name in ("readme.md", "notes.txt", "src/mine.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    away.rename(shop.place)
    home.start()
    assert home.step("clone")["status"] == "done"
    assert [(folder / name).read_text() for name in ("readme.md", "notes.txt", "src/mine.py")] == ["mine"] * 3
    assert (folder / "src" / "main.py").read_text() == "print()"
    changed = git(folder, "status", "--porcelain").splitlines()
    assert sorted(line.strip() for line in changed) == ["?? notes.txt", "?? src/mine.py", "M readme.md"]


def test_a_repository_that_the_person_made_in_the_empty_folder_stays(shop: Repository, home: Home) -> None:
    del shop
    git(home.folder(), "init", "-q")
    home.start()
    assert home.step("clone")["reason"] == "kept"
    assert [path.name for path in (home.place / "shop").iterdir()] == [".git"]


STOPPING_GIT = """#!/bin/sh
{git} "$@" || exit 1
for last do :; done
rm -rf "$last/.git/objects"
touch {reached}
exec sleep 600
"""


def test_half_a_clone_is_never_taken_for_a_whole_one(shop: Repository, home: Home, tmp_path: Path) -> None:
    del shop
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "git"
    program.write_text(STOPPING_GIT.format(git=shutil.which("git"), reached=tmp_path / "reached"))
    program.chmod(0o755)
    home.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    home.folder()
    with home.running():
        until((tmp_path / "reached").exists, "half a clone")
        assert home.step("clone")["status"] == "running"
        assert list((home.place / "shop").iterdir()) == []
    home.env["PATH"] = os.environ["PATH"]
    home.start()
    assert git(home.place / "shop", "status", "--porcelain") == ""
    git(home.place / "shop", "fsck", "--full")


def test_a_move_that_was_cut_goes_on(shop: Repository, home: Home) -> None:
    """As it is found when the workspace was killed between two renames: some files moved, .git not yet."""
    folder = home.folder()
    stage = home.state_directory / "clone"
    stage.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", shop.url, stage / "tree"], check=True)
    (stage / "whole").write_text(shop.url)
    (stage / "tree" / "readme.md").rename(folder / "readme.md")
    shop.place.rename(shop.place.with_name("away"))  # nothing is fetched again
    home.start()
    assert home.step("clone")["status"] == "done"
    assert git(folder, "status", "--porcelain") == ""


def test_a_run_that_was_killed_is_not_shown_as_running(shop: Repository, home: Home) -> None:
    del shop
    home.folder()
    home.state_directory.joinpath("setup.json").write_text(json.dumps({"steps": {"clone": {"status": "running"}}}))
    subprocess.run(home.words("ended"), env=home.environment(), check=True)
    assert (home.step("clone")["status"], home.step("clone")["reason"]) == ("failed", "ended")


def test_a_home_that_cannot_hold_a_state_is_still_opened(shop: Repository, home: Home) -> None:
    del shop
    (home.place / ".local").write_text("a file")
    assert home.folder() in (home.place, home.place / "shop")


def test_progress_is_told(home: Home, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "git"
    lines = r"Cloning into\nReceiving objects:  50%% (1/2)\rReceiving objects:  75%% (3/4), 1.00 MiB\r"
    program.write_text(f"#!/bin/sh\nprintf '{lines}' >&2\nexec sleep 600\n")
    program.chmod(0o755)
    home.env |= {"PATH": f"{programs}:{os.environ['PATH']}", "CODEHUB_GIT_URL": "https://host/shop"}
    home.folder()
    with home.running():
        until(lambda: home.step("clone").get("percent") == 60, "75 % of what is received")
        assert home.step("clone")["doing"] == "receiving"


# ── dotfiles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


INSTALLS = "#!/bin/sh\necho it installs\necho x >> $HOME/installed\n"


@pytest.fixture
def dotfiles(tmp_path: Path, home: Home) -> Repository:
    made = Repository.made(tmp_path / "repositories" / "dots", {"install.sh": INSTALLS, ".vimrc": "set nu"})
    home.env["CODEHUB_DOTFILES_URL"] = made.url
    return made


def installed(home: Home) -> int:
    record = home.place / "installed"
    return len(record.read_text().split()) if record.exists() else 0


def test_dotfiles_are_installed_once_and_again_when_they_are_new(dotfiles: Repository, home: Home) -> None:
    assert home.start() == home.place
    assert (home.step("dotfiles")["status"], installed(home)) == ("done", 1)
    assert "it installs" in home.log
    home.start()
    assert installed(home) == 1
    dotfiles.commit({".vimrc": "set nonu"})
    home.start()
    assert ((home.place / ".dotfiles" / ".vimrc").read_text(), installed(home)) == ("set nonu", 2)
    home.env["CODEHUB_DOTFILES_COMMAND"] = "echo x >> ../installed; echo x >> ../installed"
    home.start()
    assert installed(home) == 4


def test_the_install_command_is_written_nowhere(dotfiles: Repository, home: Home) -> None:
    del dotfiles
    home.env["CODEHUB_DOTFILES_COMMAND"] = ": s3cret; echo x >> ../installed; exit 3"
    home.start()
    failed = home.step("dotfiles")
    assert (failed["reason"], failed["detail"]) == ("dotfiles_command", "exit code 3")
    assert "the install command of your dotfiles" in home.log
    home.env["CODEHUB_DOTFILES_COMMAND"] = ": s3cret; echo x >> ../installed"
    home.start()
    home.start()
    assert (home.step("dotfiles")["status"], installed(home)) == ("done", 2)
    held = {path.name: "s3cret" in path.read_text() for path in home.state_directory.iterdir()}
    assert held == {"setup.json": False, "setup.log": False, "remembered.json": False}


def test_dotfiles_with_changes_of_the_person_are_not_pulled(dotfiles: Repository, home: Home) -> None:
    home.start()
    (home.place / ".dotfiles" / ".vimrc").write_text("mine")
    dotfiles.commit({".vimrc": "theirs"})
    home.start()
    assert (home.place / ".dotfiles" / ".vimrc").read_text() == "mine"
    assert home.step("dotfiles")["status"] == "done"


def test_dotfiles_without_a_program_are_just_cloned(dotfiles: Repository, home: Home) -> None:
    git(dotfiles.place, "rm", "-q", "install.sh")
    dotfiles.commit({"install.sh": "not executable"})
    home.start()
    assert (home.step("dotfiles")["status"], installed(home)) == ("done", 0)


def test_another_directory_of_that_name_is_not_touched(dotfiles: Repository, home: Home) -> None:
    del dotfiles
    (home.place / ".dotfiles").mkdir()
    (home.place / ".dotfiles" / "mine").touch()
    home.start()
    assert (home.step("dotfiles")["status"], home.step("dotfiles")["reason"]) == ("failed", "dotfiles_taken")
    assert [path.name for path in (home.place / ".dotfiles").iterdir()] == ["mine"]


def test_dotfiles_that_fail_do_not_keep_the_repository_from_coming(
    dotfiles: Repository, shop: Repository, home: Home
) -> None:
    del shop
    dotfiles.commit({"install.sh": "#!/bin/sh\necho this is why\nexit 3\n"})
    home.start()
    assert (home.step("dotfiles")["reason"], home.step("dotfiles")["detail"]) == ("dotfiles_command", "this is why")
    assert home.step("clone")["status"] == "done"


def test_dotfiles_that_cannot_be_fetched(home: Home) -> None:
    home.env["CODEHUB_DOTFILES_URL"] = "--upload-pack=touch evil"
    home.start()
    assert home.step("dotfiles")["status"] == "failed"
    assert not (home.place / "evil").exists()


# ── devcontainer.json ────────────────────────────────────────────────────────────────────────────────────────────────


def start_with(config: str, shop: Repository, home: Home, place: str = ".devcontainer/devcontainer.json") -> Path:
    shop.commit({place: config})
    home.start()
    return home.place / "shop"


@pytest.mark.parametrize("place", [".devcontainer/devcontainer.json", ".devcontainer.json"])
def test_comments_and_trailing_commas(place: str, shop: Repository, home: Home) -> None:
    config = """// a comment
    {
        "postCreateCommand": "echo // not a comment, } > made", /* another
        one */
        "forwardPorts": [3000, /* here too */],
    }"""
    folder = start_with(config, shop, home, place)
    assert home.step("devcontainer")["status"] == "done"
    assert (folder / "made").read_text() == "// not a comment, }\n"


COMMANDS = {
    "onCreateCommand": "echo on >> order",
    "updateContentCommand": ["sh", "-c", "echo ${containerWorkspaceFolderBasename} $0 >> order", "a word"],
    "postCreateCommand": {"one": "echo one > one", "two": ["touch", "two"]},
    "postStartCommand": "echo start >> order",
}


def test_commands_in_all_forms_once_and_at_each_start(shop: Repository, home: Home) -> None:
    folder = start_with(json.dumps(COMMANDS), shop, home)
    assert (folder / "order").read_text() == "on\nshop a word\nstart\n"
    assert ((folder / "one").exists(), (folder / "two").exists()) == (True, True)
    home.start()
    assert (folder / "order").read_text() == "on\nshop a word\nstart\nstart\n"


def test_a_command_that_fails_is_said_and_run_again_when_asked(shop: Repository, home: Home) -> None:
    shop.commit({".devcontainer.json": '{"postCreateCommand": {"look": "echo this is why; test -e mended"}}'})
    home.folder()
    with home.running() as program:
        until(lambda: home.has_failed, "the failure")
        failed = home.step("devcontainer")
        assert (failed["reason"], failed["detail"]) == ("command", "this is why")
        assert failed["subject"]["command"] == "postCreateCommand (look)"
        (home.place / "shop" / "mended").touch()
        Path(home.state["again"]).touch()
        assert program.wait(DEADLINE_SECONDS) == 0
    assert home.step("devcontainer")["status"] == "done"


def test_what_a_command_left_running_keeps_its_output_and_does_not_hold_the_rest(shop: Repository, home: Home) -> None:
    config = {"postStartCommand": "(while [ ! -e ../enough ]; do echo still here; sleep 0.05; done; touch ../well) &"}
    shop.commit({".devcontainer.json": json.dumps(config)})
    home.folder()
    with home.running():
        until(lambda: home.step("devcontainer").get("status") == "done", "the end of the command itself")
        (home.place / "enough").touch()
        until((home.place / "well").exists, "the program in the background, not ended by its output")


def test_huge_output_does_not_fill_the_disk(shop: Repository, home: Home) -> None:
    start_with(json.dumps({"postCreateCommand": "yes | head -c 20000000; echo the end; exit 1"}), shop, home)
    assert home.step("devcontainer")["detail"] == "the end"
    assert (home.state_directory / "setup.log").stat().st_size < 5 << 20
    assert "left out" in home.log[-100:]


def test_variables_reach_commands_and_terminals(shop: Repository, home: Home) -> None:
    config = {
        "containerEnv": {"GREETING": "hello", "FOLDER": "${containerWorkspaceFolder}", "bad name": "x", "NUMBER": 3},
        "remoteEnv": {"LOUD": "${containerEnv:GREETING}!", "GONE": None, "MINE": "${localEnv:USER:nobody}"},
        "postCreateCommand": 'echo "$GREETING $LOUD $MINE ${GONE-unset}" > said',
    }
    home.env["GONE"] = "here"
    folder = start_with(json.dumps(config), shop, home)
    assert (folder / "said").read_text() == "hello hello! nobody unset\n"
    given = json.loads(home.machine_settings.read_text())["terminal.integrated.env.linux"]
    assert given == {"GREETING": "hello", "FOLDER": str(folder), "LOUD": "hello!", "GONE": None, "MINE": "nobody"}


TOKEN = "s3cret $(touch ran) 'value'"


def written_below(place: Path) -> dict[str, str]:
    """All that is on disk there, by path, but for git's own files and what commands have written into the folder."""
    files = (path for path in place.rglob("*") if path.is_file() and place / "shop" not in path.parents)
    return {str(path.relative_to(place)): path.read_text() for path in files}


def test_no_value_of_the_environment_is_written_down(shop: Repository, home: Home) -> None:
    """Commands get it, terminals look it up by themselves, and whatever is written and archived has its name alone."""
    words = ["sh", "-c", 'printf %s "$1" > words', "sh", "${containerEnv:TOKEN}"]
    config = {
        "remoteEnv": {
            "HEADER": "Bearer ${containerEnv:TOKEN}",
            "TWICE": "${remoteEnv:HEADER}, ${containerEnv:NO:none}",
        },
        "onCreateCommand": "printf %s \"${containerEnv:TOKEN}\" > double; printf %s '${containerEnv:TOKEN}!' > single",
        "updateContentCommand": words,
        "postCreateCommand": 'printf %s "$TWICE" > twice; printf \'%s\' it\\\'s"${containerEnv:TOKEN}" > escaped',
        "postStartCommand": ["/nowhere/${containerEnv:TOKEN}"],
    }
    home.env["TOKEN"] = TOKEN
    folder = start_with(json.dumps(config), shop, home)
    said = {name: (folder / name).read_text() for name in ("double", "single", "words", "twice", "escaped")}
    assert said == {
        "double": TOKEN,
        "single": f"{TOKEN}!",
        "words": TOKEN,
        "twice": f"Bearer {TOKEN}, none",
        "escaped": f"it's{TOKEN}",
    }
    assert not (folder / "ran").exists()
    assert home.step("devcontainer")["reason"] == "command"
    given = json.loads(home.machine_settings.read_text())["terminal.integrated.env.linux"]
    assert given == {"HEADER": "Bearer ${env:TOKEN}", "TWICE": "Bearer ${env:TOKEN}, none"}
    written = written_below(home.place)
    assert {".local/state/codehub/setup.log", ".local/state/codehub/remembered.json"} <= set(written)
    assert [name for name, text in written.items() if "s3cret" in text] == []
    ours = [*home.state_directory.iterdir(), home.machine_settings]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in ours} == {path.name: "0o600" for path in ours}


def test_no_value_is_in_the_arguments_of_a_shell(shop: Repository, home: Home) -> None:
    command = "tr '\\0' ' ' < /proc/$$/cmdline > arguments; : ${containerEnv:TOKEN}"
    home.env["TOKEN"] = "s3cret"
    folder = start_with(json.dumps({"postCreateCommand": command}), shop, home)
    assert "${TOKEN}" in (folder / "arguments").read_text()
    assert "s3cret" not in (folder / "arguments").read_text()


def vscode(**parts: object) -> str:
    return json.dumps({"customizations": {"vscode": parts}})


def test_settings_are_the_machine_s_and_never_replace_the_person_s(shop: Repository, home: Home) -> None:
    home.machine_settings.parent.mkdir(parents=True)
    home.machine_settings.write_text('{"editor.fontSize": 20}')
    folder = start_with(vscode(settings={"editor.fontSize": 10, "editor.tabSize": 2}), shop, home)
    assert json.loads(home.machine_settings.read_text()) == {"editor.fontSize": 20, "editor.tabSize": 2}
    (folder / ".devcontainer" / "devcontainer.json").write_text(vscode(settings={"editor.wordWrap": "on"}))
    home.start()
    assert json.loads(home.machine_settings.read_text()) == {"editor.fontSize": 20, "editor.wordWrap": "on"}
    home.machine_settings.write_text('{"editor.wordWrap": "off"}')
    home.start()
    assert json.loads(home.machine_settings.read_text()) == {"editor.wordWrap": "off"}
    home.machine_settings.write_text("{ // a comment\n}")
    home.start()
    assert home.machine_settings.read_text() == "{ // a comment\n}"


def test_extensions_are_installed_once_and_a_failure_is_said(shop: Repository, home: Home) -> None:
    names = ["good.one", "bad.one", "-left.out", "--evil", "no dot", 3]
    start_with(vscode(extensions=names), shop, home)
    failed = home.step("devcontainer")
    assert (failed["status"], failed["reason"]) == ("failed", "extensions")
    assert failed["subject"]["names"] == "no dot, bad.one"
    data = home.place / ".local" / "share" / "code-server"
    words = f"--config /c --user-data-dir {data} --extensions-dir /e --install-extension"
    asked = (home.place / "asked").read_text().splitlines()
    assert asked == [f"{words} good.one", f"{words} bad.one"]
    home.start()
    assert (home.place / "asked").read_text().splitlines()[2:] == [f"{words} bad.one"]


def test_ports_have_names_and_what_is_ignored_is_listed(shop: Repository, home: Home) -> None:
    config = {
        "name": "Shop",
        "image": "mcr.example.com/python",
        "features": {},
        "forwardPorts": [3000, "localhost:5000", "db:5432", 0, 70000, True, {}],
        "portsAttributes": {"3000": {"label": "Web"}, "5000": "odd"},
        "customizations": {"codespaces": {}, "vscode": {"extensions": [], "other": 1}},
        "postAttachCommand": "true",
        "__proto__": {"polluted": True},
    }
    start_with(json.dumps(config), shop, home)
    assert home.state["ports"] == [{"port": 3000, "label": "Web"}, {"port": 5000, "label": ""}]
    assert home.state["ignored"] == [
        *("image", "features", "postAttachCommand", "__proto__", "customizations.codespaces"),
        *("customizations.vscode.other", "forwardPorts db:5432", "forwardPorts 0", "forwardPorts 70000"),
        *("forwardPorts true", "forwardPorts [object Object]"),
    ]
    assert json.loads(home.machine_settings.read_text())["remote.portsAttributes"] == config["portsAttributes"]


@pytest.mark.parametrize(
    "config",
    [
        *("", "[]", "null", "{", '{"a": 1,,}', '{"a": /* no end', '"text"', "{'a': 1}", "[" * 100_000),
        *('{"postCreateCommand": 3}', '{"postStartCommand": [1]}', '{"postCreateCommand": {"a": {"b": "c"}}}'),
        *("/*" * 500_000, '"' * 500_000, " " * ((1 << 20) + 1)),
    ],
    ids=range(15),
)
def test_what_cannot_be_understood_is_said_and_nothing_is_run(config: str, shop: Repository, home: Home) -> None:
    start_with(config, shop, home)
    assert (home.step("clone")["status"], home.step("devcontainer")["status"]) == ("done", "failed")
    assert home.step("devcontainer")["reason"] == "devcontainer_file"
    assert "devcontainer.json cannot be used" in home.step("devcontainer")["message"]


@pytest.mark.parametrize(
    "config",
    [
        '{"customizations": 3, "forwardPorts": "all", "portsAttributes": [], "containerEnv": "x", "remoteEnv": [1]}',
        '{"customizations": {"vscode": {"extensions": {}, "settings": ["x"]}}, "postCreateCommand": ""}',
        '{"customizations": {"vscode": null}, "postCreateCommand": [], "postStartCommand": {}}',
    ],
)
def test_parts_of_another_shape_are_passed_over(config: str, shop: Repository, home: Home) -> None:
    start_with(config, shop, home)
    assert home.step("devcontainer")["status"] == "done", home.step("devcontainer")


@pytest.mark.parametrize("target", ["/dev/zero", "/etc/hostname", "../../outside.json"])
def test_a_link_out_of_the_repository_is_not_followed(target: str, shop: Repository, home: Home) -> None:
    (home.place / "outside.json").write_text('{"postCreateCommand": "touch ran"}')
    (shop.place / ".devcontainer").mkdir()
    (shop.place / ".devcontainer" / "devcontainer.json").symlink_to(target)
    shop.commit({})
    home.start()
    assert home.step("devcontainer")["reason"] == "devcontainer_file"
    assert not (home.place / "shop" / "ran").exists()


def test_a_template_may_turn_it_off(shop: Repository, home: Home) -> None:
    home.env["CODEHUB_DEVCONTAINER"] = "off"
    folder = start_with('{"postCreateCommand": "touch ran"}', shop, home)
    assert (home.step("devcontainer"), (folder / "ran").exists()) == ({}, False)
