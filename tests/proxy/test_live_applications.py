"""Real applications in a real browser, through the real relay: a tab left alone counts no more for a whole TTL."""

import asyncio
import subprocess
import time

import pytest

from codehub.proxy.access.verdicts import Forward, Verdict
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.presence.periodic import PeriodicTraffic, kind_of_request
from codehub.proxy.presence.tap import AppPresence
from tests.chromium import installed
from tests.proxy.harness import ProxyHarness
from tests.proxy.recording.applications import APPLICATIONS, Person
from tests.proxy.recording.record_applications import PROGRAMS, install, page, served

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(1500)]

TTL, PATIENCE = 150.0, 540.0
"""How long a tab of either kept its workspace up with that TTL, before its page's own requests were recognised."""
WORKS = 20.0


class Watch:
    """What the proxy counts of one tab."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._requests = PeriodicTraffic(64)

    def seen(self) -> None:
        self.last = time.monotonic()

    def note_requests(self, proxy: ProxyHarness) -> None:
        decide = proxy.server._decide

        def noted(head: RequestHead) -> Verdict:
            kind = kind_of_request(3000, head.method, head.target, head.fields.body_length)
            if not self._requests.is_periodic(kind, time.monotonic()):
                self.seen()
            return decide(head)

        proxy.server._decide = noted

    async def is_alone(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while time.monotonic() - self.last < TTL:
                await asyncio.sleep(1)


@pytest.mark.parametrize("name", ["vite", "jupyterlab"])
async def test_a_tab_left_alone_is_nobody_and_work_in_it_is_somebody(name: str) -> None:
    application = APPLICATIONS[name]
    if installed() is None:
        pytest.skip("chromium is not there")
    try:
        await asyncio.to_thread(install, name, application, PROGRAMS)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"{name} cannot be installed: {error}")
    watch = Watch()
    async with served(application, PROGRAMS) as endpoint:
        forward = Forward(endpoint, tap=lambda: AppPresence(watch.seen))
        async with ProxyHarness(endpoint, forward=forward) as proxy:
            watch.note_requests(proxy)
            async with page(proxy.port, application) as opened:
                await watch.is_alone()
                alone_until = time.monotonic()
                await application.works(Person(opened, asyncio.get_running_loop().time() + WORKS))
                assert watch.last > alone_until
