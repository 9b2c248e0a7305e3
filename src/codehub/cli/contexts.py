"""Where a person's client talks to, and as whom: named contexts in one private file, or the environment.

`CODEHUB_URL` and `CODEHUB_TOKEN` win over the file, so that a script needs none; `CODEHUB_CONTEXT` names another
context for one command.
"""

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from codehub.cli.output import USAGE, ClientFailed

DEFAULT_URL = "http://localhost:8000"


@dataclass(frozen=True, slots=True)
class Context:
    url: str
    username: str = ""
    token: str = ""
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts in the file. `current` names the one in use."""

    known: Mapping[str, Context]
    current: str = ""

    def named(self, name: str) -> Context:
        if name not in self.known:
            known = ", ".join(sorted(self.known)) or "none yet; sign in with `codehub login`"
            raise ClientFailed(f"There is no context {name!r} (known: {known}).", USAGE)
        return self.known[name]

    def with_context(self, name: str, context: Context) -> "Contexts":
        return Contexts({**self.known, name: context}, name)

    def without(self, name: str) -> "Contexts":
        left = {known: context for known, context in self.known.items() if known != name}
        return Contexts(left, self.current if self.current in left else "")


def config_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.environ.get("CODEHUB_CONFIG") or Path(base) / "codehub" / "contexts.json").expanduser()


def load() -> Contexts:
    path = config_file()
    try:
        found = json.loads(path.read_text())
        known = {name: Context(**fields) for name, fields in found["contexts"].items()}
        words = [found["current"], *(word for context in known.values() for word in asdict(context).values())]
        if not all(isinstance(word, str) for word in words):
            raise TypeError("a word is expected where there is none")
        return Contexts(known, found["current"])
    except FileNotFoundError:
        return Contexts({})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{path} cannot be read ({type(error).__name__}: {error}). Mend it, or remove it and sign in again."
        raise ClientFailed(why, USAGE) from error


def save(contexts: Contexts) -> None:
    """Writes the file atomically, for its owner alone: it holds tokens."""
    path = config_file()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    shown = {"current": contexts.current, "contexts": {name: asdict(one) for name, one in contexts.known.items()}}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(shown, indent=2) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise ClientFailed(f"{path} cannot be written: {error.strerror}.") from error


def in_use() -> Context:
    """The context of the environment, else the current one. A token without an address is for the address in use."""
    url, token = os.environ.get("CODEHUB_URL"), os.environ.get("CODEHUB_TOKEN")
    if url and token:
        return Context(checked_url(url), token=token)
    contexts = load()
    name = os.environ.get("CODEHUB_CONTEXT") or contexts.current
    chosen = contexts.named(name) if name else Context(DEFAULT_URL)
    if token:
        return Context(chosen.url, token=token)
    if not url or chosen.url == checked_url(url):
        return chosen
    return next((one for one in contexts.known.values() if one.url == checked_url(url)), Context(checked_url(url)))


def checked_url(url: str) -> str:
    """The address without a slash at its end, so that two spellings are one. Without a scheme, https, except for this
    machine."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    parts = parts._replace(scheme=parts.scheme or ("http" if is_loopback(parts.hostname or "") else "https"))
    try:
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.username or parts.query or parts.fragment:
        raise ClientFailed(f"{url!r} is no address of a CodeHub. Example: https://codehub.example.com", USAGE)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_unencrypted(url: str) -> bool:
    """Whether requests to this address travel unencrypted over a network."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
