"""Secrets under a real coordinator: what a start is given, and the rotation of their keys from the command line."""

import json
import subprocess
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psutil
import pytest

from codehub.adapters.encryption import AesKeyring, new_key, parse_keys
from codehub.domain.identity import User
from codehub.domain.secrets import GitIdentity, SecretKind, SecretName, user_owner
from codehub.domain.workspace import Desired, Phase
from codehub.ports.accounts import NewUser
from codehub.ports.secrets import StoredSecret
from codehub.usecases.workspace_commands import CreateWorkspace
from tests.system.deployment import ANN, CODEHUB, Deployment, deployed

pytestmark = pytest.mark.system

PLANTED = "planted-7f3a"


async def keep(site: Deployment, keyring: AesKeyring, user: User, name: str) -> None:
    named = SecretName(user_owner(user.id), SecretKind.VARIABLE, name)
    await site.services.database.secrets().put(StoredSecret(named, "", keyring.seal(named, "", PLANTED)), ANN)


async def started(site: Deployment, user: User) -> UUID:
    key = uuid4()
    await site.commands.create(
        CreateWorkspace(f"demo {key}", user.owner_id, Desired.RUNNING), key, ANN, datetime.now(UTC)
    )
    await site.settled(key, Phase.RUNNING)
    return key


def rotate(site: Deployment, keys: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CODEHUB, "admin", "secrets", "rotate", "--json"],
        env=site.environment(site.database_url) | {"CODEHUB_SECRETS_KEYS": keys},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_a_start_is_audited_and_a_rotated_key_is_followed(logged_database: str, fresh_redis: str) -> None:
    old, new = new_key(), new_key()
    async with deployed(logged_database, fresh_redis) as site:
        database = site.services.database
        ann = await database.accounts().create_user(NewUser(uuid4(), "ann"), ANN)
        await database.profiles().set_git_identity(ann.id, GitIdentity("Ann Lee", "ann@example.com"), ANN)
        await keep(site, AesKeyring(parse_keys(old)), ann, "FIRST")
        alpha = site.start(CODEHUB_SECRETS_KEYS=old)
        key = await started(site, ann)
        [ide] = site.ides(key)
        assert psutil.Process(ide).environ()["CODEHUB_GIT_NAME"] == "Ann Lee"
        [entry] = await database.audit().entries(subject=f"workspace:{key}")
        assert (entry.actor, entry.action, entry.details["variables"]) == ("coordinator", "use_secrets", ["FIRST"])
        alpha.end()

        both = rotate(site, f"{new},{old}")
        assert (both.returncode, json.loads(both.stdout)["resealed"]) == (0, 1), both.stderr
        again = rotate(site, new)
        assert (again.returncode, json.loads(again.stdout)["resealed"]) == (0, 0), again.stderr
        lost = rotate(site, old)
        assert (lost.returncode, len(json.loads(lost.stdout)["unreadable"])) == (1, 1), lost.stderr

        beta = site.start("beta", CODEHUB_SECRETS_KEYS=old)
        await site.leads(beta)
        key = await started(site, ann)
        [entry] = await database.audit().entries(subject=f"workspace:{key}")
        assert entry.details["left_out"] == ["FIRST"], "it starts without what cannot be opened"
        assert beta.said("secrets could not be opened")[0]["names"] == ["FIRST"]
        assert len(await database.secrets().page(None, 9)) == 1
        for one in (alpha, beta):
            assert PLANTED not in one.log.read_text()
