"""What the object store's errors mean for the job.

Only "not there" is an answer; it stays a FileNotFoundError for the caller to judge. Everything else means the store
could not be used, which says nothing about any archive.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

from codehub.job.exit_codes import ExitCode
from codehub.job.failure import JobFailed

_NO_SPACE_TEXTS = (f"os error {errno.ENOSPC}", f"os error {errno.EDQUOT}")


@contextmanager
def translated(doing: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise JobFailed(ExitCode.UNREACHABLE, f"{doing}: the bucket does not exist") from error
        raise
    except AlreadyExistsError:
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        why = f"{doing}: the object store refuses these credentials; correct them ({first_line(error)})"
        raise JobFailed(ExitCode.ACCESS_DENIED, why) from error
    except (BaseError, OSError) as error:
        if is_full(error):
            raise JobFailed(ExitCode.DISK_FULL, f"{doing}: no space left for archives") from error
        raise JobFailed(ExitCode.UNREACHABLE, f"{doing}: {first_line(error)}", transient=True) from error


def is_full(error: BaseException) -> bool:
    """The place where the store keeps its objects has no room left: a definite answer."""
    full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return full or any(text in str(error) for text in _NO_SPACE_TEXTS)


def first_line(error: BaseException) -> str:
    """Obstore appends pages of debugging detail."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
