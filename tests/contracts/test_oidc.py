"""OpenID providers: the one in memory, a real one, and one that signs what it should not."""

import base64
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from codehub.adapters import oidc as adapter
from codehub.adapters.memory import MemoryProvider
from codehub.adapters.oidc import HttpOpenIdProvider, OpenIdClient
from codehub.adapters.system import SystemClock
from codehub.domain.errors import Unauthenticated, Unreachable
from codehub.ports.accounts import OpenIdProvider, ProviderIdentity
from tests.contracts.real_provider import running_provider
from tests.contracts.signing_provider import CLIENT_ID, SigningProvider, signing_provider
from tests.usecases.accounts_harness import ADDRESS, AGENT, AccountsHarness

REDIRECT = "http://codehub.localhost:8000/api/v1/auth/oidc/callback"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


@dataclass
class Place:
    """A provider, and how a person says yes there; gives back the query of the way back."""

    provider: OpenIdProvider
    approve: Callable[[str, str], Awaitable[dict[str, str]]]
    issuer: str


@pytest.fixture(scope="module")
def real_issuer() -> Iterator[str]:
    with running_provider(
        {"sub": "sub-1", "preferred_username": "Ann", "email": "a@example.com", "email_verified": True}
    ) as issuer:
        yield issuer


def real_provider(issuer: str) -> HttpOpenIdProvider:
    return HttpOpenIdProvider(OpenIdClient(issuer, CLIENT_ID, REDIRECT, "client secret"), SystemClock())


async def approve_for_real(url: str, subject: str) -> dict[str, str]:
    async with httpx.AsyncClient() as browser:
        answer = await browser.post(url, data={"sub": subject})
    assert answer.status_code == 302
    location = answer.headers["location"]
    assert location.startswith(REDIRECT)
    return dict(parse_qsl(urlsplit(location).query))


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.system)])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "real":
        issuer: str = request.getfixturevalue("real_issuer")
        yield Place(real_provider(issuer), approve_for_real, issuer)
        return
    memory = MemoryProvider()

    async def approve(url: str, subject: str) -> dict[str, str]:
        return memory.approve(url, subject, "Ann", "a@example.com")

    yield Place(memory, approve, memory.issuer)


async def test_a_code_says_who_it_is(place: Place) -> None:
    url = await place.provider.authorization_url(state="s", nonce="n1", challenge=CHALLENGE)
    back = await place.approve(url, "sub-1")
    assert back["state"] == "s"
    who = await place.provider.identify(code=back["code"], verifier=VERIFIER, nonce="n1")
    known = ProviderIdentity(place.issuer, "sub-1", "Ann", "a@example.com", email_verified=True)
    assert replace(who, authenticated_at=None) == known


async def test_a_sign_in_anew_asks_the_provider_to_ask(place: Place) -> None:
    url = await place.provider.authorization_url(state="s", nonce="n1", challenge=CHALLENGE, anew=True)
    asked = parse_qs(urlsplit(url).query)
    assert (asked["prompt"], asked["max_age"]) == (["login"], ["0"])
    plain = await place.provider.authorization_url(state="s", nonce="n1", challenge=CHALLENGE)
    assert not {"prompt", "max_age"} & parse_qs(urlsplit(plain).query).keys()


async def test_a_code_is_good_once(place: Place) -> None:
    url = await place.provider.authorization_url(state="s", nonce="n2", challenge=CHALLENGE)
    code = (await place.approve(url, "sub-1"))["code"]
    await place.provider.identify(code=code, verifier=VERIFIER, nonce="n2")
    for spent in (code, "never issued"):
        with pytest.raises(Unauthenticated):
            await place.provider.identify(code=spent, verifier=VERIFIER, nonce="n2")


async def test_a_code_of_another_sign_in_is_refused(place: Place) -> None:
    url = await place.provider.authorization_url(state="s", nonce="n3", challenge=CHALLENGE)
    code = (await place.approve(url, "sub-1"))["code"]
    with pytest.raises(Unauthenticated):
        await place.provider.identify(code=code, verifier=VERIFIER, nonce="another")


@pytest.mark.system
async def test_a_person_signs_in_at_a_real_provider(real_issuer: str) -> None:
    harness = AccountsHarness()
    journey = replace(harness.oidc, provider=real_provider(real_issuer))
    url, cookie = await journey.start("/w/demo")
    query = parse_qs(urlsplit(url).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"] == [REDIRECT]
    assert cookie not in url
    done = await journey.finish(await approve_for_real(url, "sub-1"), cookie, ADDRESS, AGENT)
    assert (done.caller.user.username, done.next_path) == ("ann", "/w/demo")
    assert (done.caller.user.issuer, done.caller.user.subject) == (real_issuer, "sub-1")
    url, cookie = await journey.start()
    again = await journey.finish(await approve_for_real(url, "sub-1"), cookie, ADDRESS, AGENT)
    assert again.caller.user == done.caller.user


# ── a provider that signs what it should not ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def hostile() -> AsyncIterator[SigningProvider]:
    async with signing_provider() as provider:
        provider.nonce = "n"
        yield provider


def client_of(hostile: SigningProvider, clock: Any = None, secret: str | None = None) -> HttpOpenIdProvider:
    return HttpOpenIdProvider(OpenIdClient(hostile.issuer, CLIENT_ID, REDIRECT, secret), clock or SystemClock())


async def identified(provider: HttpOpenIdProvider) -> ProviderIdentity:
    return await provider.identify(code="c", verifier=VERIFIER, nonce="n")


async def test_a_good_token_of_this_provider_is_taken(hostile: SigningProvider) -> None:
    assert await identified(client_of(hostile)) == ProviderIdentity(hostile.issuer, "sub-1")


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"aud": "another client"},
        {"aud": [CLIENT_ID, "another"]},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"azp": "another"},
        {"exp": int(time.time()) - 3600},
        {"iat": int(time.time()) + 3600},
        {"nbf": int(time.time()) + 3600},
        {"nonce": "another"},
        {"sub": ""},
        {"sub": 7},
    ],
    ids=" ".join,
)
async def test_a_token_that_is_not_for_us_and_now_is_refused(hostile: SigningProvider, claims: dict[str, Any]) -> None:
    hostile.claims = claims
    with pytest.raises(Unauthenticated):
        await identified(client_of(hostile))


@pytest.mark.parametrize("claim", ["iss", "aud", "exp", "iat", "sub", "nonce"])
async def test_a_token_that_leaves_something_out_is_refused(hostile: SigningProvider, claim: str) -> None:
    hostile.dropped = {claim}
    with pytest.raises(Unauthenticated):
        await identified(client_of(hostile))


async def test_no_signature_and_shared_secrets_are_refused(hostile: SigningProvider) -> None:
    client_secret = "a secret that the client and the provider share"
    for algorithm, key in (("none", ""), ("HS256", client_secret)):
        hostile.algorithm, hostile.signing_key = algorithm, key
        with pytest.raises(Unauthenticated):
            await identified(client_of(hostile, secret=client_secret))


async def test_another_key_is_refused(hostile: SigningProvider) -> None:
    hostile.signing_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(Unauthenticated):
        await identified(client_of(hostile))


class TurnedClock(SystemClock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


async def test_discovery_and_keys_are_asked_for_once_and_an_unknown_key_at_most_once_a_minute(
    hostile: SigningProvider,
) -> None:
    clock = TurnedClock()
    provider = client_of(hostile, clock)
    for _ in range(3):
        await identified(provider)
    assert hostile.asked.count("/jwks") == hostile.asked.count("/.well-known/openid-configuration") == 1
    hostile.kid = "unknown"
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await identified(provider)
    assert hostile.asked.count("/jwks") == 1
    clock.at += adapter.KEYS_AGAIN_SECONDS + 1
    with pytest.raises(Unauthenticated):
        await identified(provider)
    assert hostile.asked.count("/jwks") == 2


async def test_redirects_are_not_followed(hostile: SigningProvider) -> None:
    hostile.redirect = f"{hostile.issuer}/elsewhere"
    for path in ("/token", "/jwks", "/.well-known/openid-configuration"):
        hostile.answers = {path: (302, "{}")}
        with pytest.raises(Unreachable):
            await identified(client_of(hostile))
    assert "/elsewhere" not in hostile.asked


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/.well-known/openid-configuration", 500, "{}"),
        ("/.well-known/openid-configuration", 200, "not json"),
        ("/.well-known/openid-configuration", 200, "[]"),
        ("/.well-known/openid-configuration", 200, '{"issuer": "https://other.example"}'),
        ("/token", 200, '{"access_token": "only"}'),
        ("/token", 503, ""),
        ("/jwks", 200, " " * (adapter.MOST_BYTES + 1)),
    ],
)
async def test_nonsense_is_no_answer(hostile: SigningProvider, path: str, status: int, body: str) -> None:
    hostile.answers = {path: (status, body)}
    with pytest.raises(Unreachable):
        await identified(client_of(hostile))


@pytest.mark.parametrize(
    "keys", ['{"keys": []}', '{"keys": "x"}', '{"keys": [1, {"kid": "one", "kty": "RSA"}]}', '{"a": 1}']
)
async def test_keys_that_are_none_are_refused(hostile: SigningProvider, keys: str) -> None:
    hostile.answers = {"/jwks": (200, keys)}
    with pytest.raises(Unauthenticated):
        await identified(client_of(hostile))


async def test_a_provider_that_is_away_is_unreachable() -> None:
    provider = HttpOpenIdProvider(OpenIdClient("http://127.0.0.1:1", CLIENT_ID, REDIRECT), SystemClock())
    with pytest.raises(Unreachable):
        await provider.authorization_url(state="s", nonce="n", challenge="c")


async def test_an_https_provider_must_not_lead_to_plain_http() -> None:
    provider = HttpOpenIdProvider(OpenIdClient("https://i.example", CLIENT_ID, REDIRECT), SystemClock())
    plain = {"issuer": "https://i.example", "authorization_endpoint": "http://i.example/a"}
    with pytest.raises(Unreachable, match="authorization_endpoint is missing or not https"):
        provider._refuse_foreign(plain)
