"""A worker as the supervisor starts it: it answers with its process id, at once or when a file is there."""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from codehub.proxy.access.verdicts import Cap, Forward, Pending, Respond, UpstreamFailure, Verdict
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import failure_problem, overload_problem
from codehub.proxy.server import ProxyServer
from codehub.proxy.workers import serve_worker


class PidGate:
    routes = ()

    def __init__(self, latch: Path) -> None:
        self._latch = latch

    def decide(self, head: RequestHead) -> Verdict:
        if head.target == b"/die":
            os._exit(3)
        return Pending(self._later()) if head.target == b"/later" else self._now()

    def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        return failure_problem(failure)

    def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
        return overload_problem(cap)

    async def _later(self) -> Respond:
        while not self._latch.exists():
            await asyncio.sleep(0.01)
        return self._now()

    def _now(self) -> Respond:
        return Respond(200, body=b"%d" % os.getpid())


async def main() -> None:
    """A kept connection, and one that was just made, have so long for their last request that a client on a busy
    machine does not miss it."""
    limits = ProxyLimits(last_request_seconds=20.0, linger_seconds=20.0)
    await serve_worker(ProxyServer(PidGate(Path(sys.argv[1])), limits), 20.0, 1.0)


if __name__ == "__main__":
    if Path(sys.argv[1] + ".broken").exists():
        sys.exit("cannot start")
    uvloop.run(main())
