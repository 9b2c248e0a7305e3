"""What people find in the workspace image, tried inside a container that is confined as a workspace is."""

import re
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from codehub.adapters.docker import DockerRuntime, DockerSite, Engine
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec
from tests.certificates import Authority
from tests.docker_engine import ROOT, WORKSPACE_IMAGE, DockerTestbed, sweep
from tests.eventually import eventually
from tests.tls_in_workspace import TRUSTED, UNTRUSTED, put_tls_site, tls_script

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PATIENCE = 120.0


@dataclass
class Inside:
    """A workspace's home, and commands in it."""

    runtime: DockerRuntime
    spec: ContainerSpec

    async def run(self, script: str, *, sudo: bool = False) -> str:
        code, said = await self.fails(script, sudo=sudo)
        assert code == 0, said
        return said

    async def fails(self, script: str, *, sudo: bool = False) -> tuple[int, str]:
        spec = replace(self.spec, sudo=sudo)
        return await self.runtime.run_inside(spec, ["bash", "-c", f"set -e\n{script}"], PATIENCE)


async def inside_of(testbed: DockerTestbed, engine: Engine, site: DockerSite) -> Inside:
    runtime, key = testbed.runtime(engine, site), uuid4()
    await runtime.create_volume(key, volume_name(key, 1))
    return Inside(runtime, ContainerSpec(key, volume_name(key, 1), ""))


@pytest.fixture
async def inside(docker_testbed: DockerTestbed, engine: Engine) -> AsyncIterator[Inside]:
    site = docker_testbed.site(WORKSPACE_IMAGE)
    inside = await inside_of(docker_testbed, engine, site)
    yield inside
    await inside.runtime.close()
    await sweep(engine, site.install_id)


PACKAGE = """\
mkdir -p package/hello && cd package
echo 'def main(): print("hello from a package")' > hello/__init__.py
cat > setup.py <<'END'
from setuptools import Extension, setup
setup(name="hello", version="1", packages=["hello"], ext_modules=[Extension("hello.fast", ["fast.c"])],
      entry_points={"console_scripts": ["say-hello = hello:main"]})
END
cat > fast.c <<'END'
#include <Python.h>
static struct PyModuleDef fast = {PyModuleDef_HEAD_INIT, "fast", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&fast); }
END
"""
"""A Python package with a part in C, to be built from source without any index."""


async def test_pip_installs_into_the_home_and_it_is_there_at_the_next_start(inside: Inside) -> None:
    await inside.run(f"{PACKAGE} pip install --no-index --no-build-isolation . >/dev/null")
    await inside.run("python3 -c 'import hello.fast'")
    assert await inside.run("say-hello; command -v say-hello") == (
        "hello from a package\n/home/coder/.local/bin/say-hello\n"
    )
    assert "/home/coder/.local/bin" in await inside.run("bash -lc 'echo $PATH'")


async def test_a_virtual_environment_has_pip_and_what_is_installed_in_it_alone(inside: Inside) -> None:
    await inside.run("python3 -m venv apart && apart/bin/pip --version")
    wheel = f"{PACKAGE} pip wheel --no-index --no-build-isolation --wheel-dir ~/wheels . >/dev/null"
    await inside.run(f"({wheel}); . apart/bin/activate; pip install --no-index ~/wheels/*.whl; say-hello")
    code, _ = await inside.fails("python3 -c 'import hello'")
    assert code == 1


async def test_c_and_c_plus_plus_are_compiled(inside: Inside) -> None:
    await inside.run("""echo 'int main(void) { return 42; }' > a.c && gcc -O2 -flto -o a a.c; ./a || test $? = 42""")
    said = await inside.run(
        """printf '#include <iostream>\\nint main() { std::cout << "plus"; }' > b.cc && g++ -o b b.cc && ./b"""
    )
    assert said == "plus"


async def test_npm_installs_for_everything_without_root(inside: Inside) -> None:
    await inside.run(
        "mkdir app && cd app && npm init -y >/dev/null && test -e package.json && node -v && npx --version"
    )
    await inside.run(
        """mkdir tool && cd tool && printf '#!/usr/bin/env node\\nconsole.log("a tool")' > tool.js
        echo '{"name": "tool", "version": "1.0.0", "bin": {"a-tool": "tool.js"}}' > package.json
        npm install --global --offline --no-audit "$(npm pack --silent)" >/dev/null"""
    )
    assert await inside.run("a-tool; command -v a-tool") == "a tool\n/home/coder/.local/bin/a-tool\n"


async def test_the_programs_of_a_terminal_are_there(inside: Inside) -> None:
    await inside.run(
        "git lfs version; for program in ssh rsync rg jq less vim nano curl make; do command -v $program; done"
    )
    assert "list directory contents" in await inside.run("man ls | cat")
    assert "GNU Bourne-Again SHell" in await inside.run("man bash | head -n 5")
    assert "archiv" in await inside.run("man -k '^tar$'")


async def test_korean_is_a_language_of_the_terminal(inside: Inside) -> None:
    assert {"ko_KR.utf8", "en_US.utf8", "C.utf8"} <= set((await inside.run("locale -a")).split())
    said = await inside.run(
        "export LANG=ko_KR.UTF-8; touch 한글.txt; ls *.txt; word=한글; echo ${#word}; date -d 2026-11-16"
    )
    assert said.splitlines()[:2] == ["한글.txt", "2"]
    assert "월" in said.splitlines()[2]


async def test_without_sudo_in_the_template_nobody_becomes_root(inside: Inside) -> None:
    code, said = await inside.fails("sudo -n id -u")
    assert code == 1
    assert '"no new privileges" flag is set' in said
    assert await inside.run("grep -E '^(CapBnd|CapPrm|NoNewPrivs)' /proc/self/status | cut -f2 | tr '\\n' ' '") == (
        "0000000000000000 0000000000000000 1 "
    )
    assert "Read-only file system" in (await inside.fails("touch /usr/local/bin/mine"))[1]


DEBIAN_PACKAGE = """\
mkdir -p made/DEBIAN made/usr/bin
printf '#!/bin/sh\\necho it works' > made/usr/bin/made && chmod 755 made/usr/bin/made
cat > made/DEBIAN/control <<'END'
Package: made
Version: 1
Architecture: all
Maintainer: me <me@example.com>
Description: made here
END
dpkg-deb --build --root-owner-group made >/dev/null
"""


async def test_with_sudo_in_the_template_packages_can_be_installed(inside: Inside) -> None:
    await inside.run(DEBIAN_PACKAGE)
    script = """test "$(id -u)" = 1000 && test "$(sudo id -u)" = 0
    sudo apt-get install -y -qq ./made.deb >/dev/null 2>&1 && made
    sudo useradd --create-home somebody && sudo -u somebody id -un"""
    assert await inside.run(script, sudo=True) == "it works\nsomebody\n"


async def test_root_inside_is_not_root_of_the_machine(inside: Inside) -> None:
    """What sudo gives is the engine's own profile and fewer capabilities than the engine's own set."""
    tries = """sudo mount -t tmpfs none /mnt 2>/dev/null && echo MOUNTED
    sudo mknod /tmp/disk b 8 0 2>/dev/null && echo DEVICE
    sudo sh -c 'echo 1 > /proc/sys/kernel/sysrq' 2>/dev/null && echo KERNEL
    sudo touch /usr/local/lib/codehub-agent/mine 2>/dev/null && echo AGENT
    sudo ip link add dummy0 type dummy 2>/dev/null && echo NETWORK
    sudo python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)' 2>/dev/null && echo PACKETS
    true"""
    assert await inside.run(tries, sudo=True) == ""


@pytest.mark.parametrize("given", [True, False])
async def test_an_authority_of_the_operator_is_trusted_by_every_program(
    docker_testbed: DockerTestbed, engine: Engine, given: bool
) -> None:
    authority = Authority()
    site = replace(docker_testbed.site(WORKSPACE_IMAGE), ca_bundle=authority.pem if given else b"")
    inside = await inside_of(docker_testbed, engine, site)
    try:
        await inside.run("true")  # from its first use on the home is its user's
        home = subprocess.run(
            ["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", inside.spec.volume],
            capture_output=True,
            text=True,
            check=True,
        )
        put_tls_site(Path(home.stdout.strip()), authority)
        said = await inside.run(tls_script("node"))
        assert said.splitlines() == (TRUSTED if given else UNTRUSTED)
        if given:
            public = "/etc/ssl/certs/ca-certificates.crt"
            counted = await inside.run(f"grep -c BEGIN {public}; grep -c BEGIN $SSL_CERT_FILE")
            ours, both = map(int, counted.split())
            assert both == ours + 1
    finally:
        await inside.runtime.close()
        await sweep(engine, site.install_id)


async def test_the_image_in_the_documentation_builds_and_starts(
    docker_testbed: DockerTestbed, engine: Engine, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "workspace-image.md").read_text()
    found = re.search(r"```dockerfile\n(FROM codehub-workspace:latest\n.*?)```", text, re.DOTALL)
    assert found is not None
    name = f"codehub-test-own-image:{uuid4().hex[:8]}"
    dockerfile = found[1].replace("codehub-workspace:latest", WORKSPACE_IMAGE)
    (tmp_path / "Dockerfile").write_text(dockerfile)
    subprocess.run(["docker", "build", "--quiet", "--tag", name, str(tmp_path)], check=True, capture_output=True)
    site = docker_testbed.site(name)
    inside = await inside_of(docker_testbed, engine, site)
    try:
        assert "PostgreSQL" in await inside.run("psql --version; id -u")
        await inside.runtime.start_container(inside.spec)
        await eventually(lambda: inside.runtime.answers(inside.spec.workspace_id))
    finally:
        await inside.runtime.close()
        await sweep(engine, site.install_id)
        subprocess.run(["docker", "image", "rm", name], check=True, capture_output=True)
