"""Sealed secrets of users and templates, and users' profiles. Each change and its audit row are one transaction."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import Connection, PostgresStore, one_row
from codehub.adapters.postgres.stores import append_audit
from codehub.domain.errors import NotFound
from codehub.domain.ledger import AuditAction
from codehub.domain.secrets import (
    Dotfiles,
    GitIdentity,
    OwnerKind,
    SecretKind,
    SecretName,
    SecretOwner,
    SecretsHeld,
    refuse_too_many,
)
from codehub.ports.secrets import Profile, Sealed, SecretShown, StoredSecret
from codehub.ports.stores import Actor


class PostgresSecrets(PostgresStore):
    async def shown(self, owner: SecretOwner) -> Sequence[SecretShown]:
        return [_shown(record) for record in await self._sessions.fetch(sql.SECRETS, [str(owner)])]

    async def put(self, secret: StoredSecret, actor: Actor) -> SecretShown:
        name, sealed = secret.name, secret.sealed
        of_user = name.owner.kind is OwnerKind.USER
        async with self._sessions.writing(actor.epoch) as connection:
            subject = await _locked_owner(connection, name.owner)
            others = await one_row(connection, sql.SECRETS_BESIDES, *_place(name))
            refuse_too_many(name, len(sealed.data), SecretsHeld(**others))
            stored = await one_row(
                connection,
                sql.PUT_SECRET,
                UUID(name.owner.id) if of_user else None,
                None if of_user else name.owner.id,
                name.kind.value,
                name.name,
                secret.public,
                sealed.key_id,
                sealed.data,
            )
            await append_audit(connection, actor, AuditAction.PUT_SECRET, subject, _details(name))
        return _shown(stored)

    async def delete(self, name: SecretName, actor: Actor) -> bool:
        async with self._sessions.writing(actor.epoch) as connection:
            # The owner first, as `put` does: two that lock both in different orders would wait for each other.
            try:
                subject = await _locked_owner(connection, name.owner)
            except NotFound:
                return False
            if await connection.fetchval(sql.DELETE_SECRET, *_place(name)) is None:
                return False
            await append_audit(connection, actor, AuditAction.DELETE_SECRET, subject, _details(name))
        return True

    async def of_owners(self, owners: Collection[SecretOwner]) -> Sequence[StoredSecret]:
        return [_stored(record) for record in await self._sessions.fetch(sql.SECRETS, [str(owner) for owner in owners])]

    async def page(self, after: SecretName | None, limit: int, other_than: str | None = None) -> Sequence[StoredSecret]:
        place = _place(after) if after else (None, None, None)
        found = await self._sessions.fetch(sql.SECRETS_PAGE, *place, other_than, limit)
        return [_stored(record) for record in found]

    async def reseal(self, before: StoredSecret, sealed: Sealed) -> bool:
        seen = *_place(before.name), before.public, before.sealed.data
        async with self._sessions.writing() as connection:
            return await connection.fetchval(sql.RESEAL, *seen, sealed.key_id, sealed.data) is not None

    async def count_by_key(self) -> Mapping[str, int]:
        return {record["key_id"]: record["secrets"] for record in await self._sessions.fetch(sql.SECRETS_BY_KEY)}

    async def record_use(self, workspace_id: UUID, op_id: UUID, details: Mapping[str, Any], actor: Actor) -> bool:
        subject, action = f"workspace:{workspace_id}", AuditAction.USE_SECRETS
        async with self._sessions.writing(actor.epoch) as connection:
            if await connection.fetchval(sql.USE_RECORDED, subject, action, str(op_id)):
                return False
            await append_audit(connection, actor, action, subject, {"op_id": str(op_id), **details})
        return True


class PostgresProfiles(PostgresStore):
    async def get(self, user_id: UUID) -> Profile:
        found = await self._sessions.fetchrow(sql.PROFILE, user_id)
        return _profile(found)

    async def set_git_identity(self, user_id: UUID, identity: GitIdentity | None, actor: Actor) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            subject = await _locked_owner(connection, SecretOwner(OwnerKind.USER, str(user_id)))
            if _profile(await connection.fetchrow(sql.PROFILE, user_id)).git_identity == identity:
                return
            values = (identity.name, identity.email) if identity else (None, None)
            await connection.execute(sql.SET_GIT_IDENTITY, user_id, *values)
            details = asdict(identity) if identity else {}
            await append_audit(connection, actor, AuditAction.SET_GIT_IDENTITY, subject, details)

    async def set_dotfiles(self, user_id: UUID, dotfiles: Dotfiles | None, actor: Actor) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            subject = await _locked_owner(connection, SecretOwner(OwnerKind.USER, str(user_id)))
            if _profile(await connection.fetchrow(sql.PROFILE, user_id)).dotfiles == dotfiles:
                return
            values = (dotfiles.url, dotfiles.command) if dotfiles else (None, None)
            await connection.execute(sql.SET_DOTFILES, user_id, *values)
            # Not the command: people put secrets there.
            details = {"url": dotfiles.url} if dotfiles else {}
            await append_audit(connection, actor, AuditAction.SET_DOTFILES, subject, details)


async def _locked_owner(connection: Connection, owner: SecretOwner) -> str:
    """The owner as the audit log names it, locked until commit. NotFound."""
    statement = sql.SECRETS_OF_USER if owner.kind is OwnerKind.USER else sql.SECRETS_OF_TEMPLATE
    subject: str | None = await connection.fetchval(statement, owner.id)
    if subject is None:
        missing = f"user {owner.id}" if owner.kind is OwnerKind.USER else f"template {owner.id!r}"
        raise NotFound(f"There is no {missing}.")
    return subject


def _place(name: SecretName) -> tuple[str, str, str]:
    return str(name.owner), name.kind.value, name.name


def _details(name: SecretName) -> dict[str, str]:
    return {"kind": name.kind.value, "name": name.name}


def _name(record: asyncpg.Record) -> SecretName:
    kind, _, owner = record["owner"].partition(":")
    return SecretName(SecretOwner(OwnerKind(kind), owner), SecretKind(record["kind"]), record["name"])


def _shown(record: asyncpg.Record) -> SecretShown:
    return SecretShown(_name(record), record["public"], record["key_id"], record["updated_at"])


def _stored(record: asyncpg.Record) -> StoredSecret:
    return StoredSecret(_name(record), record["public"], Sealed(record["key_id"], record["sealed"]))


def _profile(record: asyncpg.Record | None) -> Profile:
    if record is None:
        return Profile()
    identity = GitIdentity(record["git_name"], record["git_email"]) if record["git_name"] is not None else None
    dotfiles = Dotfiles(record["dotfiles_url"], record["dotfiles_command"]) if record["dotfiles_url"] else None
    return Profile(identity, dotfiles)
