"""A real OpenID provider as a process of its own on loopback."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

SECONDS = 60.0


@contextmanager
def running_provider(*people: dict[str, object]) -> Iterator[str]:
    """Gives its issuer. Each of `people` is the claims of one person."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    claims = [word for person in people for word in ("--user-claims", json.dumps(person))]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true", *claims]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    issuer = f"http://127.0.0.1:{port}"
    try:
        _wait(process, issuer)
        yield issuer
    finally:
        process.kill()
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", issuer: str) -> None:
    end = time.monotonic() + SECONDS
    while True:
        try:
            httpx.get(f"{issuer}/.well-known/openid-configuration").raise_for_status()
        except httpx.HTTPError:
            assert process.poll() is None, "the provider ended"
            assert time.monotonic() < end, "the provider did not come up"
            time.sleep(0.05)
        else:
            return
