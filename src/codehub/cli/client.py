"""The command line's way to the API: one request after the other, and its problems as sentences.

No cookie is kept and no redirect followed: a token goes to the address it was made for and nowhere else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote, urlsplit

import httpx

from codehub.cli.contexts import Context, is_loopback
from codehub.cli.errors import FAILED, UNREACHABLE, USAGE, ClientFailed

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 60.0
DOWNLOAD_SECONDS = 900.0
"""Between two pieces. A large archive is read for a while before its first byte is sent."""
PAGE = 200

Json = dict[str, Any]


class ResponseFields(Json):
    """A JSON object of a response, in which a missing field ends the command: every CodeHub of this version sends
    it."""

    def __missing__(self, field: str) -> Any:  # noqa: ANN401 - it never returns
        raise ClientFailed(
            f"The answer has no {field!r}. Is this the address of a CodeHub, and as new as this program?", UNREACHABLE
        )


class Client:
    def __init__(self, context: Context) -> None:
        self.context = context
        host = urlsplit(context.url).hostname or ""
        if not context.token.isascii() or " " in context.token or not context.token.isprintable():
            raise ClientFailed("This is no token: one has neither spaces nor special characters.", USAGE)
        try:
            self._http = httpx.Client(
                base_url=f"{context.url}/api/v1",
                headers={"Authorization": f"Bearer {context.token}"} if context.token else {},
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                follow_redirects=False,
                verify=context.url.startswith("https:"),  # what is not encrypted needs no certificates read
                trust_env=not is_loopback(host),  # no proxy on the way to this machine
                transport=_Loopback() if host.endswith(".localhost") else None,
            )
        except httpx.InvalidURL as error:
            raise ClientFailed(f"{context.url!r} is no address: {error}.", USAGE) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, /, **query: object) -> Json:
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._json("GET", path, params=given or None)

    def post(self, path: str, body: Json | None = None, headers: dict[str, str] | None = None) -> Json:
        return self._json("POST", path, json=body, headers=headers)

    def patch(self, path: str, body: Json) -> Json:
        return self._json("PATCH", path, json=body)

    def put(self, path: str, body: Json) -> Json:
        return self._json("PUT", path, json=body)

    def delete(self, path: str) -> Json:
        return self._json("DELETE", path)

    def pages(self, path: str, *, most: int | None = None, **query: object) -> Iterator[Json]:
        """The items of every page, as far as they are asked for."""
        cursor, given = None, 0
        while most is None or given < most:
            size = PAGE if most is None else min(PAGE, most - given)
            page = self.get(path, limit=size, cursor=cursor, **query)
            yield from page["items"]
            given += len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def sign_in(self, username: str, password: str) -> tuple[Json, str]:
        """Signs in and returns the session and its cookie, which is not kept for other requests."""
        answer = self._send("POST", "/session", json={"username": username, "password": password})
        session, cookies = self._read(answer), [cookie for cookie in answer.cookies.jar if cookie.value]
        if not cookies:
            raise ClientFailed(f"{self.context.url} did not open a session. Is it a CodeHub?", UNREACHABLE)
        self._http.cookies.clear()
        return session, f"{cookies[0].name}={cookies[0].value}"

    def with_session(self, cookie: str, method: str, path: str, body: Json | None = None) -> Json:
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(self.context.url))
        headers = {"Cookie": cookie, "Origin": origin, "Content-Type": "application/json"}
        return self._json(method, path, json=body, headers=headers)

    @contextmanager
    def freshly_signed_in(self, username: str, password: str) -> Iterator[str]:
        """Yields the cookie of a session that ends with the context, for what a token may not do."""
        _, cookie = self.sign_in(username, password)
        try:
            yield cookie
        finally:
            self._sign_out(cookie)

    def _sign_out(self, cookie: str) -> None:
        try:
            self.with_session(cookie, "DELETE", "/session")
        except ClientFailed as failed:
            if failed.problem != "unauthenticated":  # else it has ended already: one's own password was reset
                raise

    @contextmanager
    def download(self, address: str) -> Iterator[httpx.Response]:
        """Yields the response of a download. `address` is percent-encoded already: a file's name need not be text."""
        patience = httpx.Timeout(DOWNLOAD_SECONDS, connect=CONNECT_SECONDS)
        with self._spoken(), self._http.stream("GET", address, timeout=patience) as answer:
            if not answer.is_success:
                answer.read()
            self._check(answer)
            yield answer

    def _json(self, method: str, path: str, **more: Any) -> Json:  # noqa: ANN401 - handed on as it is
        return self._read(self._send(method, path, **more))

    def _read(self, answer: httpx.Response) -> Json:
        if answer.status_code == httpx.codes.NO_CONTENT:
            return {}
        try:
            found: Json = answer.json(object_hook=ResponseFields)
        except ValueError:
            found = {}
        if not isinstance(found, ResponseFields):
            raise ClientFailed(f"{self.context.url} does not answer like a CodeHub.", UNREACHABLE)
        return found

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401 - as above
        repeatable = method == "GET" or "Idempotency-Key" in (more.get("headers") or {})
        with self._spoken():
            try:
                answer = self._http.request(method, path, **more)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if not repeatable:
                    raise
                answer = self._http.request(method, path, **more)
        self._check(answer)
        return answer

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise ClientFailed(f"{self.context.url} does not answer in time.", UNREACHABLE) from error
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise ClientFailed(
                f"{self.context.url} cannot be reached ({why}). Is CodeHub running (`codehub up`), and is the address"
                " right (`codehub context ls`)?",
                UNREACHABLE,
            ) from error

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        if answer.is_redirect:
            elsewhere = answer.headers.get("Location", "")
            raise ClientFailed(f"{self.context.url} sends us to {elsewhere}. Sign in at that address.", UNREACHABLE)
        try:
            problem = answer.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or not {"detail", "code"} <= problem.keys():
            raise ClientFailed(f"{self.context.url} answered {answer.status_code}, not like a CodeHub.", UNREACHABLE)
        raise _told(problem, answer)


def _told(problem: Json, answer: httpx.Response) -> ClientFailed:
    code, lines = str(problem["code"]), [str(problem["detail"])]
    wrong = [found for found in problem.get("errors") or () if isinstance(found, dict) and found.get("field")]
    if wrong:
        lines = ["That cannot be taken:", *(f"  {found['field']}: {found.get('message')}" for found in wrong)]
    if problem.get("holders"):
        lines.append("  `codehub ws stop NAME` stops one.")  # waiting is no help
    elif answer.headers.get("Retry-After"):
        lines.append(f"  Try again in {answer.headers['Retry-After']} s.")
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        return ClientFailed("\n".join(lines), FAILED, code)
    if not answer.request.url.path.endswith("/session") or answer.request.method != "POST":
        lines.append("  Sign in with `codehub login`.")
    return ClientFailed("\n".join(lines), USAGE, code)


def segment(text: str) -> str:
    return quote(text, safe="")


def copy(answer: httpx.Response, target: IO[bytes], told: Callable[[int], None] | None = None) -> int:
    """Copies a response to a file and returns how many bytes; calls `told(count)` after each piece."""
    size = 0
    try:
        for chunk in answer.iter_raw():
            target.write(chunk)
            size += len(chunk)
            if told is not None:
                told(size)
    except httpx.TransportError as error:
        raise ClientFailed(f"The download was cut off after {size} bytes. Try again.", UNREACHABLE) from error
    return size


class _Loopback(httpx.HTTPTransport):
    """Connects to this machine for `*.localhost`, which few resolvers know."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host="127.0.0.1")  # the Host header keeps its name
        return super().handle_request(request)
