"""Templates, whole rows at a time."""

from collections.abc import Sequence
from dataclasses import asdict

from codehub.adapters.postgres import account_statements as sql
from codehub.adapters.postgres import audit, rows
from codehub.adapters.postgres.connections import Sessions
from codehub.adapters.postgres.rows import dumped
from codehub.domain.template import Template
from codehub.ports.stores import Actor


class PostgresTemplates:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def get(self, name: str) -> Template | None:
        async with self._sessions.reading() as connection:
            found = await connection.fetchrow(sql.TEMPLATE, name)
        return rows.template(found) if found else None

    async def all(self) -> Sequence[Template]:
        async with self._sessions.reading() as connection:
            return [rows.template(record) for record in await connection.fetch(sql.TEMPLATES)]

    async def put(self, template: Template, actor: Actor) -> Template:
        values = asdict(template)
        async with self._sessions.writing(actor.epoch) as connection:
            stored = await connection.fetchrow(
                sql.PUT_TEMPLATE,
                values["name"],
                values["description"],
                values["image_ref"],
                dumped(values["env"]),
                values["cpu"],
                values["memory_bytes"],
                values["disk_bytes"],
                values["pids"],
                template.disabled_at is not None,
            )
            assert stored is not None  # noqa: S101 - INSERT … RETURNING gives its row
            # Not the environment: people put secrets there.
            details = {"image_ref": template.image_ref, "disabled": template.disabled_at is not None}
            await audit.append(connection, actor, "put_template", f"template:{template.name}", details)
        return rows.template(stored)
