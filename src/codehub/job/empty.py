"""The archive of a home that never was: what a workspace sleeps on before its first start.

It has no member for the home itself, so restoring it leaves the new volume's owner and mode as they were made.
"""

import hashlib
from datetime import datetime

from codehub.job.compress import compressed
from codehub.job.meta import Meta
from codehub.job.tar_format import END_OF_ARCHIVE


def empty_archive(created_at: datetime) -> tuple[bytes, Meta]:
    """The object, and the `.meta` to write beside it once it is stored."""
    data = b"".join(compressed([END_OF_ARCHIVE]))
    sha256 = hashlib.sha256(data).hexdigest()
    return data, Meta(sha256, len(data), files=0, content_bytes=0, created_at=created_at.isoformat())
