"""How much there is to archive, before the first byte is sent.

S3 takes at most 10,000 parts, so the part size must be right from the start: `most_bytes` is never too low for a
volume at rest. `likely_bytes` counts a file with several names once and is what people see as the total.
"""

import os
import stat
from dataclasses import dataclass

from codehub.job.failure import from_os_error, show
from codehub.job.ignore import Ignore
from codehub.job.layout import home_entries, listed
from codehub.job.tar_format import BLOCK
from codehub.job.volume import OPEN_DIRECTORY

MEMBER_OVERHEAD = 4096
INLINE = 4096


@dataclass
class Estimate:
    likely_bytes: int = 0
    most_bytes: int = 0

    def add(self, status: os.stat_result) -> None:
        self.likely_bytes += BLOCK
        self.most_bytes += MEMBER_OVERHEAD
        if stat.S_ISREG(status.st_mode):
            allocated = status.st_blocks * 512 or INLINE
            self.likely_bytes += min(status.st_size, allocated) // max(1, status.st_nlink)
            # A compressing filesystem allocates less than it holds, though hardly eight times less than zstd needs.
            self.most_bytes += min(status.st_size, allocated * 8)


def estimate(volume: int, ignore: Ignore) -> Estimate:
    found = Estimate()
    stack = [(os.dup(volume), b"", home_entries(volume))]
    while stack:
        descriptor, path, names = stack[-1]
        if not names:
            os.close(descriptor)
            stack.pop()
            continue
        name = names.pop()
        child = path + b"/" + name if path else name
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            is_directory = stat.S_ISDIR(status.st_mode)
            if ignore.matches(child, is_directory=is_directory):
                continue
            found.add(status)
            if is_directory:
                inner = os.open(name, OPEN_DIRECTORY, dir_fd=descriptor)
                stack.append((inner, child, listed(inner)))
        except OSError as error:
            raise from_os_error(error, f"cannot read {show(child)}") from error
    return found
