"""An OpenID provider that signs whatever a test tells it to, on a real socket."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID = "codehub"


class SigningProvider:
    """`answers` overrides what a path gives; `claims` and `header` override what is signed."""

    def __init__(self) -> None:
        self.issuer = ""
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid = "one"
        self.algorithm = "RS256"
        self.signing_key: Any = self.key
        self.claims: dict[str, Any] = {}
        self.dropped: set[str] = set()
        self.nonce = ""
        self.answers: dict[str, tuple[int, str]] = {}
        self.redirect: str | None = None
        self.asked: list[str] = []
        self.bodies: list[str] = []

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
        }

    def id_token(self) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "sub-1", "aud": CLIENT_ID, "iat": now, "exp": now + 300}
        claims |= {"nonce": self.nonce, **self.claims}
        kept = {name: value for name, value in claims.items() if name not in self.dropped}
        return jwt.encode(kept, self.signing_key, self.algorithm, headers={"kid": self.kid})

    def answer(self, path: str) -> tuple[int, str]:
        if path in self.answers:
            return self.answers[path]
        match path:
            case "/.well-known/openid-configuration":
                return 200, json.dumps(self.metadata())
            case "/jwks":
                public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
                return 200, json.dumps({"keys": [public | {"kid": "one", "use": "sig"}]})
            case "/token":
                return 200, json.dumps({"id_token": self.id_token(), "access_token": "unused"})
            case _:
                return 404, "{}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-l")), 0
        )
        self.bodies.append((await reader.readexactly(length)).decode())
        path = head.split()[1]
        self.asked.append(path)
        status, body = self.answer(path)
        location = f"Location: {self.redirect}\r\n" if self.redirect else ""
        head = f"HTTP/1.1 {status} X\r\n{location}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def signing_provider() -> AsyncIterator[SigningProvider]:
    provider = SigningProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield provider
