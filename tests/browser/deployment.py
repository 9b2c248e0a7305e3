"""A whole CodeHub for one test, and users who look at it through real browsers.

Whatever a page complains about (errors, refused scripts, broken promises) is kept, and the test fails for it at the
end.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID, uuid4

import httpx
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page

from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.identity import Role
from codehub.ports.accounts import NewUser
from codehub.ports.stores import Actor
from tests.api.real_api import RealApi, real_api
from tests.chromium import chromium

PASSWORD = "correct horse battery"
TIMEOUT_MS = 45_000
DESKTOP = {"width": 1280, "height": 860}


@dataclass
class DashboardUser:
    """Somebody's browser window, signed in."""

    name: str
    user_id: UUID
    context: BrowserContext
    page: Page
    url: str
    http: httpx.AsyncClient
    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    async def goes(self, path: str) -> Self:
        await self.page.goto(self.url + path)
        await self.page.locator("main h1").first.wait_for(timeout=TIMEOUT_MS)
        return self

    async def create(self, name: str, **fields: Any) -> dict[str, Any]:
        """Change something by the API, as another program of the same user would."""
        made = await self.http.post("/api/v1/workspaces", json={"name": name, **fields})
        assert made.status_code == 201, made.text
        body: dict[str, Any] = made.json()
        return body

    def card(self, name: str) -> Any:
        return self.page.locator("article.card").filter(has=self.page.get_by_role("link", name=name, exact=True))

    async def sees(self, name: str, state: str) -> None:
        """Wait until the card says so."""
        await self.card(name).locator(".pill").filter(has_text=state).wait_for(timeout=TIMEOUT_MS)

    def complains(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{self.page.url}: {message.text}")
            self.expect_complaints()

    def expect_complaints(self, *parts: str) -> None:
        """Expect a refused request, which the browser itself writes to the console, before or after this."""
        self.expected.extend(parts)
        self.complaints[:] = [line for line in self.complaints if not any(part in line for part in self.expected)]

    async def close(self) -> None:
        await self.http.aclose()
        await self.context.close()


async def signed_in_browser(browser: Browser, url: str, name: str, user_id: UUID, **context: Any) -> DashboardUser:
    """A browser window of its own, with the cookie that signing in gives."""
    http = httpx.AsyncClient(base_url=url, headers={"origin": url}, timeout=30)
    signed_in = await http.post("/api/v1/session", json={"username": name, "password": PASSWORD})
    assert signed_in.status_code == 201, signed_in.text
    secret = signed_in.cookies[SESSION_COOKIE]
    http.headers["cookie"] = f"{SESSION_COOKIE}={secret}"
    opened = await browser.new_context(**{"viewport": DESKTOP, "locale": "en-GB", **context})
    opened.set_default_timeout(TIMEOUT_MS)
    cookie = {
        "name": SESSION_COOKIE,
        "value": secret,
        "domain": "localhost",
        "path": "/",
        "secure": True,
        "httpOnly": True,
    }
    await opened.add_cookies([cookie])  # type: ignore[list-item] # a TypedDict, from a dict
    user = DashboardUser(name, user_id, opened, await opened.new_page(), url, http)
    user.page.on("console", user.complains)
    user.page.on("pageerror", lambda error: user.complaints.append(f"{user.page.url}: {error}"))
    return user


@dataclass
class Deployment:
    site: RealApi
    browser: Browser
    url: str = ""
    users: list[DashboardUser] = field(default_factory=list)

    async def user(self, name: str, role: Role = Role.USER, **context: Any) -> DashboardUser:
        """A user's window: a new user if nobody has that name, else another window of the same user."""
        known = next((one for one in self.users if one.name == name), None)
        user_id = known.user_id if known else await self._join(name, role)
        user = await signed_in_browser(self.browser, self.url, name, user_id, **context)
        self.users.append(user)
        return user

    async def _join(self, name: str, role: Role) -> UUID:
        stored = await self.site.parts.identity.passwords.hash(PASSWORD)
        new = NewUser(uuid4(), name, role, stored)
        return (await self.site.services.database.accounts().create_user(new, Actor("test"))).id

    async def close(self) -> None:
        for user in self.users:
            await user.close()

    def complaints(self) -> list[str]:
        return [line for user in self.users for line in user.complaints]


@asynccontextmanager
async def running_deployment(database_url: str, redis_url: str, **settings: str) -> AsyncIterator[Deployment]:
    """A deployment whose API and coordinator run on a migrated database."""
    async with real_api(database_url, redis_url, **settings) as site, chromium() as browser:
        deployment = Deployment(site, browser)
        await site.start_coordinator()
        api = await site.start_api()
        deployment.url = api.url.replace("127.0.0.1", "localhost")
        try:
            yield deployment
        finally:
            await deployment.close()
        assert not deployment.complaints(), "\n".join(deployment.complaints())
