"""Secrets of a start: how they reach the agent, and what the command behind the script finds of them."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from codehub.agent.handshake import KEY_BYTES, MOST_SECRETS_BYTES, SIZE_BYTES, NotProven, Transcript, dial, hand_over
from codehub.agent.relay import listen
from codehub.agent.secrets import behind_setup, decode, encode, records, variables

_AGENT = """
import socket, sys
from codehub.agent.relay import Relay
def receive(secrets):
    sys.stdout.buffer.write(len(secrets).to_bytes(4, "big") + secrets)
    sys.stdout.buffer.flush()
Relay(socket.socket(fileno=int(sys.argv[1])), bytes.fromhex(sys.argv[2]), receive).serve()
"""
KEY = os.urandom(KEY_BYTES)
ENV = {"TOKEN": "a=b\nc", "EMPTY": "", "한국어": "값"}
CREDENTIALS = [("git.example:8443", "ann", "tok en=#"), ("other.example", "bob", "t2")]


@asynccontextmanager
async def a_waiting_agent() -> AsyncIterator[tuple[tuple[str, int], asyncio.StreamReader]]:
    """The address of an agent that waits for its secrets, and what it received."""
    with closing(listen("127.0.0.1", 0)) as listener:
        words = [sys.executable, "-c", _AGENT, str(listener.fileno()), KEY.hex()]
        process = await asyncio.create_subprocess_exec(
            *words, pass_fds=[listener.fileno()], stdout=asyncio.subprocess.PIPE
        )
        address = listener.getsockname()
    assert process.stdout is not None
    try:
        yield address, process.stdout
    finally:
        process.kill()
        await process.wait()


async def received(output: asyncio.StreamReader) -> bytes:
    return await output.readexactly(int.from_bytes(await output.readexactly(4), "big"))


@pytest.mark.parametrize("env", [ENV, {}, {"BIG": "x" * (1 << 20)}])
async def test_what_is_handed_over_arrives(env: dict[str, str]) -> None:
    sent = encode(env, records(CREDENTIALS, ["-----BEGIN\nkey\n-----END\n"]))
    async with a_waiting_agent() as (address, output):
        _, arrived = await asyncio.gather(hand_over(address, KEY, sent), received(output))
    found, written = decode(arrived)
    assert found == env
    assert written == records(CREDENTIALS, ["-----BEGIN\nkey\n-----END\n"])


async def test_the_first_secrets_count_and_later_ones_are_not_even_sent() -> None:
    async with a_waiting_agent() as (address, output):
        await asyncio.gather(*(hand_over(address, KEY, encode({"N": str(number)}, b"")) for number in range(8)))
        first, _ = decode(await received(output))
        assert first["N"] in set("01234567")
        await hand_over(address, KEY, encode({"N": "later"}, b""))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(output.read(1), 0.2)


async def test_nobody_without_the_key_hands_anything_over() -> None:
    async with a_waiting_agent() as (address, output):
        with pytest.raises(NotProven):
            await hand_over(address, os.urandom(KEY_BYTES), encode(ENV, b""))
        await hand_over(address, KEY, encode({"N": "mine"}, b""))
        assert decode(await received(output)) == ({"N": "mine"}, b"")


class _Between:
    """Stands between a caller and the agent, at the agent's own address as both see it: it records and changes what the
    caller sends. The proofs name the address, so both sides are told the same one."""

    def __init__(self, change: bytes) -> None:
        self._change = change
        self.seen = b""

    def sealed(self, transcript: Transcript, secrets: bytes) -> bytes:
        sealed = bytearray(transcript.seal(secrets))
        self.seen += bytes(sealed)
        for place, value in enumerate(self._change):
            sealed[SIZE_BYTES + place] ^= value
        return bytes(sealed)


def a_transcript() -> Transcript:
    return Transcript(KEY, ("10.0.0.1", 1), os.urandom(32), os.urandom(32))


@pytest.mark.parametrize("change", [b"\x01", b"\0\0\x80"])
def test_what_was_changed_on_the_way_is_not_taken(change: bytes) -> None:
    transcript, between = a_transcript(), _Between(change)
    arrived = between.sealed(transcript, b"a secret of some length")
    size = int.from_bytes(arrived[:SIZE_BYTES], "big")
    assert transcript.unseal(arrived[SIZE_BYTES : SIZE_BYTES + size], arrived[SIZE_BYTES + size :]) is None
    assert b"secret" not in between.seen


def test_another_connection_seals_the_same_otherwise_and_cannot_open_it() -> None:
    one, other, secret = a_transcript(), a_transcript(), b"the same text"
    sealed = one.seal(secret)
    assert sealed != other.seal(secret)
    text, proof = sealed[SIZE_BYTES : SIZE_BYTES + len(secret)], sealed[SIZE_BYTES + len(secret) :]
    assert one.unseal(text, proof) == secret
    assert other.unseal(text, proof) is None


async def test_more_than_an_agent_takes_is_refused_and_it_goes_on_waiting() -> None:
    async with a_waiting_agent() as (address, output):
        with pytest.raises(OSError, match=r"closed|reset|[Bb]roken"):
            await hand_over(address, KEY, bytes(MOST_SECRETS_BYTES + 1))
        await hand_over(address, KEY, encode({"N": "fits"}, b""))
        assert decode(await received(output))[0] == {"N": "fits"}


async def test_a_port_is_led_to_as_before_while_it_waits() -> None:
    async with a_waiting_agent() as (address, _):
        server = socket.create_server(("127.0.0.1", 0))
        with server, await dial(address, KEY, server.getsockname()[1]) as caller:
            inside, _ = server.accept()
            with inside:
                inside.sendall(b"hello")
                assert await asyncio.get_running_loop().sock_recv(caller, 5) == b"hello"


@pytest.mark.parametrize("credential", [("a\nb", "c", "d"), ("a", "b\r", "c"), ("a", "b", "c\0")])
def test_a_credential_of_several_lines_is_refused(credential: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="one line"):
        records([credential], [])


# ── the script ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where the script puts its sockets. What it leaves running is ended."""
    yield tmp_path / "sockets"
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(tmp_path) in words and (b"ssh-agent" in words or b"credential-cache" in words):
                os.kill(int(process.name), signal.SIGTERM)


def behind(directory: Path, script: str, given: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
    home = directory.parent / "home"
    home.mkdir(parents=True, exist_ok=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_TERMINAL_PROMPT": "0", **env}
    words = behind_setup(["sh", "-c", script, "sh"], str(directory))
    done = subprocess.run(words, input=given, capture_output=True, check=False, env=environ, cwd=home, timeout=60)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_git_knows_who_commits(directory: Path) -> None:
    script = "git init -q . && git commit -q --allow-empty -m first && git log -1 --format='%an <%ae>'"
    done = behind(directory, script, CODEHUB_GIT_NAME='Ann "Ö" #1', CODEHUB_GIT_EMAIL="ann@example.org")
    assert (done.stdout, done.stderr) == ('Ann "Ö" #1 <ann@example.org>\n', "")


def test_what_a_person_configured_is_preferred(directory: Path) -> None:
    script = "git config --global user.name Me; git config user.name; git config user.email"
    done = behind(directory, script, CODEHUB_GIT_NAME="Account", CODEHUB_GIT_EMAIL="a@example.org")
    assert done.stdout == "Me\na@example.org\n"


def test_git_finds_its_credentials_by_host_and_nothing_on_the_disk_has_them(directory: Path) -> None:
    asked = "; ".join(
        f"printf 'protocol=https\\nhost={host}\\n\\n' | git credential fill" for host, _, _ in CREDENTIALS
    )
    done = behind(directory, f"{asked}; env; cat /proc/$$/cmdline", records(CREDENTIALS, []))
    for host, username, token in CREDENTIALS:
        assert f"host={host}\nusername={username}\npassword={token}\n" in done.stdout
        assert done.stdout.count(token) == 1
        kept = subprocess.run(["grep", "-rF", token, directory.parent], capture_output=True, check=False)
        assert kept.returncode == 1
    assert done.stderr == ""
    other = behind(directory, "printf 'protocol=https\\nhost=third.example\\n\\n' | git credential fill")
    assert other.returncode != 0


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="openssh-client is not installed")
def test_the_ssh_agent_has_the_keys_and_no_file_does(directory: Path, tmp_path: Path) -> None:
    keys, public = [], []
    for number in range(2):
        file = tmp_path / f"key{number}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"key {number}", "-f", file], check=True)
        keys.append(file.read_text())
        public.append(" ".join(file.with_suffix(".pub").read_text().split()[:2]))
        file.unlink()
    done = behind(directory, "ssh-add -L", records(CREDENTIALS, keys))
    assert done.stderr == ""
    assert [" ".join(line.split()[:2]) for line in done.stdout.splitlines()] == public
    kept = subprocess.run(["grep", "-rF", keys[0].splitlines()[2], tmp_path], capture_output=True, check=False)
    assert kept.returncode == 1


def test_a_damaged_key_is_said_and_the_command_runs_all_the_same(directory: Path) -> None:
    given = records([], ["-----BEGIN OPENSSH PRIVATE KEY-----\nno\n-----END OPENSSH PRIVATE KEY-----\n"])
    done = behind(directory, "echo runs; cat", given)
    assert done.stdout == "runs\n"
    assert "codehub: ssh-agent did not take an SSH key" in done.stderr


def test_without_git_and_ssh_the_command_runs_and_it_is_said(directory: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "mkdir", "cat"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    done = behind(directory, "echo runs", records(CREDENTIALS[:1], ["-----BEGIN\nkey\n"]), PATH=str(programs))
    assert done.stdout == "runs\n"
    assert "git is not installed here" in done.stderr
    assert "ssh-agent is not installed here" in done.stderr


def environment_behind(directory: Path, env: dict[str, str]) -> tuple[dict[str, str], str]:
    """The variables of a command that got them through the script, and what the script said."""
    words = behind_setup(["cat", "/proc/self/environ"], str(directory))
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, input=variables(env), capture_output=True, check=True, env=clean, timeout=60)
    pairs = (one.partition(b"=") for one in done.stdout.split(b"\0") if one)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}, done.stderr.decode()


def test_variables_of_any_text_arrive_as_they_are(directory: Path) -> None:
    every = "".join(map(chr, range(1, 256)))
    env = {
        "EVERY": every,
        "KOREAN": "각한국어 값 🙂",
        "LINES": "\n\na\n\nb\\c\\n%s$(false)`x`'\"\n",
        "EMPTY": "",
        "BIG": "x" * 65536,
        "text": "1",
        "name": "2",
        "_codehub": "3",
        "IFS": ":x",
        "HOME": "/some where",
    }
    found, said = environment_behind(directory, env)
    assert {name: found.get(name) for name in env} == env
    assert said == ""


@pytest.mark.parametrize("name", ["a-b", "1A", "A B", "", "UID", "x;touch y", "$(x)"])
def test_a_name_that_no_shell_sets_is_told_and_the_others_are_set(name: str, directory: Path) -> None:
    found, said = environment_behind(directory, {name: "hostile", "AFTER": "set"})
    assert (found["AFTER"], found.get(name, "")) == ("set", "" if name != "UID" else found.get(name, ""))
    assert f"cannot set the variable {name}" in said
    assert "hostile" not in said


def test_nothing_of_what_was_given_is_left_in_the_descriptor(directory: Path, tmp_path: Path) -> None:
    file = os.memfd_create("given")
    os.write(file, variables({"TOKEN": "planted"}) + records(CREDENTIALS, []))
    os.lseek(file, 0, os.SEEK_SET)
    words = behind_setup(["sh", "-c", "echo $TOKEN"], str(directory))
    done = subprocess.run(words, stdin=file, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "planted\n"
    assert os.fstat(file).st_size == 0
    os.close(file)


@pytest.mark.parametrize("name", ["with blank", "quote'd", "$x;y"])
def test_the_directory_may_have_any_name(name: str, directory: Path, tmp_path: Path) -> None:
    del directory  # its end ends the daemons
    asked = f"printf 'protocol=https\\nhost={CREDENTIALS[0][0]}\\n\\n' | git credential fill"
    done = behind(tmp_path / name / "s", asked, records(CREDENTIALS, []))
    assert f"password={CREDENTIALS[0][2]}" in done.stdout
    assert done.stderr == ""


def test_arguments_pass_as_they_are_and_nothing_of_the_script_is_left_in_the_environment(directory: Path) -> None:
    words = behind_setup(
        [sys.executable, "-c", "import os, sys; print(sys.argv[1:], sorted(os.environ))", "a b", "$c"], ""
    )
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [*words[:4], str(directory), *words[5:]], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout == "['a b', '$c'] ['GIT_CONFIG_SYSTEM', 'LC_ALL', 'PATH', 'PWD']\n"
