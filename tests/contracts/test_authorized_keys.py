"""Registered SSH keys on every database."""

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from codehub.domain.authorized_keys import PublicKey
from codehub.domain.credentials import SEEN_EVERY_SECONDS
from codehub.domain.errors import Conflict, LimitReached, NotFound
from codehub.domain.identity import disabled
from codehub.ports.authorized_keys import NewAuthorizedKey
from tests.contracts.account_stores import ROOT, AccountStores, Later, person

MOST = 3


def new(user_id: UUID, name: str = "laptop") -> NewAuthorizedKey:
    return NewAuthorizedKey(uuid4(), user_id, name, PublicKey("ssh-ed25519", uuid4().bytes, "ann@laptop"))


async def test_a_key_is_added_found_by_its_fingerprint_and_removed(stores: AccountStores, later: Later) -> None:
    keys, ann, bob = stores.authorized_keys(), await person(stores), await person(stores, "bob")
    first, second = new(ann.id), new(ann.id, "desk")
    added = await keys.add(first, MOST, ROOT)
    assert (added.id, added.user_id, added.name, added.key) == (first.id, ann.id, "laptop", first.key)
    assert added.last_used_at is None
    await later(1)
    newer = await keys.add(second, MOST, ROOT)
    assert [one.id for one in await keys.of_user(ann.id)] == [newer.id, added.id]
    assert await keys.of_user(bob.id) == []
    found = await keys.find(first.key.fingerprint)
    assert found is not None
    assert (found[0].id, found[1]) == (added.id, ann)
    assert not await keys.remove(bob.id, added.id, ROOT)
    assert await keys.remove(ann.id, added.id, ROOT)
    assert not await keys.remove(ann.id, added.id, ROOT)
    assert await keys.find(first.key.fingerprint) is None


async def test_each_change_is_audited_with_the_fingerprint(stores: AccountStores) -> None:
    keys, ann = stores.authorized_keys(), await person(stores)
    made = new(ann.id)
    await keys.add(made, MOST, ROOT)
    await keys.remove(ann.id, made.id, ROOT)
    removed, added, *_ = await stores.audit().entries()
    assert (added.action, removed.action) == ("add_ssh_key", "remove_ssh_key")
    assert (added.actor, added.subject, added.address) == ("root", "user:ann", ROOT.address)
    assert added.details == removed.details == {"name": "laptop", "fingerprint": made.key.fingerprint}


async def test_a_key_belongs_to_one_account(stores: AccountStores) -> None:
    keys, ann, bob = stores.authorized_keys(), await person(stores), await person(stores, "bob")
    made = new(ann.id)
    await keys.add(made, MOST, ROOT)
    for user in (ann, bob):
        with pytest.raises(Conflict) as refused:
            await keys.add(replace(made, id=uuid4(), user_id=user.id), MOST, ROOT)
        assert refused.value.code == "ssh_key_taken"
    assert len(await stores.audit().entries(subject="user:bob")) == 1, "that bob was made, and no key"


async def test_the_limit_is_exact_also_for_many_at_once(stores: AccountStores) -> None:
    keys, ann = stores.authorized_keys(), await person(stores)
    tried = await asyncio.gather(*(keys.add(new(ann.id), MOST, ROOT) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(one, LimitReached) for one in tried) == 8 - MOST
    assert len(await keys.of_user(ann.id)) == MOST


async def test_nobody_has_no_keys(stores: AccountStores) -> None:
    keys = stores.authorized_keys()
    with pytest.raises(NotFound):
        await keys.add(new(uuid4()), MOST, ROOT)
    assert not await keys.remove(uuid4(), uuid4(), ROOT)
    assert await keys.find("SHA256:none") is None


async def test_the_key_of_a_disabled_user_is_not_found(stores: AccountStores) -> None:
    keys, ann = stores.authorized_keys(), await person(stores)
    made = await keys.add(new(ann.id), MOST, ROOT)
    await stores.accounts().change_user(ann.id, lambda user, _, now: disabled(user, now, 1), ROOT, "disable_user")
    assert await keys.find(made.key.fingerprint) is None
    assert [one.id for one in await keys.of_user(ann.id)] == [made.id], "it is still shown"


async def test_a_use_is_recorded_once_in_a_while(stores: AccountStores, later: Later) -> None:
    keys, ann = stores.authorized_keys(), await person(stores)
    made = await keys.add(new(ann.id), MOST, ROOT)
    await keys.record_use(made.id)
    [first] = await keys.of_user(ann.id)
    assert first.last_used_at is not None
    await keys.record_use(made.id)
    assert await keys.of_user(ann.id) == [first]
    await later(SEEN_EVERY_SECONDS + 1)
    [aged] = await keys.of_user(ann.id)
    await keys.record_use(made.id)
    [second] = await keys.of_user(ann.id)
    assert aged.last_used_at is not None
    assert second.last_used_at is not None
    assert second.last_used_at > aged.last_used_at
    await keys.record_use(uuid4())
