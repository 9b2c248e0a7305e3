"""A sweep that was refused, asked for by an admin who has looked: over the named checks, by the leader."""

from codehub.adapters.system import SystemClock
from codehub.domain.ledger import AuditAction
from tests.api.memory_api import ApiUser, MemoryApi


async def test_an_admin_asks_the_leader_for_a_run_over_the_named_checks(api: MemoryApi, admin: ApiUser) -> None:
    term = await api.backends.database.leadership(SystemClock()).campaign("hub-1:4711")
    asked = await admin.http.post("/api/v1/admin/gc", json={"waive": ["too-many", "restored"]})
    assert asked.status_code == 202, asked.text
    run = f"/api/v1/admin/gc/{asked.json()['id']}"
    assert (await admin.http.get(run)).json() == {**asked.json(), "is_done": False}
    marks = api.backends.database.marks(term.epoch)
    pending = await marks.pending()
    assert pending is not None
    assert (pending.asked_by, pending.waived) == ("root", ("too-many", "restored"))
    refusal = {"check": "ledger-behind", "sentence": "was the database restored?"}
    await marks.finish(pending.id, {"swept": [{}, {}], "refusals": [refusal]})
    done = (await admin.http.get(run)).json()
    assert (done["is_done"], done["swept"], done["refusals"]) == (True, 2, [refusal])
    [told] = [
        entry for entry in api.backends.database.state.accounts.audit if entry.action == AuditAction.COLLECT_GARBAGE
    ]
    assert (told.actor, told.details) == ("root", {"waived": ["too-many", "restored"]})
    await term.resign()


async def test_what_nobody_may_waive_and_when_nobody_leads(api: MemoryApi, admin: ApiUser) -> None:
    for check in ("database-empty", "foreign-install", "no-such-check"):
        assert (await admin.http.post("/api/v1/admin/gc", json={"waive": [check]})).status_code == 422
    nobody = await admin.http.post("/api/v1/admin/gc", json={"waive": ["too-many"]})
    assert (nobody.status_code, nobody.json()["code"]) == (409, "no_leader")
