"""Where archives are (`file:///dir` or `s3://bucket`), how long to wait for the store, and what its errors mean.

Endpoint and credentials come from the environment (CODEHUB_S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, …), never from arguments, which anyone on the machine could read. Of the errors only "not there" is an
answer and stays a FileNotFoundError; every other one means that the store could not be used, and says nothing about any
archive. The job and the adapters share this module.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from codehub.job.errors import ExitCode, JobFailed

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config


@dataclass(frozen=True)
class StoreTimeouts:
    """How long to wait for the store. `request`: for a whole answer, however large; `silence`: while nothing comes;
    None sets no limit of its own."""

    request: timedelta
    silence: timedelta | None
    connect: timedelta | None
    retries: int
    retrying: timedelta
    pause: timedelta | None = None
    longest_pause: timedelta = timedelta(seconds=2)


def parse_store(url: str) -> tuple[Path | None, str]:
    """The directory, or None and the bucket's name."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return Path(unquote(parts.path)), ""
    if parts.scheme == "s3" and parts.netloc and parts.path in {"", "/"}:
        return None, parts.netloc
    raise ValueError("the archive store must be file:///directory or s3://bucket")


def with_read_timeout(store: S3Store, silence: timedelta) -> S3Store:
    """The same store with another limit for silence. For uploads: a store answers when it has all of a part, so it may
    be silent while the part is sent."""
    waiting: ClientConfig = {**(store.client_options or {}), "read_timeout": silence}
    return S3Store(config=store.config, client_options=waiting, retry_config=store.retry_config)


def open_bucket(bucket: str, timeouts: StoreTimeouts) -> S3Store:
    endpoint = os.environ.get("CODEHUB_S3_ENDPOINT")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    address: S3Config = {"endpoint": endpoint} if endpoint else {}
    waiting: ClientConfig = {"timeout": timeouts.request}
    if timeouts.silence is not None:
        waiting["read_timeout"] = timeouts.silence
    if timeouts.connect is not None:
        waiting["connect_timeout"] = timeouts.connect
    retries: RetryConfig = {"max_retries": timeouts.retries, "retry_timeout": timeouts.retrying}
    if timeouts.pause is not None:
        retries["backoff"] = {"init_backoff": timeouts.pause, "max_backoff": timeouts.longest_pause, "base": 2}
    return S3Store(
        bucket,
        config={"region": region, **address},
        client_options={"allow_http": (endpoint or "").startswith("http://"), **waiting},
        retry_config=retries,
    )


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
    """Whether the store has no room left for objects, which is a definite answer."""
    full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return full or any(text in str(error) for text in _NO_SPACE_TEXTS)


def first_line(error: BaseException) -> str:
    """The error without the pages of debugging detail that obstore appends."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
