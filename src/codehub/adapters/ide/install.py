"""Installs code-server, once per version: fetch, check, unpack, install its packages, compile, slim, try, put in place.

Not `npm install code-server`: that ignores the lock files in the package and takes whatever is newest. Here npm
fetches the package, and installs inside it what its own lock files say; no package's script is run.
"""

import asyncio
import base64
import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.ide.cache import IdeCache, InstalledIde, let_everybody_read
from codehub.adapters.ide.failure import explained, not_fetched, not_genuine, not_working
from codehub.adapters.ide.native import make_native_modules
from codehub.adapters.ide.pace import Pace, Progress
from codehub.adapters.ide.programs import Programs
from codehub.adapters.ide.slim import slim
from codehub.adapters.ide.toolchain import Toolchain, node_platform, of_the_wheel

_RECIPE = 1
"""Raised when the same version is to be installed in another way."""

_TOTAL_SECONDS = 45.0
_VSCODE = Path("lib", "vscode")
_AS_LOCKED = (
    "install",
    *("--no-save", "--package-lock", "--install-strategy=hoisted", "--omit=dev", "--include=optional"),
    *("--ignore-scripts", "--no-bin-links", "--no-global", "--no-workspaces"),
)


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    sha512: str


CODE_SERVER = Package(
    "code-server",
    "4.139.1",
    "fUYvJVdz4ZoVJfakGiGWXFMpF8K1ObsrpGvX17ZxNpKOzdNHs7lANT670JTr4ZhA8DnWqyvvmFG/d3HV9Yy6ew==",
)


def code_server(cache_dir: Path, *, tools: Toolchain | None = None, package: Package = CODE_SERVER) -> InstalledIde:
    """Where it is once it is installed."""
    tools = tools or of_the_wheel()
    cache, name = IdeCache(cache_dir), _name(tools, package)
    return InstalledIde(package.version, tools.node, cache.place(name), cache.notes(name) or ())


def is_installed(ide: InstalledIde) -> bool:
    return IdeCache(ide.directory.parent).notes(ide.directory.name) is not None and ide.entry.is_file()


async def ensure_code_server(
    cache_dir: Path, progress: Progress, *, tools: Toolchain | None = None, package: Package = CODE_SERVER
) -> InstalledIde:
    tools = tools or of_the_wheel()
    with explained(cache_dir):
        found = code_server(cache_dir, tools=tools, package=package)
        if is_installed(found):
            await asyncio.to_thread(let_everybody_read, found.directory)  # an older one did not
            return found
        cache = IdeCache(cache_dir)
        async with cache.alone(progress) as lock:
            found = code_server(cache_dir, tools=tools, package=package)
            if not is_installed(found):  # else the one that we waited for has done it
                async with cache.building() as scratch:
                    await _Installation(package, Programs(tools, scratch, lock), progress).into(cache)
    return code_server(cache_dir, tools=tools, package=package)


def _name(tools: Toolchain, package: Package) -> str:
    return f"{package.name}-{package.version}-node-{tools.version}-{node_platform()}-{_RECIPE}"


class _Installation:
    def __init__(self, package: Package, programs: Programs, progress: Progress) -> None:
        self._wanted = package
        self._title = f"{package.name} {package.version}"
        self._programs = programs
        self._pace = Pace(progress, _TOTAL_SECONDS)
        self._built = programs.scratch / "built"
        self._package = self._built / "package"

    async def into(self, cache: IdeCache) -> None:
        self._built.mkdir(mode=0o700)
        async with self._pace.step(f"Downloading {self._title}", 6):
            tarball = await self._fetch()
        async with self._pace.step(f"Unpacking {self._title}", 3):
            await asyncio.to_thread(_unpack, tarball, self._built)
        async with self._pace.step("Installing its packages", 10):
            for directory in (self._package, self._package / _VSCODE, self._package / _VSCODE / "extensions"):
                await self._install_packages(directory)
        async with self._pace.step("Compiling what is not prebuilt", 22):
            notes = await make_native_modules(self._programs, self._package / _VSCODE / "node_modules")
        async with self._pace.step("Removing what is not needed", 2):
            await asyncio.to_thread(slim, self._package, node_platform())
        async with self._pace.step("Trying it once", 2):
            await self._try()
        await cache.put(self._built, _name(self._programs.tools, self._wanted), notes)
        self._pace.finish(f"{self._title} is installed")

    async def _fetch(self) -> Path:
        wanted, scratch = self._wanted, self._programs.scratch
        ran = await self._programs.npm(
            scratch, "pack", f"{wanted.name}@{wanted.version}", f"--pack-destination={scratch}", "--ignore-scripts"
        )
        tarball = scratch / f"{wanted.name}-{wanted.version}.tgz"
        if ran.code != 0 or not tarball.is_file():
            raise not_fetched(f"`npm pack {wanted.name}@{wanted.version}`", ran.ending, ran.words)
        if await asyncio.to_thread(_sha512, tarball) != wanted.sha512:
            raise not_genuine(self._title)
        return tarball

    async def _install_packages(self, directory: Path) -> None:
        ran = await self._programs.npm(directory, *_AS_LOCKED)
        if ran.code != 0:
            inside = directory.relative_to(self._built)
            raise not_fetched(f"`npm install` in {inside}", ran.ending, ran.words)
        tidy = directory / "postinstall.mjs"
        if tidy.is_file():
            await self._programs.node(directory, tidy)

    async def _try(self) -> None:
        ide = InstalledIde(self._wanted.version, self._programs.tools.node, self._built)
        await asyncio.to_thread(ide.configuration.touch)
        home = {"HOME": str(self._programs.scratch)}
        ran = await self._programs.node(
            self._package, ide.entry, "--config", ide.configuration, "--version", extra=home
        )
        if ran.code != 0 or not ran.words or not ran.words[-1].startswith(self._wanted.version):
            raise not_working("`code-server --version`", ran.ending, ran.words)


def _unpack(tarball: Path, target: Path) -> None:
    with tarfile.open(tarball) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(target)  # noqa: S202 - its hash is known
    tarball.unlink()


def _sha512(path: Path) -> str:
    with path.open("rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
