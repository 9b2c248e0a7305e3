"""What an open editor asks the proxy: the workspace's state as it changes, to be kept up, and the page to leave to."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from codehub.domain.workspace import Desired, Operation, Phase
from tests.proxy.deployment import DIRECT, HTML, Deployment, deployed, problem

JSON = {"content-type": "application/json"}


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


async def test_it_hears_of_a_stop_at_once_and_of_the_sleep_after(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    first = (await deployment.get(demo, "/_codehub/editor", ann)).json()
    assert (first["phase"], first["name"], first["run"]) == ("running", demo.name, demo.home.ready_instance)
    assert 0 < first["stops_in"] <= 630
    assert first["warnings"] == [300.0, 120.0]

    waiting = asyncio.ensure_future(deployment.get(demo, f"/_codehub/editor?seen={first['version']}", ann))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await deployment.becomes(demo.id, operation=Operation.STOPPING, desired_state=Desired.STANDBY)
    stopping = (await waiting).json()
    assert (stopping["phase"], stopping["stops_in"]) == ("stopping", None)

    waiting = asyncio.ensure_future(deployment.get(demo, f"/_codehub/editor?seen={stopping['version']}", ann))
    await deployment.becomes(demo.id, operation=Operation.NONE, phase=Phase.STANDBY)
    assert (await waiting).json()["phase"] == "asleep"


async def test_another_run_is_another_version(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    seen = (await deployment.get(demo, "/_codehub/editor", ann)).json()
    await deployment.becomes(demo.id, home=replace(demo.home, ready_instance="another"))
    again = (await deployment.get(demo, f"/_codehub/editor?seen={seen['version']}", ann)).json()
    assert (again["phase"], again["run"]) == ("running", "another")


async def test_asking_is_no_activity_and_keeping_is(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    before = deployment.row(demo.id).last_access_at
    assert before is not None
    await deployment.get(demo, "/_codehub/editor", ann)
    await deployment.proxy.activities.flush()
    assert await deployment.activity.read() == {}
    assert deployment.row(demo.id).last_access_at == before
    origin = {"origin": f"http://{deployment.host(demo)}"}
    kept = await deployment.get(demo, "/_codehub/keep", ann, method="POST", headers={**JSON, **origin})
    assert kept.status_code == 200, kept.text
    after = deployment.row(demo.id).last_access_at
    assert after is not None
    assert after > before


async def test_a_lease_is_taken_for_so_long_and_no_longer_than_allowed(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    headers = {**JSON, "origin": f"http://{deployment.host(demo)}"}
    kept = await deployment.get(demo, "/_codehub/keep?seconds=7200", ann, method="POST", headers=headers)
    assert 7000 < kept.json()["stops_in"] <= 7200
    for wrong in ("-1", "1e9", "12345678901", "one"):
        answer = await deployment.get(demo, f"/_codehub/keep?seconds={wrong}", ann, method="POST", headers=headers)
        assert (answer.status_code, problem(answer)) == (422, "invalid")


@pytest.mark.parametrize("origin", ["https://evil.example", None])
async def test_another_site_keeps_nothing_up(deployment: Deployment, origin: str | None) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    before = deployment.row(demo.id).last_access_at
    headers = {**JSON, **({"origin": origin} if origin else {})}
    answer = await deployment.get(demo, "/_codehub/keep", ann, method="POST", headers=headers)
    assert (answer.status_code, problem(answer)) == (403, "cross_site")
    assert deployment.row(demo.id).last_access_at == before


async def test_somebody_else_learns_nothing(deployment: Deployment) -> None:
    ann, bob = await deployment.person(), await deployment.person("bob")
    demo = await deployment.workspace(ann)
    for path in ("editor", "asleep"):
        assert (await deployment.get(demo, f"/_codehub/{path}", bob)).status_code in (302, 401, 404)


async def test_the_page_that_an_editor_leaves_to_wakes_nothing_and_leads_back(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann, Phase.STANDBY)
    path = "/_codehub/asleep?to=%2F%3Ffolder%3D%2Fhome"
    page = await deployment.get(demo, path, ann, headers={**HTML, **DIRECT, "sec-fetch-user": "?1"})
    assert page.status_code == 200
    assert "is asleep" in page.text
    assert "&quot;wakes&quot;: true" not in page.text
    assert deployment.row(demo.id).desired_state is Desired.STANDBY
    await deployment.becomes(demo.id, phase=Phase.RUNNING, desired_state=Desired.RUNNING)
    back = await deployment.get(demo, path, ann, headers=HTML)
    assert (back.status_code, back.headers["location"]) == (303, "/?folder=/home")
