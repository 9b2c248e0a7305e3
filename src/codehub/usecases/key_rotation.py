"""The keys of secrets, for operators: whether everything can be opened with the keys that there are, and rotation,
which seals everything anew with the first of them.

A rotation that was interrupted goes on where it ended: what is sealed with the first key already is not touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from codehub.domain.errors import Conflict
from codehub.domain.ledger import AuditAction
from codehub.ports.accounts import Audit
from codehub.ports.secrets import CannotOpen, Keyring, Secrets, StoredSecret
from codehub.ports.stores import Actor

PAGE = 100
SAMPLE = 200
"""How many secrets `examine` really opens."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did. `unreadable`: what could not be opened, and so stays as it is, and why."""

    key_id: str
    resealed: int
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SecretsReport:
    """What an operator should know. `lost`: how many secrets each key would open that is not there. `older`: how many
    wait for a rotation. `damaged`: what did not open although its key is there."""

    count: int
    lost: Mapping[str, int]
    older: int
    damaged: Sequence[str]


async def rotate(secrets: Secrets, keyring: Keyring, audit: Audit, actor: Actor) -> Rotation:
    """Seals everything that another key has sealed with the first one. Conflict `no_secrets_key`."""
    if not keyring.key_ids:
        raise Conflict(
            "There is no key to encrypt with: set CODEHUB_SECRETS_KEYS to the new key and the old ones.",
            "no_secrets_key",
        )
    resealed, unreadable, again = 0, dict[str, str](), True
    while again:
        again, after = False, None
        while page := await secrets.page(after, PAGE, other_than=keyring.key_ids[0]):
            for one in page:
                if str(one.name) in unreadable:
                    continue
                try:
                    done = await _reseal(secrets, keyring, one)
                except CannotOpen as error:
                    unreadable[str(one.name)] = str(error)
                else:
                    resealed, again = resealed + done, again or not done  # else somebody put another meanwhile
            after = page[-1].name
    details = {"key_id": keyring.key_ids[0], "resealed": resealed, "unreadable": len(unreadable)}
    await audit.append(actor, AuditAction.RESEAL_SECRETS, "installation", details)
    return Rotation(keyring.key_ids[0], resealed, unreadable)


async def _reseal(secrets: Secrets, keyring: Keyring, one: StoredSecret) -> bool:
    return await secrets.reseal(one, keyring.seal(one.name, one.public, keyring.open(one)))


async def examine(secrets: Secrets, keyring: Keyring) -> SecretsReport:
    """Compares the keys of all secrets with those that are there, and opens a sample."""
    counts = await secrets.count_by_key()
    lost = {key: number for key, number in counts.items() if key not in keyring.key_ids}
    older = sum(number for key, number in counts.items() if key in keyring.key_ids[1:])
    damaged = []
    for one in await secrets.page(None, SAMPLE):
        if one.sealed.key_id in lost:
            continue
        try:
            keyring.open(one)
        except CannotOpen:
            damaged.append(str(one.name))
    return SecretsReport(sum(counts.values()), lost, older, damaged)
