"""What a stranger's machine needs: pinned versions, and nothing that is true only of ours."""

import re
import runpy
import subprocess
import sys
import tomllib

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
