"""How the commands of an operator find the installation that `codehub up` runs on this machine: a private file in its
data directory, there while it runs.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codehub.settings import Settings

FILE = "running.json"


@contextmanager
def announced(directory: Path, addresses: Mapping[str, str]) -> Iterator[None]:
    """It holds the databases' passwords, as the directories beside it do: its owner's alone."""
    path, draft = directory / FILE, directory / f".{FILE}.new"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"pid": os.getpid(), **addresses}, file)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def operators_settings() -> "Settings":
    """From the environment; where that names no database, those of a `codehub up` that runs here."""
    from codehub.settings import Settings, SettingsError, load_settings

    if os.environ.get("CODEHUB_DATABASE_URL"):
        return load_settings()
    configured = os.environ.get("CODEHUB_DATA_DIR") or Settings.model_fields["data_dir"].default
    directory = Path(configured).expanduser().absolute()
    found = of_running(directory)
    if found is None:
        raise SettingsError(
            f"no database is named (CODEHUB_DATABASE_URL), and no `codehub up` runs on {directory} "
            "(CODEHUB_DATA_DIR names another directory)"
        )
    return found


def of_running(directory: Path) -> "Settings | None":
    """Those of the `codehub up` that runs on this data directory."""
    from codehub.settings import load_settings

    found = _read(directory / FILE)
    if found is None:
        return None
    given = {
        name: found[name]
        for name in ("database_url", "redis_url", "api_address", "proxy_address", "runtime")
        if name in found
    }
    return load_settings(**given, data_dir=directory)


def _read(path: Path) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if Path("/proc", str(found.get("pid"))).exists() else None
