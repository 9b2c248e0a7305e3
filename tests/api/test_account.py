"""What people keep for their workspaces, over HTTP: written, listed, deleted, and never read back."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from codehub.domain.identity import Role, Scope
from tests.api.memory_api import ApiUser, MemoryApi

ACCOUNT = "/api/v1/account"
PLANTED = "planted-7f3a"

Ask = Callable[..., Any]


@pytest.fixture
async def browser(api: MemoryApi, ann: ApiUser) -> httpx.AsyncClient:
    return await api.browser("ann")


async def keep(browser: httpx.AsyncClient, name: str = "NPM_TOKEN", value: str = PLANTED) -> httpx.Response:
    return await browser.put(f"{ACCOUNT}/secrets/{name}", json={"value": value})


def audit(api: MemoryApi) -> list[tuple[str, str, dict[str, Any]]]:
    told = api.backends.database.state.accounts.audit
    return [
        (one.action, one.subject, dict(one.details)) for one in told if one.actor == "ann" and "sign" not in one.action
    ]


async def test_a_secret_s_life(api: MemoryApi, browser: httpx.AsyncClient) -> None:
    made = await keep(browser)
    assert made.status_code == 200
    assert made.json() == {"name": "NPM_TOKEN", "updated_at": made.json()["updated_at"], "is_readable": True}
    assert (await keep(browser, value="another")).status_code == 200
    [listed] = (await browser.get(f"{ACCOUNT}/secrets")).json()["items"]
    assert listed["name"] == "NPM_TOKEN"
    assert (await browser.delete(f"{ACCOUNT}/secrets/NPM_TOKEN")).status_code == 204
    assert (await browser.delete(f"{ACCOUNT}/secrets/NPM_TOKEN")).status_code == 404
    assert (await browser.get(f"{ACCOUNT}/secrets")).json() == {"items": []}
    assert [action for action, *_ in audit(api)][-3:] == ["put_secret", "put_secret", "delete_secret"]


async def test_git_credentials(api: MemoryApi, browser: httpx.AsyncClient) -> None:
    place = f"{ACCOUNT}/git-credentials"
    made = await browser.put(f"{place}/GIT.example.com:8443/token", json={"username": "ann", "token": PLANTED})
    assert made.status_code == 200
    assert {key: made.json()[key] for key in ("host", "kind", "username", "public_key")} == {
        "host": "git.example.com:8443",
        "kind": "token",
        "username": "ann",
        "public_key": None,
    }
    first = await browser.post(f"{place}/git.example.com/ssh-key")
    assert first.status_code == 201
    assert first.json()["public_key"].startswith("ssh-ed25519 ")
    assert first.json()["public_key"].endswith(" ann@codehub:git.example.com")
    second = await browser.post(f"{place}/git.example.com/ssh-key")
    assert second.json()["public_key"] != first.json()["public_key"]
    listed = (await browser.get(place)).json()["items"]
    assert listed == [second.json(), made.json()]
    assert (await browser.delete(f"{place}/git.example.com/ssh-key")).status_code == 204
    assert (await browser.delete(f"{place}/git.example.com/token")).status_code == 404
    assert (await browser.delete(f"{place}/git.example.com:8443/token")).status_code == 204
    assert (await browser.get(place)).json() == {"items": []}


async def test_a_git_identity_and_dotfiles(api: MemoryApi, browser: httpx.AsyncClient, ann: ApiUser) -> None:
    identity, dotfiles = f"{ACCOUNT}/git-identity", f"{ACCOUNT}/dotfiles"
    assert (await browser.get(identity)).json() == {"name": None, "email": None}
    told = {"name": "Ann Lee", "email": "ann@example.com"}
    assert (await ann.http.put(identity, json=told)).json() == told, "no secret, so a token may"
    assert (await browser.get(identity)).json() == told
    assert (await browser.get(dotfiles)).json() == {"url": None, "command": None}
    told = {"url": "https://git.example.com/ann/dotfiles.git", "command": "./install.sh"}
    assert (await browser.put(dotfiles, json=told)).json() == told
    assert (await browser.put(dotfiles, json={"url": told["url"]})).json() == {"url": told["url"], "command": None}
    assert [(await browser.delete(path)).status_code for path in (identity, dotfiles, dotfiles)] == [204] * 3
    assert (await browser.get(dotfiles)).json() == {"url": None, "command": None}
    assert (await browser.get(identity)).json() == {"name": None, "email": None}


SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


async def test_an_ssh_key_s_life(api: MemoryApi, browser: httpx.AsyncClient, ann: ApiUser, bob: ApiUser) -> None:
    place = f"{ACCOUNT}/ssh-keys"
    refused = await ann.http.post(place, json={"public_key": SSH_KEY})
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_session"), "a token adds no key"
    wrong = await browser.post(place, json={"public_key": "ssh-dss AAAA"})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "public_key")
    made = await browser.post(place, json={"public_key": f"{SSH_KEY} ann@laptop\n"})
    assert made.status_code == 201
    shown = made.json()
    assert (shown["name"], shown["algorithm"], shown["last_used_at"]) == ("ann@laptop", "ssh-ed25519", None)
    assert shown["fingerprint"].startswith("SHA256:")
    again = await browser.post(place, json={"public_key": SSH_KEY, "name": "desk"})
    assert (again.status_code, again.json()["code"]) == (409, "ssh_key_taken")
    assert (await browser.get(place)).json() == {"items": [shown]}
    assert (await bob.http.get(place)).json() == {"items": []}
    assert (await bob.http.delete(f"{place}/{shown['id']}")).status_code == 404
    assert (await ann.http.delete(f"{place}/{shown['id']}")).status_code == 204
    assert (await browser.get(place)).json() == {"items": []}
    assert [action for action, *_ in audit(api)][-2:] == ["add_ssh_key", "remove_ssh_key"]


async def test_no_answer_holds_a_value_not_even_a_refusal(
    api: MemoryApi, browser: httpx.AsyncClient, admin: ApiUser
) -> None:
    token = {"username": "ann", "token": PLANTED}
    with capture_logs() as lines:
        answers = [
            await keep(browser),
            await keep(browser, "PATH"),
            await keep(browser, value=f"{PLANTED}\x00"),
            await keep(browser, value=PLANTED * 9999),
            await browser.put(f"{ACCOUNT}/secrets/A", json={"value": [PLANTED]}),
            await browser.put(f"{ACCOUNT}/secrets/A", json={"value": PLANTED, "more": PLANTED}),
            await browser.put(f"{ACCOUNT}/secrets/A", content=f'{{"value": "{PLANTED}"'),
            await browser.put(f"{ACCOUNT}/git-credentials/a.b/token", json=token),
            await browser.put(f"{ACCOUNT}/git-credentials/a.b/token", json={**token, "token": f"{PLANTED} {PLANTED}"}),
            await admin.http.put("/api/v1/admin/templates/default/secrets/A", json={"value": PLANTED}),
            await admin.http.get("/api/v1/admin/templates/default/secrets"),
            await admin.http.get("/api/v1/admin/templates/default"),
            await browser.get(f"{ACCOUNT}/secrets"),
            await browser.get(f"{ACCOUNT}/git-credentials"),
            await admin.http.get("/api/v1/admin/audit"),
            await browser.get("/api/v1/session"),
        ]
    assert [answer.status_code for answer in answers] == [200, 422, 422, 422, 422, 422, 422, 200, 422, *([200] * 7)]
    for answer in answers:
        assert PLANTED not in answer.text
    assert PLANTED not in repr(lines)
    assert PLANTED not in repr(api.backends.database.state)


async def test_a_colleague_and_an_admin_neither_see_nor_delete_them(
    api: MemoryApi, browser: httpx.AsyncClient, bob: ApiUser, admin: ApiUser
) -> None:
    await keep(browser)
    await browser.post(f"{ACCOUNT}/git-credentials/a.b/ssh-key")
    for other in (bob, admin):
        for path in ("secrets", "git-credentials"):
            assert (await other.http.get(f"{ACCOUNT}/{path}")).json() == {"items": []}
        assert (await other.http.delete(f"{ACCOUNT}/secrets/NPM_TOKEN")).status_code == 404
    document = api.app.openapi()["paths"]
    assert [path for path in document if path.startswith("/api/v1/admin/users") and "secret" in path] == []
    assert len((await browser.get(f"{ACCOUNT}/secrets")).json()["items"]) == 1


async def test_to_put_something_takes_a_fresh_session(api: MemoryApi, ann: ApiUser, browser: httpx.AsyncClient) -> None:
    puts: list[tuple[str, str, Any]] = [
        ("PUT", f"{ACCOUNT}/secrets/A", {"value": "x"}),
        ("PUT", f"{ACCOUNT}/git-credentials/a.b/token", {"token": "x"}),
        ("POST", f"{ACCOUNT}/git-credentials/a.b/ssh-key", None),
        ("PUT", f"{ACCOUNT}/dotfiles", {"url": "https://a.b/c"}),
    ]
    for method, path, body in puts:
        refused = await ann.http.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "needs_session")
    state = api.backends.database.state.accounts
    proven = dict(state.proven)
    state.proven = {key: at.replace(year=2000) for key, at in proven.items()}
    for method, path, body in puts:
        refused = await browser.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "proof_needed")
    assert state.secrets == {}
    state.proven = proven
    for method, path, body in puts:
        assert (await browser.request(method, path, json=body)).is_success
    reader = await api.person("ann", scopes=frozenset({Scope.READ}))
    assert (await reader.http.delete(f"{ACCOUNT}/secrets/A")).status_code == 403
    assert (await ann.http.delete(f"{ACCOUNT}/secrets/A")).status_code == 204


async def test_without_a_key_nothing_is_kept_and_it_says_how_to_make_one(
    api: MemoryApi, browser: httpx.AsyncClient
) -> None:
    await keep(browser)
    api.backends.keyring.keys.clear()
    refused = await keep(browser, "B")
    assert (refused.status_code, refused.json()["code"]) == (409, "no_secrets_key")
    [listed] = (await browser.get(f"{ACCOUNT}/secrets")).json()["items"]
    assert (listed["name"], listed["is_readable"]) == ("NPM_TOKEN", False)
    api.backends.keyring.keys.append("second")
    assert (await keep(browser)).json()["is_readable"], "set again, it is"


async def test_bounds(api: MemoryApi, browser: httpx.AsyncClient) -> None:
    assert (await keep(browser, value="\n" * 65536)).status_code == 200
    assert (await keep(browser, value="비" * 30000)).status_code == 422
    for number in range(5):
        assert (await browser.post(f"{ACCOUNT}/git-credentials/h{number}.b/ssh-key")).status_code == 201
    refused = await browser.post(f"{ACCOUNT}/git-credentials/h5.b/ssh-key")
    assert (refused.status_code, refused.json()["code"]) == (429, "secret_limit")


@pytest.mark.parametrize(
    "name", ["PATH", "1A", "A-B", "A%20B", "A%00B", "LD_PRELOAD", "CODEHUB_X", "A%0AB", "%ED%B2%80"]
)
async def test_hostile_names_change_nothing(name: str, api: MemoryApi, browser: httpx.AsyncClient) -> None:
    refused = await keep(browser, name)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert api.backends.database.state.accounts.secrets == {}


async def test_a_template_s_variables(api: MemoryApi, admin: ApiUser) -> None:
    place = "/api/v1/admin/templates/default/secrets"
    assert (await admin.http.put(f"{place}/LICENSE", json={"value": PLANTED})).json()["name"] == "LICENSE"
    assert [one["name"] for one in (await admin.http.get(place)).json()["items"]] == ["LICENSE"]
    assert (await admin.http.put(f"{place}/HOME", json={"value": "x"})).status_code == 422
    for method in ("GET", "PUT", "DELETE"):
        path = "/api/v1/admin/templates/none/secrets" + ("" if method == "GET" else "/A")
        assert (await admin.http.request(method, path, json={"value": "x"})).status_code == 404
    assert (await admin.http.delete(f"{place}/LICENSE")).status_code == 204
    assert (await admin.http.delete(f"{place}/LICENSE")).status_code == 404
    told = [entry for entry in api.backends.database.state.accounts.audit if entry.subject == "template:default"]
    assert [entry.action for entry in told] == ["put_secret", "delete_secret"]
    other = await api.person("eve", Role.ADMIN, scopes=frozenset({Scope.WRITE}))
    assert (await other.http.put(f"{place}/A", json={"value": "x"})).status_code == 403
