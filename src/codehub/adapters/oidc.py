"""One OpenID Connect provider over HTTP: discovery, code for token, and the check of what it signed.

Nothing that a provider says leads anywhere by itself: redirects are not followed, answers are bounded in time and size,
no cookie is kept, and the algorithm is chosen from our list, never from the token.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx
import jwt
import structlog

from codehub.domain.errors import Unauthenticated, Unreachable
from codehub.ports.accounts import ProviderIdentity
from codehub.ports.signals import Clock

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by the provider's own key only: no `none`, and no HS*, whose key would be one that we know too."""

SCOPES = "openid profile email"
CALL_SECONDS = 10.0
MOST_BYTES = 1_000_000
FRESH_SECONDS = 3600.0
KEYS_AGAIN_SECONDS = 60.0
"""A token by a key that we do not know makes us look again, but not more often than this."""
LEEWAY_SECONDS = 60
REFUSED = "The provider's answer could not be trusted. Begin again; if it stays, ask an admin."

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenIdClient:
    """Ourselves, as registered with the provider. No secret: a public client, proven by PKCE alone."""

    issuer: str
    client_id: str
    redirect_uri: str
    client_secret: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    values: Mapping[str, Any]
    at: float


class HttpOpenIdProvider:
    def __init__(self, client: OpenIdClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._metadata: _Known | None = None
        self._keys: _Known | None = None
        self._asking = asyncio.Lock()

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, anew: bool = False) -> str:
        endpoint = (await self._discovered())["authorization_endpoint"]
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._client.redirect_uri,
            "scope": SCOPES,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **({"prompt": "login", "max_age": "0"} if anew else {}),
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def identify(self, *, code: str, verifier: str, nonce: str) -> ProviderIdentity:
        answer = await self._exchanged(code, verifier)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Unreachable("The OpenID provider gave no ID token: check that the client may use the scope openid.")
        try:
            claims = await self._checked(token, nonce)
        except jwt.PyJWTError as error:
            log.warning("an ID token was refused", issuer=self._client.issuer, why=type(error).__name__)
            raise Unauthenticated(REFUSED) from None
        return ProviderIdentity(
            issuer=self._client.issuer,
            subject=claims["sub"],
            preferred_username=_text(claims.get("preferred_username")),
            email=_text(claims.get("email")),
            email_verified=claims.get("email_verified") is True,
            authenticated_at=_moment(claims.get("auth_time")),
        )

    async def _exchanged(self, code: str, verifier: str) -> Mapping[str, Any]:
        metadata = await self._discovered()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._client.redirect_uri,
            "code_verifier": verifier,
        }
        auth: tuple[str, str] | None = None
        secret = self._client.client_secret
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret is None:
            form["client_id"] = self._client.client_id
        elif "client_secret_basic" in methods:
            auth = (quote(self._client.client_id, safe=""), quote(secret, safe=""))
        else:
            form |= {"client_id": self._client.client_id, "client_secret": secret}
        status, answer = await _asked("POST", metadata["token_endpoint"], data=form, auth=auth)
        if status in {400, 401, 403}:
            log.warning(
                "the OpenID provider refused a code", issuer=self._client.issuer, why=_text(answer.get("error"))
            )
            raise Unauthenticated("The provider refused this sign-in. Begin again.")
        return _good(status, answer)

    async def _checked(self, token: str, nonce: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        if header.get("alg") not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError
        key = await self._key(header)
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[header["alg"]],
            audience=self._client.client_id,
            issuer=self._client.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["iss", "sub", "aud", "exp", "iat"]},
        )
        if claims.get("nonce") != nonce:
            raise jwt.InvalidTokenError("nonce")
        audiences = claims["aud"]
        several = isinstance(audiences, list) and len(audiences) > 1
        if (several or "azp" in claims) and claims.get("azp") != self._client.client_id:
            raise jwt.InvalidAudienceError
        if not claims["sub"]:
            raise jwt.InvalidTokenError("sub")
        return claims

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        found = _fitting(await self._key_set(FRESH_SECONDS), header)
        if found is None:
            found = _fitting(await self._key_set(KEYS_AGAIN_SECONDS), header)
        if found is None:
            raise jwt.InvalidKeyError
        return jwt.PyJWK.from_dict(found, header["alg"])

    async def _discovered(self) -> Mapping[str, Any]:
        async with self._asking:
            if self._metadata is None or self._age(self._metadata) > FRESH_SECONDS:
                url = f"{self._client.issuer.rstrip('/')}/.well-known/openid-configuration"
                values = _good(*await _asked("GET", url))
                self._refuse_foreign(values)
                self._metadata = _Known(values, self._clock.monotonic())
            return self._metadata.values

    def _refuse_foreign(self, values: Mapping[str, Any]) -> None:
        if values.get("issuer") != self._client.issuer:
            raise Unreachable("The OpenID provider calls itself by another issuer: set exactly the one that it uses.")
        secure = urlsplit(self._client.issuer).scheme == "https"
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            scheme = urlsplit(str(values.get(name, ""))).scheme
            if scheme != "https" and (secure or scheme != "http"):
                raise Unreachable(f"The OpenID provider's {name} is missing or not https.")

    async def _key_set(self, at_most_old: float) -> Mapping[str, Any]:
        url = (await self._discovered())["jwks_uri"]
        async with self._asking:
            if self._keys is None or self._age(self._keys) > at_most_old:
                self._keys = _Known(_good(*await _asked("GET", url)), self._clock.monotonic())
            return self._keys.values

    def _age(self, known: _Known) -> float:
        return self._clock.monotonic() - known.at


async def _asked(
    method: str, url: str, *, data: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None
) -> tuple[int, Mapping[str, Any]]:
    """The status and the JSON object of the provider's answer; an answer that is no JSON object is an empty one."""
    try:
        async with (
            asyncio.timeout(CALL_SECONDS),
            httpx.AsyncClient(follow_redirects=False, timeout=CALL_SECONDS) as client,
            client.stream(method, url, data=data, auth=auth, headers={"accept": "application/json"}) as answer,
        ):
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise Unreachable("The OpenID provider's answer is too long.")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise Unreachable(f"The OpenID provider does not answer ({type(error).__name__}).") from error
    try:
        values = json.loads(body)
    except ValueError:
        values = None
    return answer.status_code, values if isinstance(values, dict) else {}


def _good(status: int, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if status != 200 or not answer:
        raise Unreachable(f"The OpenID provider answered with status {status} and nothing that we can read.")
    return answer


def _fitting(key_set: Mapping[str, Any], header: Mapping[str, Any]) -> dict[str, Any] | None:
    """The key that the token names; the only one, if it names none."""
    keys = key_set.get("keys")
    signing = [key for key in keys if isinstance(key, dict) and key.get("use", "sig") == "sig"] if keys else []
    if "kid" in header:
        return next((key for key in signing if key.get("kid") == header["kid"]), None)
    return signing[0] if len(signing) == 1 else None


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _moment(seconds: object) -> datetime | None:
    """The time that `auth_time` says. A claim that is no time says nothing."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
