"""The twin and the real thing answer alike: otherwise everything proven in memory is proven of the twin alone."""

from collections import Counter
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory import MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.errors import CodeHubError, Conflict
from codehub.ports.collector import CollectorData
from tests.contracts.commands import FAR, Story
from tests.contracts.databases import Database

COMMANDS = 60
BY_ITSELF = datetime(2026, 4, 1, tzinfo=UTC)
"""Between this and FAR lie only the times that a database takes from its own clock."""


def comparable(value: Any) -> Any:
    """Plain values; a time of the database's own clock becomes a word."""
    if isinstance(value, datetime):
        return "the database's" if BY_ITSELF < value < FAR else value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {comparable(key): comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if is_dataclass(value):
        return {field.name: comparable(getattr(value, field.name)) for field in fields(value)}
    return value


async def answer(database: Database, command: Any) -> Any:
    try:
        return comparable(await command(database))
    except Conflict as error:
        return type(error), error.code
    except CodeHubError as error:
        return type(error)


async def everything(database: Database, story: Story) -> dict[str, Any]:
    specs, statuses = database.specs(), database.statuses(story.epoch)
    loaded, _now = await statuses.load(story.ids)
    idle, _now = await specs.idle_candidates()
    data: CollectorData = await database.collector().read()
    seen: dict[str, Any] = comparable(
        {
            "rows": {row.id: row for row in loaded},
            "versions": dict(await statuses.versions()),
            "active": sorted(map(str, await statuses.active())),
            "idle": sorted(str(row.id) for row in idle),
            "leases": dict(await specs.leases()),
            "points": {key: await statuses.restore_points(key) for key in story.ids},
            "ledger": {key: await database.ledger().entries(key) for key in story.ids},
            "collector": sorted(str(row.id) for row in data.workspaces),
            "marks": sorted((mark.resource.kind, mark.resource.name) for mark in data.marks),
            "collector points": {key: points for key, points in data.points.items() if points},
        }
    )
    return seen


async def agree(seed: int, postgres: PostgresDatabase) -> Counter[str]:
    memory, story, told = MemoryDatabase(), Story(seed), []
    outcomes: Counter[str] = Counter()
    for number in range(1, COMMANDS + 1):
        name, command = story.next()
        told.append(name)
        expected, found = await answer(memory, command), await answer(postgres, command)
        assert found == expected, "\n".join(told)
        outcomes[expected.__name__ if isinstance(expected, type) else "answered"] += 1
        if number % 15 == 0:
            assert await everything(postgres, story) == await everything(memory, story), "\n".join(told)
    return outcomes


@pytest.mark.system
@pytest.mark.parametrize("seed", range(30))
async def test_the_same_commands_get_the_same_answers(seed: int, postgres: PostgresDatabase) -> None:
    outcomes = await agree(seed, postgres)
    assert outcomes["answered"] > COMMANDS / 3


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 530))
async def test_many_more_commands_get_the_same_answers(seed: int, postgres: PostgresDatabase) -> None:
    await agree(seed, postgres)
