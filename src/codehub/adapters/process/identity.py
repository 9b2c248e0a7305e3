"""Which directory this is: a random name in a file that is made with the tree and never again.

A disk that is not mounted leaves an empty directory in its place; what is made there anew is another world.
"""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from codehub.domain.errors import BackendError, Unreachable
from codehub.job.volume import sync_file

_FILE = "identity"


class Identity:
    def __init__(self, root: Path, install_id: str) -> None:
        self._path = root / _FILE
        self._install_id = install_id
        if not self._path.exists():
            try:
                self._make()
            except OSError as error:
                raise BackendError(f"{self._path} cannot be made: {error.strerror}") from error

    def read(self) -> str:
        try:
            return f"process {self._path.read_text().strip()} {self._install_id}"
        except OSError as error:
            message = f"{self._path} cannot be read ({error.strerror}): is the disk mounted?"
            raise Unreachable(message) from error

    def _make(self) -> None:
        """Whoever is first, of several processes that begin at once: it is there whole or not at all."""
        fresh = self._path.with_name(f"{_FILE}.{uuid4().hex}")
        try:
            fresh.write_text(uuid4().hex + "\n")
            with suppress(FileExistsError):
                os.link(fresh, self._path)
        finally:
            fresh.unlink(missing_ok=True)
        sync_file(self._path, up_to=self._path.parent)
