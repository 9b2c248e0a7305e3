"""Directories and the archive store, as the settings name them."""

import os
from pathlib import Path

from codehub.adapters.object_store.archives import ObjectArchives
from codehub.domain.errors import BackendError
from codehub.settings import Settings


def open_archives(settings: Settings) -> ObjectArchives:
    local = settings.archive_url is None
    if local:
        private_data_dir(settings)
    return ObjectArchives(archive_url(settings), settings.archive_prefix, make_directory=local)


def data_dir(settings: Settings) -> Path:
    return settings.data_dir.expanduser().absolute()


def private_data_dir(settings: Settings) -> Path:
    """The data directory, created for its owner alone if it is not there."""
    directory = data_dir(settings)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(f"the data directory {directory} cannot be made: {error.strerror}") from error
    return directory


def archive_url(settings: Settings) -> str:
    return settings.archive_url or (data_dir(settings) / "archives").as_uri()


def ide_cache_dir(settings: Settings) -> Path:
    if settings.ide_cache_dir is not None:
        return settings.ide_cache_dir.absolute()
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (common if common.is_absolute() else Path("~/.cache").expanduser()) / "codehub"
