"""Signing in at an OpenID provider, as a browser goes: away with a short-lived cookie, back with a session."""

from dataclasses import replace
from urllib.parse import urlencode

import httpx
import pytest

from codehub.adapters.memory import MemoryProvider
from codehub.domain.credentials import SESSION_COOKIE
from codehub.usecases.oidc import Oidc
from tests.api.memory_api import MemoryApi

START, BACK = "/api/v1/session/oidc", "/api/v1/session/oidc/callback"


@pytest.fixture
def provider(api: MemoryApi) -> MemoryProvider:
    provider = MemoryProvider()
    api.parts = replace(api.parts, oidc=Oidc(provider, api.parts.identity))
    api.app.state.parts = api.parts
    return provider


def cookies(answer: httpx.Response) -> dict[str, str]:
    return {
        cookie.split("=")[0]: cookie.split("=", 1)[1].split(";")[0] for cookie in answer.headers.get_list("set-cookie")
    }


async def test_there_and_back_again(api: MemoryApi, provider: MemoryProvider) -> None:
    client = api.client()
    away = await client.get(START, params={"next": "/workspaces?x=1"})
    assert away.status_code == 303
    [(name, secret)] = cookies(away).items()
    query = urlencode(provider.approve(away.headers["location"], "subject-1", "ann"))
    home = await client.get(f"{BACK}?{query}", headers={"cookie": f"{name}={secret}"})
    assert (home.status_code, home.headers["location"]) == (303, "/workspaces?x=1")
    session = cookies(home)[SESSION_COOKIE]
    me = await api.client().get("/api/v1/session", headers={"cookie": f"{SESSION_COOKIE}={session}"})
    assert me.json()["user"]["username"] == "ann"
    twice = await client.get(f"{BACK}?{query}", headers={"cookie": f"{name}={secret}"})
    assert twice.status_code == 401


async def test_somebody_else_s_way_back_signs_nobody_in(api: MemoryApi, provider: MemoryProvider) -> None:
    client = api.client()
    away = await client.get(START)
    query = urlencode(provider.approve(away.headers["location"], "subject-1", "ann"))
    without = await client.get(f"{BACK}?{query}")
    assert (without.status_code, "set-cookie" in without.headers) == (401, False)


async def test_next_is_never_another_site(api: MemoryApi, provider: MemoryProvider) -> None:
    client = api.client()
    away = await client.get(START, params={"next": "//evil.test/"})
    [(name, secret)] = cookies(away).items()
    query = urlencode(provider.approve(away.headers["location"], "subject-1", "ann"))
    home = await client.get(f"{BACK}?{query}", headers={"cookie": f"{name}={secret}"})
    assert home.headers["location"] == "/"


async def test_without_a_provider_there_is_no_such_way(api: MemoryApi) -> None:
    assert (await api.client().get(START)).status_code == 404
    assert (await api.client().get(BACK)).status_code == 404
