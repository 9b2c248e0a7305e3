"""Which SSH public keys are accepted, tried with what OpenSSH itself writes."""

import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.authorized_keys import PublicKey, checked_key_name, checked_public_key
from codehub.domain.errors import Invalid


def made(place: Path, *words: str, comment: str = "ann@laptop") -> str:
    file = place / "-".join(words)
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-C", comment, "-t", *words, "-f", str(file)], check=True)
    return file.with_name(f"{file.name}.pub").read_text()


def packed(*parts: bytes) -> str:
    return b64encode(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).decode()


ED25519 = f"ssh-ed25519 {packed(b'ssh-ed25519', bytes(range(32)))}"
POINT = b"\x04" + bytes(64)
ACCEPTED_SECURITY_KEYS = [
    f"sk-ssh-ed25519@openssh.com {packed(b'sk-ssh-ed25519@openssh.com', bytes(32), b'ssh:')}",
    "sk-ecdsa-sha2-nistp256@openssh.com " + packed(b"sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", POINT, b"ssh:"),
]


@pytest.mark.parametrize(
    "words",
    [("ed25519",), ("ecdsa", "-b", "256"), ("ecdsa", "-b", "384"), ("ecdsa", "-b", "521"), ("rsa", "-b", "3072")],
)
def test_what_openssh_makes_is_accepted_with_its_fingerprint(words: tuple[str, ...], tmp_path: Path) -> None:
    line = made(tmp_path, *words)
    key = checked_public_key(f"\n  {line}\n")
    assert key.line == line.strip()
    assert key.comment == "ann@laptop"
    shown = subprocess.run(["ssh-keygen", "-lf", "-"], input=line, capture_output=True, text=True, check=True).stdout
    assert key.fingerprint == shown.split()[1]


@pytest.mark.parametrize("line", ACCEPTED_SECURITY_KEYS)
def test_keys_of_security_keys_are_accepted(line: str) -> None:
    assert checked_public_key(line).line == line


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="this one 2048"):
        checked_public_key(made(tmp_path, "rsa", "-b", "2048"))


def test_a_private_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    made(tmp_path, "ed25519")
    private = (tmp_path / "ed25519").read_text()
    with pytest.raises(Invalid, match="private key") as refused:
        checked_public_key(private)
    assert private.splitlines()[1] not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "one line"),
        ("hello", "one line"),
        ("ssh-ed25519", "damaged"),
        (f"{ED25519}\n{ED25519}", "more than one line"),
        (f'command="id" {ED25519}', "Options"),
        (f"no-pty {ED25519}", "Options"),
        (f"ssh-dss {packed(b'ssh-dss', b'x')}", "DSA"),
        (f"ssh-ed25519-cert-v01@openssh.com {packed(b'x')}", "certificate"),
        (f"ssh-xmss@openssh.com {packed(b'ssh-xmss@openssh.com')}", "not accepted"),
        ("ssh-ed25519 !!!!", "damaged"),
        (f"ssh-ed25519 {packed(b'ssh-ed25519', bytes(31))}", "damaged"),
        (f"ssh-ed25519 {packed(b'ssh-ed25519', bytes(32), b'more')}", "damaged"),
        (f"ssh-ed25519 {packed(b'ssh-rsa', bytes(32))}", "damaged"),
        (f"ecdsa-sha2-nistp384 {packed(b'ecdsa-sha2-nistp384', b'nistp256', POINT)}", "damaged"),
        (f"ecdsa-sha2-nistp256 {packed(b'ecdsa-sha2-nistp256', b'nistp256', bytes(65))}", "damaged"),
        (f"sk-ssh-ed25519@openssh.com {packed(b'sk-ssh-ed25519@openssh.com', bytes(32))}", "damaged"),
        (f"ssh-ed25519 {packed(b'ssh-ed25519')}", "damaged"),
        (f"ssh-rsa {packed(b'ssh-rsa', bytes([3]), bytes(10))}", "RSA"),
        (f"ssh-rsa {packed(b'ssh-rsa', bytes([2]), bytes([255]) * 512)}", "damaged"),
        (f"ssh-rsa {packed(b'ssh-rsa', bytes([3]), bytes([255]) * 6000)}", "RSA"),
        (f"ssh-ed25519 {'A' * 9000}", "damaged"),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5/////w==", "damaged"),
    ],
)
def test_what_is_not_accepted_is_refused_with_a_clear_line(text: str, part: str) -> None:
    with pytest.raises(Invalid, match=part) as refused:
        checked_public_key(text)
    assert refused.value.field == "public_key"


@given(st.text())
def test_any_text_is_a_key_or_invalid(text: str) -> None:
    for tried in (text, f"ssh-ed25519 {text}", f"ssh-rsa {b64encode(text.encode('utf-8', 'replace')).decode()}"):
        try:
            key = checked_public_key(tried)
        except Invalid:
            continue
        assert checked_public_key(key.line) == key


def test_a_name_is_what_was_given_or_the_comment_or_the_algorithm() -> None:
    key = PublicKey("ssh-ed25519", b"", "ann@laptop")
    assert checked_key_name(" work ", key) == "work"
    assert checked_key_name("", key) == "ann@laptop"
    assert checked_key_name("", PublicKey("ssh-ed25519", b"")) == "ssh-ed25519"
    for wrong in ("a" * 101, "a\x07b"):
        with pytest.raises(Invalid):
            checked_key_name(wrong, key)
