"""`.meta`, the small object beside an archive that makes it believed.

It is written last, after the archive was read back and found equal. An object without it is nobody's archive.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime

from codehub.job.failure import corrupted

FORMAT = "codehub-home/1 pax tar, zstd"
SUFFIX = ".meta"


@dataclass(frozen=True)
class Meta:
    sha256: str
    bytes: int
    """Length of the object."""
    files: int
    """Members that are no directories."""
    content_bytes: int
    """What restoring it costs, in the measure of restore's `--max-bytes`."""
    created_at: str
    format: str = FORMAT


def encode_meta(meta: Meta) -> bytes:
    return json.dumps(asdict(meta), indent=1).encode() + b"\n"


def decode_meta(data: bytes) -> Meta:
    unreadable = corrupted("the archive's .meta cannot be read", evidence=hashlib.sha256(data).hexdigest())
    try:
        values = json.loads(data)
        meta = Meta(**{name: values[name] for name in Meta.__dataclass_fields__})
        numbers = (meta.bytes, meta.files, meta.content_bytes)
        well_formed = len(bytes.fromhex(meta.sha256)) == 32 and all(type(n) is int and n >= 0 for n in numbers)
        datetime.fromisoformat(meta.created_at)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable from error
    if not well_formed:
        raise unreadable
    if meta.format != FORMAT:
        raise corrupted(f"the archive's format is unknown: {str(meta.format)[:80]}")
    return meta
