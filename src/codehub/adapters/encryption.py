"""Secrets sealed with AES-256-GCM, the keys they are sealed with, and new SSH keys.

A sealed value is one byte for the format, a nonce and the encrypted text with its tag. Owner, kind, name and public
part go into the tag, so that a row which was moved or changed in the database does not open. A key is 32 random bytes
in base64; its id is a hash of it. Keys come from the settings, from a file, or from the data directory.
"""

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from codehub.domain.errors import Conflict
from codehub.domain.secrets import SecretName
from codehub.job.filesystem import sync
from codehub.ports.secrets import CannotOpen, Sealed, SshKeyPair, StoredSecret

KEY_FILE = "secrets.key"
KEY_BYTES = 32
HOW_TO_MAKE_A_KEY = (
    "This installation has no key to encrypt secrets with. An operator makes one with `codehub admin secrets new-key` "
    "and gives it as CODEHUB_SECRETS_KEYS to `codehub api` and `codehub coordinator` alike."
)
_FORMAT = b"\x01"
_NONCE_BYTES = 12
_DRAFT = re.compile(rf"\.{re.escape(KEY_FILE)}\.[0-9a-f]{{32}}")
_DRAFT_SECONDS = 60.0
"""How long a process may take to write a key file before others remove its draft."""


class BadKeys(ValueError):
    """A text that should hold keys does not. The message does not show it."""


class AesKeyring:
    """Seals with the first of its keys and opens with any. Without a key it opens nothing, and seals nothing."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {key_id(key): AESGCM(key) for key in keys}

    @property
    def key_ids(self) -> Sequence[str]:
        return list(self._keys)

    def seal(self, name: SecretName, public: str, value: str) -> Sealed:
        if not self._keys:
            raise Conflict(HOW_TO_MAKE_A_KEY, "no_secrets_key")
        sealing, cipher = next(iter(self._keys.items()))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return Sealed(sealing, _FORMAT + nonce + cipher.encrypt(nonce, value.encode(), _bound_to(name, public)))

    def open(self, secret: StoredSecret) -> str:
        cipher, data = self._keys.get(secret.sealed.key_id), secret.sealed.data
        if cipher is None:
            raise CannotOpen(f"the key {secret.sealed.key_id}, which it was encrypted with, is not here")
        nonce, encrypted = data[1 : 1 + _NONCE_BYTES], data[1 + _NONCE_BYTES :]
        try:
            if data[:1] != _FORMAT:
                raise InvalidTag
            return cipher.decrypt(nonce, encrypted, _bound_to(secret.name, secret.public)).decode()
        except (InvalidTag, ValueError):
            raise CannotOpen("it is damaged, or was not encrypted for this place") from None


def key_id(key: bytes) -> str:
    return hashlib.sha256(b"codehub secrets key\x00" + key).hexdigest()[:16]


def _bound_to(name: SecretName, public: str) -> bytes:
    return json.dumps([name.owner.kind, name.owner.id, name.kind, name.name, public]).encode()


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def parse_keys(text: str) -> list[bytes]:
    """The keys in a text, which commas, blanks or line ends part. Raises BadKeys."""
    found = [_parse_key(word, number) for number, word in enumerate(text.replace(",", " ").split(), 1)]
    if not found:
        raise BadKeys("there is no key in it")
    return found


def _parse_key(word: str, number: int) -> bytes:
    try:
        key = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise BadKeys(
            f"key number {number} is not {KEY_BYTES} bytes in base64; `codehub admin secrets new-key` makes one"
        )
    return key


def read_key_file(path: Path) -> list[bytes]:
    """The keys in a file, the first of which seals. Raises BadKeys, also if the file cannot be read."""
    try:
        return parse_keys(path.read_text("ascii"))
    except OSError as error:
        raise BadKeys(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadKeys(f"{path} holds no keys") from None
    except BadKeys as error:
        raise BadKeys(f"{path}: {error}") from None


def ensure_key_file(directory: Path) -> Path:
    """The key file of a data directory. It is made if it is not there, for its owner alone, and appears when it is
    whole; of several processes that begin at once, all get the one that came first. What a process that was killed left
    behind is removed."""
    path = directory / KEY_FILE
    if not path.exists():
        _make_key_file(path)
    _remove_drafts(path)
    return path


def _make_key_file(path: Path) -> None:
    draft = path.with_name(f".{KEY_FILE}.{uuid4().hex}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{new_key()}\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    except FileNotFoundError:  # another process took the draft for one that was left behind
        if not path.exists():
            raise
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def _remove_drafts(path: Path) -> None:
    """Removes drafts that nobody writes any more: other names of the key file, and what is older than a minute."""
    drafts = [one for one in path.parent.glob(f".{KEY_FILE}.*") if _DRAFT.fullmatch(one.name)]
    for draft in drafts:
        with suppress(FileNotFoundError):  # whoever made it, or another process, was quicker
            if draft.samefile(path) or draft.lstat().st_mtime < time.time() - _DRAFT_SECONDS:
                draft.unlink()
    if drafts:
        sync(path.parent)


def new_ssh_key(comment: str) -> SshKeyPair:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return SshKeyPair(private.decode(), f"{public.decode()} {comment}")
