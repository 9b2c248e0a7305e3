"""The SSH public keys with which people reach their workspaces: which are accepted, and what is shown of them. Pure.

A key is read to its last byte before it is accepted: its line names the algorithm, its data names it again, and its
size is counted, so that what is stored is a key that the gateway can check a signature with, and nothing else.
"""

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from uuid import UUID

from codehub.domain.errors import Invalid, LimitReached

KEYS_PER_USER = 50
RSA_LEAST_BITS = 3072
RSA_MOST_BITS = 16384
NAME_LENGTH = 100
LINE_LENGTH = 8192

_ED25519_BYTES = 32
_CURVES = {"nistp256": 32, "nistp384": 48, "nistp521": 66}
_SECURITY_KEYS = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
ALGORITHMS = ("ssh-ed25519", *(f"ecdsa-sha2-{curve}" for curve in _CURVES), *_SECURITY_KEYS, "ssh-rsa")
"""The types of keys that are accepted, as OpenSSH names them."""

_WORD = re.compile(r"[A-Za-z0-9@.-]{1,100}")
_FIELD = "public_key"
_SHAPE = "A public key is one line such as 'ssh-ed25519 AAAA… ann@laptop': the content of the file that ends in .pub."


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key. `data`: as the SSH protocol sends it, which the fingerprint is made of."""

    algorithm: str
    data: bytes
    comment: str = ""

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` shows it."""
        return fingerprint_of(self.data)

    @property
    def line(self) -> str:
        return " ".join(part for part in (self.algorithm, b64encode(self.data).decode(), self.comment) if part)


@dataclass(frozen=True, slots=True)
class AuthorizedKey:
    """A public key that somebody registered. It is theirs alone: no other account can have it."""

    id: UUID
    user_id: UUID
    name: str
    key: PublicKey
    created_at: datetime
    last_used_at: datetime | None = None


def fingerprint_of(data: bytes) -> str:
    return "SHA256:" + b64encode(sha256(data).digest()).decode().rstrip("=")


def checked_key_name(text: str, key: PublicKey) -> str:
    """The name of a key: what was given, else its comment, else its algorithm."""
    name = text.strip() or key.comment or key.algorithm
    if len(name) > NAME_LENGTH or not name.isprintable():
        raise Invalid(f"A key's name has at most {NAME_LENGTH} printable characters.", "name")
    return name


def checked_public_key(text: str) -> PublicKey:
    """The key of one line in OpenSSH's format; Invalid, which never repeats what was given, if it is not accepted."""
    line = text.strip()
    if "PRIVATE KEY" in line:
        raise Invalid(
            "That is a private key, which nobody but you should have seen. Make a new pair, and give the content of "
            "the file that ends in .pub.",
            _FIELD,
        )
    if len(line.splitlines()) > 1:
        raise Invalid(f"That is more than one line. Add keys one by one. {_SHAPE}", _FIELD)
    algorithm, _, rest = line.partition(" ")
    encoded, _, comment = rest.strip().partition(" ")
    _refuse_algorithm(algorithm, rest)
    data = _decoded(encoded) if len(line) <= LINE_LENGTH else b""
    if not _is_whole(algorithm, data):
        raise Invalid(f"That key is damaged: its data is not that of a key of type {algorithm}. {_SHAPE}", _FIELD)
    return PublicKey(algorithm, data, _shown(comment))


def refuse_too_many_keys(held: int, most: int) -> None:
    """Raise LimitReached if another key would be one too many."""
    if held >= most:
        raise LimitReached(
            f"You have {most} SSH keys already. Remove one that you no longer use.", code="ssh_key_limit"
        )


def _refuse_algorithm(algorithm: str, rest: str) -> None:
    """Raise Invalid, with what to do instead, unless the line begins with the name of an accepted algorithm."""
    if algorithm in ALGORITHMS:
        return
    if algorithm == "ssh-dss":
        raise Invalid("DSA keys are too weak. Make another key: ssh-keygen -t ed25519", _FIELD)
    if algorithm.endswith("-cert-v01@openssh.com"):
        raise Invalid("That is a certificate. Give the public key itself.", _FIELD)
    if any(word in ALGORITHMS for word in rest.split()):
        raise Invalid("Options before a key are not taken: begin with its type, such as ssh-ed25519.", _FIELD)
    if _WORD.fullmatch(algorithm) and rest:
        known = ", ".join(ALGORITHMS)
        raise Invalid(f"Keys of that type are not accepted. Accepted are: {known}.", _FIELD)
    raise Invalid(_SHAPE, _FIELD)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""


def _is_whole(algorithm: str, data: bytes) -> bool:
    """Whether the data is that of a key of this algorithm, with nothing missing and nothing after it. Raises Invalid
    for an RSA key whose size is not accepted."""
    parts = _parts(data)
    if parts is None or not parts or parts[0] != algorithm.encode():
        return False
    values = parts[1:]
    if algorithm == "ssh-rsa":
        return len(values) == 2 and _is_rsa(*values)
    if algorithm in _SECURITY_KEYS:
        *values, application = values or [b""]
        if not application:
            return False
    if algorithm.endswith("ed25519") or algorithm == "sk-ssh-ed25519@openssh.com":
        return [len(value) for value in values] == [_ED25519_BYTES]
    curve = algorithm.removesuffix("@openssh.com").rpartition("-")[2]
    return len(values) == 2 and values[0] == curve.encode() and _is_point(values[1], _CURVES[curve])


def _is_point(point: bytes, size: int) -> bool:
    """Whether it has the form of an uncompressed point, the only one that SSH knows."""
    return len(point) == 1 + 2 * size and point[0] == 4


def _is_rsa(exponent: bytes, modulus: bytes) -> bool:
    value, bits = int.from_bytes(exponent, "big"), int.from_bytes(modulus, "big").bit_length()
    if not RSA_LEAST_BITS <= bits <= RSA_MOST_BITS:
        raise Invalid(
            f"An RSA key has {RSA_LEAST_BITS} to {RSA_MOST_BITS} bits, and this one {bits}. "
            "Make another key: ssh-keygen -t ed25519",
            _FIELD,
        )
    return value % 2 == 1 and 1 < value.bit_length() <= 64 and modulus[-1] % 2 == 1


def _parts(data: bytes) -> list[bytes] | None:
    """The strings that the data is made of, each after its length; None if they do not fill it exactly."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if at + 4 > len(data) or end > len(data):
            return None
        found.append(data[at + 4 : end])
        at = end
    return found


def _shown(comment: str) -> str:
    return "".join(character for character in comment.strip() if character.isprintable())[:NAME_LENGTH]
