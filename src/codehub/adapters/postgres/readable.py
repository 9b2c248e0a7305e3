"""Many rows at once: one that cannot be read is reported and left out, so that it does not stop the others."""

import asyncio
from collections.abc import Sequence

import asyncpg
import structlog

from codehub.adapters.postgres import rows
from codehub.domain.workspace import Workspace

log = structlog.get_logger(__name__)

BREATH = 250
"""Rows decoded before others on the event loop get their turn: a renewal must not wait for a long list."""


async def readable(records: Sequence[asyncpg.Record]) -> list[Workspace]:
    found = []
    for number, record in enumerate(records, 1):
        if number % BREATH == 0:
            await asyncio.sleep(0)
        if record["id"] is None:
            continue  # the row that carries only `now`
        try:
            found.append(rows.workspace(record))
        except (ValueError, KeyError, TypeError, AttributeError):
            log.exception("workspace_unreadable", workspace=str(record["id"]))
    return found
