"""A front end on one port and its API on another, in a real browser: where each host is a site of its own
(`*.localhost`), and where all of them are one site (`*.ws.localhost`, as below any domain that is no public suffix)."""

import asyncio

import pytest
from playwright.async_api import Page

from codehub.domain.workspace import Workspace
from codehub.ports.accounts import Ticket
from codehub.usecases.identity import digest, new_session_token
from tests.chromium import chromium
from tests.proxy.deployment import Deployment, SignedInUser, deployed, session_of
from tests.proxy.fake_workspace import FakeWorkspace, Seen
from tests.real_services import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

FRONT_END = b"<!doctype html><title>front end</title><link rel=icon href=data:,><p>front end"
IMAGE = b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>'
USES = """async (api) => {
    const json = (options) => fetch(`${api}/api`, {credentials: "include", ...options}).then((a) => a.text(), String);
    const loads = (node) => new Promise((done) => {
        node.onload = () => done("loaded");
        node.onerror = () => done("failed");
        node.src = `${api}/${node.tagName.toLowerCase()}`;
        document.body.append(node);
    });
    const put = {method: "PUT", headers: {"Content-Type": "application/json", "X-Own": "1"}, body: "{}"};
    return [
        await json(), await json(put), await loads(new Image()), await loads(document.createElement("script")),
    ];
}"""


def answered(kind: bytes, body: bytes, *headers: bytes) -> bytes:
    head = (b"HTTP/1.1 200 OK", b"Content-Type: " + kind, b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join((*head, b"", b"")) + body


def api(seen: Seen) -> bytes:
    if seen.target == "/img":
        return answered(b"image/svg+xml", IMAGE)
    if seen.target == "/script":
        return answered(b"text/javascript", b"void 0;")
    return answered(b"text/plain", f"{seen.method} ok".encode(), b"Access-Control-Allow-Origin: *")


async def enters(deployment: Deployment, page: Page, who: SignedInUser, workspace: Workspace, origin: str) -> None:
    secret = new_session_token()
    ticket = Ticket(who.user.id, workspace.id, session_of(who), 3000)
    await deployment.directory.sign_in_state().issue_ticket(digest(secret), ticket, 60)
    await page.goto(f"{origin}/_codehub/enter?ticket={secret}")
    await page.wait_for_selector("text=front end")


@pytest.mark.parametrize("base", ["localhost", "ws.localhost"])
async def test_a_front_end_uses_its_api_and_no_other_page_does(base: str) -> None:
    port = free_port()
    async with (
        deployed(workspace_url=f"http://{{slug}}.{base}:{port}/", port=port) as deployment,
        FakeWorkspace() as page_server,
        FakeWorkspace() as back,
    ):
        page_server.answer = lambda _: answered(b"text/html", FRONT_END)
        back.answer = api
        ann = await deployment.person()
        demo, other = await deployment.workspace(ann), await deployment.workspace(ann, name="other")
        for workspace in (demo, other):
            deployment.runtime.state.listen(workspace.id, 3000, page_server.endpoint)
        deployment.runtime.state.listen(demo.id, 4000, back.endpoint)
        names = [f"{number}--{w.slug}" for number in (3000, 4000) for w in (demo, other)]
        here, there, elsewhere = (f"http://{name}.{base}:{port}" for name in (names[0], names[2], names[1]))
        async with chromium() as browser, asyncio.timeout(200):
            page = await browser.new_page()
            await enters(deployment, page, ann, demo, here)
            in_vain = await page.evaluate(USES, there)
            assert "unauthenticated" in in_vain[0], in_vain
            assert back.seen == []
            await page.reload()
            await page.wait_for_selector("text=front end")
            assert page.url == f"{here}/"
            assert await page.evaluate(USES, there) == ["GET ok", "PUT ok", "loaded", "loaded"]
            assert all(seen.all("cookie") == [] for seen in back.seen)

            await enters(deployment, page, ann, other, elsewhere)
            before = len(back.seen)
            refused = await page.evaluate(USES, there)
            assert refused[2:] == ["failed", "failed"]
            assert not any("ok" in told for told in refused[:2])
            await page.reload()
            await page.wait_for_selector("text=front end")
            assert (await page.evaluate(USES, there))[2:] == ["failed", "failed"]
            assert len(back.seen) == before, "nothing of it reached the API"
