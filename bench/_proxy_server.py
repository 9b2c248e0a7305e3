"""CodeHub's relay for the benchmark, in a process of its own: a session's cookie leads to its workspace at once."""

import asyncio
import sys
import time

import uvloop

from codehub.ports.runtime import Endpoint
from codehub.proxy.gate import Failure, Forward, Respond, Tap, Verdict
from codehub.proxy.limits import Limits
from codehub.proxy.presence import IdePresence
from codehub.proxy.request import RequestHead
from codehub.proxy.responses import plain_failure, problem
from codehub.proxy.server import ProxyServer

NAME = b"__Host-codehub_session="


class Access:
    """What presence is told to: the time of the last one."""

    at_boundary = False

    def __init__(self) -> None:
        self.last = 0.0

    def seen(self) -> None:
        self.last = time.monotonic()

    def tap(self) -> Tap:
        return IdePresence(self.seen)


class SessionGate:
    routes = ()

    def __init__(self, sessions: dict[bytes, Forward]) -> None:
        self._sessions = sessions

    def decide(self, head: RequestHead) -> Verdict:
        for cookies in head.fields.cookies or ():
            at = cookies.find(NAME)
            if at >= 0:
                session = cookies[at + len(NAME) :].partition(b";")[0]
                forward = self._sessions.get(session)
                if forward is not None:
                    return forward
        return problem(401, "Sign in first.")

    def failed(self, head: RequestHead, forward: Forward, failure: Failure) -> Respond:
        del head, forward
        return plain_failure(failure)


async def serve(upstream: int, *, tapped: bool) -> None:
    forward = Forward(Endpoint(host="127.0.0.1", port=upstream), tap=Access().tap if tapped else None)
    server = ProxyServer(SessionGate({b"%d" % n: forward for n in range(1000)}), Limits(per_target=8192))
    print(await server.listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), tapped=sys.argv[2] == "tapped"))
