"""Giving the agent of a container the secrets of its start, whichever engine runs it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from codehub.agent.handshake import hand_over
from codehub.agent.secrets import encode, records
from codehub.ports.runtime import ContainerSpec, Endpoint

_SECONDS = 20.0
_LOOK_AGAIN_SECONDS = 0.1


async def hand_over_secrets(spec: ContainerSpec, endpoint: Callable[[UUID], Awaitable[Endpoint | None]]) -> str | None:
    """Gives the container's agent what it waits for; returns why that was not possible in time, None if it was. Whoever
    is killed before this leaves a container that waits, and the next to start it comes by here. `endpoint`: where the
    agent of a workspace is; None once its container has ended, of which the next look tells."""
    credentials = [(one.host, one.username, one.token) for one in spec.secrets.git_credentials]
    secrets = encode(spec.secrets.env, records(credentials, spec.secrets.ssh_keys))
    failure = "its agent does not listen"
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            while (found := await endpoint(spec.workspace_id)) is not None:
                if found.inside is None or found.host is None or found.port is None:
                    return None  # it was started before there were agents
                try:
                    await hand_over((found.host, found.port), found.inside.key, secrets)
                except OSError as error:
                    failure = str(error)
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                else:
                    return None
            return None
    return failure
