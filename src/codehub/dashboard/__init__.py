"""The dashboard: plain ES modules in `static/`, which know the rest of CodeHub only through the public API.

They are read once and served below a version that is a hash of their content. Modules import each other by relative
names, so one version in the folder's address versions all of them: a browser may keep each for ever, and an upgrade is
a new address.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

INDEX = "index.html"
SERVED = (".css", ".js", ".svg")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The dashboard's one page, `index`, and its `files` by their names below `/assets/{version}/`."""

    version: str
    index: bytes
    files: Mapping[str, bytes]


@cache
def dashboard() -> Dashboard:
    static = files("codehub.dashboard") / "static"
    found = dict(sorted(_below(static, "")))
    index = found.pop(INDEX).decode()
    digest = hashlib.blake2s(index.encode(), digest_size=8)
    for name, content in found.items():
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    version = digest.hexdigest()
    # All at once: else a browser would learn of each module only from the one that imports it.
    modules = "\n".join(
        f'<link rel="modulepreload" href="/assets/{version}/{name}">' for name in found if name.endswith(".js")
    )
    page = index.replace("{version}", version).replace("<!-- modules -->", modules)
    return Dashboard(version, page.encode(), MappingProxyType(found))


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        elif entry.name == INDEX or entry.name.endswith(SERVED):
            yield f"{prefix}{entry.name}", entry.read_bytes()
