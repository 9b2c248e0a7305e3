"""Every way in which the IDE does not get installed, as lines that say what to do about it."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_CHOOSE = "choose another directory with CODEHUB_IDE_CACHE_DIR"
_ADVICE = {
    errno.EACCES: f"run as the user it belongs to, or {_CHOOSE}",
    errno.EPERM: f"run as the user it belongs to, or {_CHOOSE}",
    errno.EROFS: _CHOOSE,
    errno.ENOSPC: f"free some space (about 1 GB while it is installed, 300 MB after), or {_CHOOSE}",
    errno.EDQUOT: f"free some of your quota, or {_CHOOSE}",
    errno.ENOENT: _CHOOSE,
    errno.ENOTDIR: _CHOOSE,
    errno.EEXIST: f"a file stands where a directory is needed; {_CHOOSE}",
}
_NETWORK = (
    "Is npm's registry reachable from here? A mirror, a proxy or a certificate authority is named as npm knows them: "
    "in ~/.npmrc, or by npm_config_registry, HTTPS_PROXY, NODE_EXTRA_CA_CERTS."
)
_OTHERWISE = "Then start again; or set CODEHUB_IDE_COMMAND to run another IDE."


class IdeError(Exception):
    """The message is meant for the person who started us; in its middle is the end of the failed program's own
    output."""


@contextmanager
def explained(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        what = f"the IDE cannot be installed: {error.filename or cache}: {error.strerror or error}"
        raise IdeError(f"{what}; {advice}" if advice else what) from error


def not_fetched(what: str, ending: str, words: Sequence[str]) -> IdeError:
    return IdeError("\n".join([f"the IDE cannot be installed: {what} {ending}", *words, _NETWORK, _OTHERWISE]))


def not_working(what: str, ending: str, words: Sequence[str]) -> IdeError:
    return IdeError("\n".join([f"the IDE was installed but {what} {ending}; it is thrown away", *words, _OTHERWISE]))


def not_genuine(name: str) -> IdeError:
    return IdeError(
        f"the IDE is not installed: the {name} that npm fetched is not the one that was published (its hash differs). "
        "Ask whoever runs the registry or mirror that npm is configured with. " + _OTHERWISE
    )
