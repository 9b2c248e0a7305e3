"""CodeHub in containers, as the compose file runs it: coordinator, API and front door are containers of its image, on
one engine with the workspaces. One is made, worked in through that front door, archived and restored, and from inside
it nothing of the platform's is in reach.
"""

import shutil
import socket
from collections.abc import AsyncIterator

import pytest

from codehub.adapters.docker import DockerSite, Engine
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.domain.naming import INSTALL_LABEL
from tests.browser.end_to_end.browser_user import BrowserUser, runs, until
from tests.chromium import chromium
from tests.docker_engine import CODEHUB_IMAGE, WORKSPACE_IMAGE, DockerTestbed, sweep
from tests.system.compose_site import Composed, composed
from tests.system.docker_installation import DockerWorkspace, docker, new_desk
from tests.system.test_docker_isolation import listening

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

STORES = [("10.87.77.2", 5432), ("10.87.77.3", 6379), ("10.87.77.4", 9000)]


@pytest.fixture
async def site(docker_testbed: DockerTestbed, engine: Engine) -> AsyncIterator[Composed]:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not there")
    before = await installations(engine)
    try:
        with composed() as site:
            yield site
    finally:
        for install in await installations(engine) - before:
            await sweep(engine, install)
            network = f"codehub-{install[:12]}"
            await NetworkIsolation(engine, DockerSite(install, WORKSPACE_IMAGE, CODEHUB_IMAGE, network)).take_down()


async def installations(engine: Engine) -> set[str]:
    """Those that compose makes have the database's id for a name."""
    found = {container["Labels"][INSTALL_LABEL] for container in await engine.containers([INSTALL_LABEL])}
    found |= {volume["Labels"][INSTALL_LABEL] for volume in await engine.volumes([INSTALL_LABEL])}
    return {name for name in found if not name.startswith(("test-", "codehub-test-", "bench-"))}


async def test_a_workspace_through_the_front_door_of_a_codehub_in_containers(site: Composed) -> None:
    assert site.published() == "", "no port is published"
    ann = site.person()
    desk = await new_desk(ann, "composed", site.data)
    async with chromium() as browser, BrowserUser.at(browser, site) as user:
        await user.signs_in(ann)
        tab = await user.opens(desk.url)
        await tab.open_terminal()
        await runs(tab, "echo the answer is $((6 * 7)) > from-the-ide")
        written = desk.home / "from-the-ide"
        await until(lambda: written.exists() and written.read_text() == "the answer is 42\n", "the file")
    reaches_nothing_of_the_platforms(site, desk)
    await desk.brought_to("ARCHIVED")
    assert (desk.containers(), desk.volume) == ("", "")
    await desk.brought_to("RUNNING")
    assert desk.inside("cat from-the-ide") == "the answer is 42"


def reaches_nothing_of_the_platforms(site: Composed, desk: DockerWorkspace) -> None:
    gateway = docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}", desk.containers())
    with listening("0.0.0.0") as port_of_the_machine:
        open_ones = [*STORES, (gateway, port_of_the_machine)]
        for place in open_ones:
            socket.create_connection(place, 5).close()  # it does listen there
        for host, port in [*open_ones, (gateway, site.port)]:
            said = desk.inside(f"timeout 3 bash -c '</dev/tcp/{host}/{port}' 2>/dev/null && echo reached || echo not")
            assert said == "not", f"{host}:{port} was reached from inside"
    assert desk.inside("test -e /var/run/docker.sock && echo there || echo not") == "not"
