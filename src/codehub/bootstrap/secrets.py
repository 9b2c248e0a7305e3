"""The keyring of secrets with the keys that the settings name, or with those in the data directory.

Only `codehub up` makes a key by itself. A deployment of several processes must be given one: each would make its own,
and none could open what another has encrypted.
"""

import stat
from pathlib import Path

from codehub.adapters.encryption import (
    KEY_FILE,
    AesKeyring,
    BadKeys,
    ensure_key_file,
    new_key,
    parse_keys,
    read_key_file,
)
from codehub.bootstrap.runtimes import data_dir
from codehub.settings import Settings, SettingsError

__all__ = ["new_key"]


def open_keyring(settings: Settings) -> AesKeyring:
    """SettingsError if the keys that are named cannot be read. Without any, a keyring that seals nothing."""
    if settings.secrets_keys is not None:
        return AesKeyring(parse_keys(settings.secrets_keys.get_secret_value()))
    path = key_file(settings)
    if path is None:
        return AesKeyring([])
    try:
        return AesKeyring(read_key_file(path))
    except BadKeys as error:
        raise SettingsError(
            f"the keys of people's secrets: {error}. Put the file back as it was; with another key, what people keep "
            "cannot be opened"
        ) from None


def key_file(settings: Settings) -> Path | None:
    """The file that the keys are read from; None if they are in the settings, or nowhere."""
    if settings.secrets_keys is not None:
        return None
    if settings.secrets_keys_file is not None:
        return settings.secrets_keys_file
    path = data_dir(settings) / KEY_FILE
    try:
        return path if path.exists() else None
    except PermissionError:  # the directory is another account's, and so not ours
        return None


def is_open_to_others(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def ensure_key(settings: Settings) -> None:
    """Makes a key in the data directory, unless the settings name one or it is there."""
    if settings.secrets_keys is None and settings.secrets_keys_file is None:
        ensure_key_file(data_dir(settings))
