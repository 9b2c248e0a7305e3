"""Installs code-server, once per version: fetch, check, unpack, install its packages, compile, slim, try, put in place.

Not `npm install code-server`: that ignores the lock files in the package and takes whatever is newest. Here npm
fetches the package, and installs inside it what its own lock files say; no package's script is run. Native modules are
tried by loading them, and those that do not load are compiled where there is a compiler. What nobody here runs (other
platforms, sources, Copilot's agent host), more than half of it, is removed.
"""

import asyncio
import base64
import errno
import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.ide.cache import IdeCache, InstalledIde, Progress, ProgressEstimate, let_everybody_read
from codehub.adapters.ide.toolchain import IdeError, Programs, Toolchain, node_platform, of_the_wheel

MODULES = {
    "@vscode/spdlog": "the IDE's own log files are not written",
    "@vscode/native-watchdog": "an extension host may outlive a crashed IDE until its workspace stops",
    "node-pty": "terminals do not work",
    "@parcel/watcher": "files changed outside the editor are not noticed",
}
"""name: what is missed without it"""

_COMPILERS = ("g++", "c++", "clang++")
_MODULES = Path("lib", "vscode", "node_modules")
_PER_PLATFORM = (
    _MODULES / "@vscode" / "ripgrep-universal" / "bin",
    _MODULES / "node-pty" / "prebuilds",
    Path("node_modules", "argon2", "prebuilds"),
)
_UNUSED = (
    "src",
    "lib/vscode/node_modules/@github",
    "lib/vscode/node_modules/@microsoft/mxc-sdk",
    "lib/vscode/node_modules/@vscode/windows-*",
    "lib/vscode/node_modules/@vscode/spdlog/deps",
    "lib/vscode/node_modules/@vscode/spdlog/src",
    "lib/vscode/node_modules/@vscode/sqlite3/deps",
    "lib/vscode/node_modules/@vscode/sqlite3/src",
    "lib/vscode/node_modules/node-pty/deps",
    "lib/vscode/node_modules/node-pty/src",
    "lib/vscode/node_modules/node-pty/third_party",
    "lib/vscode/node_modules/**/build/Release/obj*",
    "**/*.map",
)
EXTENSION = Path(__file__).with_name("extension")
SETUP = Path(__file__).with_name("setup")
_WORKBENCH = Path("lib", "vscode", "out", "vs", "code", "browser", "workbench", "workbench.html")
_SCRIPT = '<script type="module" src="_codehub/editor.js"></script>'
"""Beside the page's own address, which is the front door's to answer."""

_RECIPE = 2
"""Raised when the same version is to be installed in another way."""

_TOTAL_SECONDS = 45.0
_VSCODE = Path("lib", "vscode")
_AS_LOCKED = (
    "install",
    *("--no-save", "--package-lock", "--install-strategy=hoisted", "--omit=dev", "--include=optional"),
    *("--ignore-scripts", "--no-bin-links", "--no-global", "--no-workspaces"),
)
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


async def make_native_modules(programs: Programs, modules: Path) -> tuple[str, ...]:
    """Compiles the native modules that do not load, and returns notes on what could not be made."""
    compiler = find_compiler(os.environ)
    notes = []
    for name, missed in MODULES.items():
        if await _loads(programs, modules / name):
            continue
        if compiler is None:
            notes.append(f"{name} is not there, {missed}: install a C++ compiler and make, then install the IDE again")
        elif why := await _compile(programs, modules / name, compiler):
            notes.append(f"{name} could not be compiled, {missed}: {why}")
    return tuple(notes)


def find_compiler(environ: Mapping[str, str]) -> str | None:
    if shutil.which("make", path=environ.get("PATH")) is None:
        return None
    wanted = [environ["CXX"]] if environ.get("CXX") else _COMPILERS
    return next((name for name in wanted if shutil.which(name.split()[0], path=environ.get("PATH"))), None)


async def _loads(programs: Programs, module: Path) -> bool:
    return (await programs.node(module, "-e", "require(process.argv[1])", module)).code == 0


async def _compile(programs: Programs, module: Path, compiler: str) -> str:
    """Compiles one module. Empty if it loads now, else why not."""
    given = {
        "CXX": compiler,
        # A module's build file asks `node` where its headers are, and this machine may have no other.
        "PATH": f"{programs.tools.node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # By variable, because node-gyp lets variables win over its own options.
        "npm_config_nodedir": str(programs.tools.root),
        "npm_config_devdir": str(programs.scratch / "node-gyp"),
        "npm_config_python": sys.executable,
    }
    ran = await programs.node(module, programs.tools.node_gyp, "rebuild", extra=given)
    if ran.code == 0 and await _loads(programs, module):
        return ""
    return next((word for word in ran.words if "error" in word.lower()), ran.ending)


def slim(package: Path, platform: str) -> None:
    for path in list(unneeded(package, platform)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # or gone with its directory


def unneeded(package: Path, platform: str) -> Iterator[Path]:
    for pattern in _UNUSED:
        yield from package.glob(pattern)
    for place in _PER_PLATFORM:
        here = package / place
        # A platform they do not know keeps all: then something was compiled, or nothing fits anyway.
        if (here / platform).is_dir():
            yield from (path for path in here.iterdir() if path.name != platform)


def add_companion(package: Path) -> None:
    """Puts what makes the editor know its workspace into VS Code: our extension among the built-in ones, and the front
    door's script into its page. Raises IdeError if that page is not what it was."""
    shutil.copytree(EXTENSION, package / _VSCODE / "extensions" / "codehub")
    page = package / _WORKBENCH
    head, mark, body = page.read_text().partition("<head>")
    if not mark:
        raise IdeError(f"{_WORKBENCH} has no head: this version of VS Code is not one that CodeHub knows")
    page.write_text(f"{head}{mark}\n\t\t{_SCRIPT}{body}")


def _companion_version() -> str:
    """Differs between two versions of the companion, so that each is installed as a whole."""
    found = hashlib.sha256(_SCRIPT.encode())
    for path in sorted((*EXTENSION.iterdir(), *SETUP.iterdir())):
        found.update(f"{path.name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:8]


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
    """Where code-server is once it is installed."""
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
    return f"{package.name}-{package.version}-node-{tools.version}-{node_platform()}-{_RECIPE}-{_companion_version()}"


class _Installation:
    def __init__(self, package: Package, programs: Programs, progress: Progress) -> None:
        self._wanted = package
        self._title = f"{package.name} {package.version}"
        self._programs = programs
        self._estimate = ProgressEstimate(progress, _TOTAL_SECONDS)
        self._built = programs.scratch / "built"
        self._package = self._built / "package"

    async def into(self, cache: IdeCache) -> None:
        self._built.mkdir(mode=0o700)
        async with self._estimate.step(f"Downloading {self._title}", 6):
            tarball = await self._fetch()
        async with self._estimate.step(f"Unpacking {self._title}", 3):
            await asyncio.to_thread(_unpack, tarball, self._built)
        async with self._estimate.step("Installing its packages", 10):
            for directory in (self._package, self._package / _VSCODE, self._package / _VSCODE / "extensions"):
                await self._install_packages(directory)
        async with self._estimate.step("Compiling what is not prebuilt", 22):
            notes = await make_native_modules(self._programs, self._package / _VSCODE / "node_modules")
        async with self._estimate.step("Removing what is not needed", 2):
            await asyncio.to_thread(slim, self._package, node_platform())
            await asyncio.to_thread(add_companion, self._package)
            await asyncio.to_thread(shutil.copytree, SETUP, self._built / "setup")
        async with self._estimate.step("Trying it once", 2):
            await self._try()
        await cache.put(self._built, _name(self._programs.tools, self._wanted), notes)
        self._estimate.finish(f"{self._title} is installed")

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


@contextmanager
def explained(cache: Path) -> Iterator[None]:
    """Turns the file system's errors inside this block into an IdeError that says what to do."""
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
