"""An OpenID provider in memory: whoever holds a code that it issued is who it says."""

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qs, urlencode, urlsplit

from codehub.adapters.memory.wire import Wire
from codehub.domain.errors import Unauthenticated
from codehub.ports.accounts import Identified


@dataclass(slots=True)
class MemoryProvider:
    issuer: str = "https://issuer.example"
    wire: Wire = field(default_factory=Wire)
    codes: dict[str, tuple[Identified, str, str]] = field(default_factory=dict)

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, anew: bool = False) -> str:
        asks = {"prompt": "login", "max_age": "0"} if anew else {}
        query = urlencode({"state": state, "nonce": nonce, "code_challenge": challenge, **asks})
        return await self.wire.call("oidc.authorization_url", lambda: f"{self.issuer}/authorize?{query}")

    async def identify(self, *, code: str, verifier: str, nonce: str) -> Identified:
        def redeem() -> Identified:
            who, challenge, asked_nonce = self.codes.pop(code, (None, "", ""))
            proof = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
            if who is None or (proof, nonce) != (challenge, asked_nonce):
                raise Unauthenticated("The provider refused this sign-in. Begin again.")
            return who

        return await self.wire.call("oidc.identify", redeem)

    def approve(
        self,
        url: str,
        subject: str,
        preferred_username: str | None = None,
        email: str | None = None,
        *,
        email_verified: bool = True,
        authenticated_at: datetime | None = None,
    ) -> dict[str, str]:
        """What a person does there; returns the query that the browser is sent back with."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = secrets.token_urlsafe(8)
        who = Identified(self.issuer, subject, preferred_username, email, email_verified, authenticated_at)
        self.codes[code] = (who, query["code_challenge"], query["nonce"])
        return {"code": code, "state": query["state"]}
