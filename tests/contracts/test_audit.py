"""Audit, templates, idempotency keys: on every database."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.errors import Conflict, NotFound
from codehub.domain.template import Template
from codehub.ports.stores import Actor
from tests.contracts.account_stores import ROOT, AccountStores, Later, person

# ── audit ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_entries_come_newest_first_page_by_page(stores: AccountStores) -> None:
    audit = stores.audit()
    for number in range(5):
        await audit.append(Actor(f"a{number % 2}", address="192.0.2.1"), "act", "thing", {"number": number})
    newest = await audit.entries(2)
    assert [entry.details for entry in newest] == [{"number": 4}, {"number": 3}]
    assert [entry.details["number"] for entry in await audit.entries(before=newest[-1].id)] == [2, 1, 0]
    assert [entry.details["number"] for entry in await audit.entries(actor="a1")] == [3, 1]
    assert len(await audit.entries(subject="thing")) == 5
    assert await audit.entries(subject="other") == []
    assert newest[0].address == "192.0.2.1"


async def test_what_the_database_cannot_hold_is_still_told(stores: AccountStores) -> None:
    await stores.audit().append(Actor("ann"), "act", "thing", {"text": "a \x00 b"})
    assert len(await stores.audit().entries()) == 1


async def test_only_what_is_old_is_forgotten(stores: AccountStores) -> None:
    await stores.audit().append(ROOT, "act", "thing")
    assert await stores.audit().forget_older(3600) == 0
    assert await stores.audit().forget_older(-3600) == 1
    assert await stores.audit().entries() == []


@pytest.mark.system
async def test_the_audit_log_is_append_only(postgres: PostgresDatabase, database_url: str) -> None:
    await postgres.audit().append(ROOT, "act", "thing")
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await connection.execute("UPDATE audit SET actor = 'nobody'")
    finally:
        await connection.close()


# ── templates ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_there_is_a_template_from_the_beginning(stores: AccountStores) -> None:
    [template] = await stores.templates().all()
    assert (template.name, template.image_ref, template.env, template.disabled_at) == ("default", "", {}, None)
    assert await stores.templates().get("default") == template
    assert await stores.templates().get("other") is None


async def test_a_template_is_replaced_whole(stores: AccountStores) -> None:
    templates = stores.templates()
    given = Template("python", "Python 3", "example/python:3", {"LANG": "C.UTF-8"}, 2.5, 2**33, 2**35, 512, True)
    first = await templates.put(given, ROOT)
    assert replace(first, created_at=given.created_at, updated_at=given.updated_at) == given
    second = await templates.put(Template("python", image_ref="example/python:4"), ROOT)
    assert (second.created_at, second.env, second.cpu, second.sudo) == (first.created_at, {}, None, False)
    assert second.updated_at >= first.updated_at
    assert [template.name for template in await templates.all()] == ["default", "python"]


async def test_disabled_since_is_kept_and_ends_with_enabling(stores: AccountStores) -> None:
    templates, given = stores.templates(), Template("python")
    disabled = await templates.put(replace(given, disabled_at=given.created_at), ROOT)
    assert disabled.disabled_at
    assert disabled.disabled_at >= disabled.created_at
    again = await templates.put(disabled, ROOT)
    assert again.disabled_at == disabled.disabled_at
    assert (await templates.put(given, ROOT)).disabled_at is None


async def test_the_audit_log_knows_no_template_s_environment(stores: AccountStores) -> None:
    await stores.templates().put(Template("python", env={"TOKEN": "hidden-value"}), ROOT)
    [entry] = await stores.audit().entries()
    assert (entry.action, entry.subject) == ("put_template", "template:python")
    assert "hidden-value" not in str(entry)


async def test_the_audit_log_says_who_gave_sudo(stores: AccountStores) -> None:
    await stores.templates().put(Template("packages", sudo=True), ROOT)
    [entry] = await stores.audit().entries()
    assert entry.details == {"image_ref": "", "sudo": True, "disabled": False}


# ── idempotency keys ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_many_claims_one_is_first_and_all_get_its_workspace(stores: AccountStores) -> None:
    keys, ann = stores.idempotency_keys(), await person(stores)
    claims = await asyncio.gather(*(keys.claim(ann.id, "key", b"hash", uuid4()) for _ in range(6)))
    assert sum(claim.first for claim in claims) == 1
    assert len({claim.workspace_id for claim in claims}) == 1


async def test_a_key_is_of_one_request_and_one_user(stores: AccountStores) -> None:
    keys, ann, bob = stores.idempotency_keys(), await person(stores), await person(stores, "bob")
    await keys.claim(ann.id, "key", b"hash", uuid4())
    with pytest.raises(Conflict) as reused:
        await keys.claim(ann.id, "key", b"other", uuid4())
    assert reused.value.code == "idempotency_key_reused"
    assert (await keys.claim(bob.id, "key", b"other", uuid4())).first
    with pytest.raises(NotFound):
        await keys.claim(uuid4(), "key", b"hash", uuid4())


async def test_the_first_answer_stays(stores: AccountStores) -> None:
    keys, ann = stores.idempotency_keys(), await person(stores)
    await keys.claim(ann.id, "key", b"hash", uuid4())
    await keys.answer(ann.id, "key", {"status": 201})
    await keys.answer(ann.id, "key", {"status": 500})
    await keys.release(ann.id, "key")
    assert (await keys.claim(ann.id, "key", b"hash", uuid4())).response == {"status": 201}


async def test_a_released_key_is_free(stores: AccountStores, later: Later) -> None:
    keys, ann = stores.idempotency_keys(), await person(stores)
    await keys.claim(ann.id, "key", b"hash", uuid4())
    await keys.release(ann.id, "key")
    assert (await keys.claim(ann.id, "key", b"other", uuid4())).first
    assert await keys.forget_older(3600) == 0
    await later(3601)
    assert await keys.forget_older(3600) == 1
    assert (await keys.claim(ann.id, "key", b"third", uuid4())).first
