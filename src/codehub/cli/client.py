"""The command line's client of the API, whose problems become sentences; with it the look-up of the workspace that an
argument names, and the options that many commands share.

No cookie is kept and no redirect followed: a token goes to the address it was made for and nowhere else.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Annotated, Any, Self
from urllib.parse import quote, urlsplit
from uuid import UUID

import httpx
import typer

from codehub.cli import contexts
from codehub.cli.contexts import Context, is_loopback
from codehub.cli.output import FAILED, UNREACHABLE, USAGE, ClientFailed
from codehub.domain.workspace import Desired

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 60.0
DOWNLOAD_SECONDS = 900.0
"""The most between two pieces of a download: a large archive is read for a while before its first byte is sent."""
WAIT_SECONDS = 1800.0
PAGE = 200
FEWEST_CHARACTERS = 4
"""How much of an id must be given."""

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
        timeout = httpx.Timeout(DOWNLOAD_SECONDS, connect=CONNECT_SECONDS)
        with self._explained(), self._http.stream("GET", address, timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
            self._check(answer)
            yield answer

    @contextmanager
    def streamed(self, path: str, body: Json) -> Iterator[Iterator[str]]:
        """Yields the lines of an answer as they come. Leaving the context closes the connection."""
        with self._explained(), self._http.stream("POST", path, json=body) as answer:
            if not answer.is_success:
                answer.read()
            self._check(answer)
            yield _lines(answer)

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
        with self._explained():
            try:
                answer = self._http.request(method, path, **more)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if not repeatable:
                    raise
                answer = self._http.request(method, path, **more)
        self._check(answer)
        return answer

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Makes a failed connection an error with advice."""
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
        raise _failure(problem, answer)


def _failure(problem: Json, answer: httpx.Response) -> ClientFailed:
    """The API's problem as an error of the command, with what to do about it."""
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


def _lines(answer: httpx.Response) -> Iterator[str]:
    """The lines of an answer, cut at line ends alone: text may hold other characters that Python takes for one."""
    held = b""
    for chunk in answer.iter_raw():
        *whole, held = (held + chunk).split(b"\n")
        yield from (line.decode() for line in whole)


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


def find(client: Client, wanted: str, *, deleted: bool = False) -> Json:
    """The workspace that is meant. A whole id may be a deleted one's; with `deleted`, so may a name or the beginning of
    an id that no living workspace has."""
    whole = whole_id(wanted)
    if whole is not None:
        try:
            return client.get(f"/workspaces/{whole}")
        except ClientFailed as failed:
            if failed.problem != "not_found":
                raise  # else: a name may look like an id
    living = list(client.pages("/workspaces"))
    gone = [] if fitting(living, wanted) else fitting(deleted_workspaces(client), wanted)
    if not gone:
        return chosen(living, wanted, "workspace", "codehub ws ls")
    found = chosen(gone, wanted, "deleted workspace", "codehub ws ls --deleted")
    if deleted:
        return found
    raise ClientFailed(f"{found['name']} was deleted. To bring it back: `codehub ws undelete {found['id'][:8]}`")


def deleted_workspaces(client: Client, search: str = "") -> list[Json]:
    """The deleted workspaces that can still be brought back."""
    found = client.pages("/workspaces", deleted=True, q=search or None)
    return [ws for ws in found if ws["purged_at"] is None]


def find_deleted(client: Client, wanted: str) -> UUID:
    """The id of a workspace that is deleted or about to be. A whole id is not looked up: undeleting says more of it."""
    whole = whole_id(wanted)
    if whole is not None:
        return whole
    on_their_way = [ws for ws in client.pages("/workspaces") if ws["desired_state"] == Desired.DELETED]
    candidates = [*deleted_workspaces(client), *on_their_way]
    return UUID(chosen(candidates, wanted, "deleted workspace", "codehub ws ls --deleted")["id"])


def whole_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def chosen(known: Sequence[Json], wanted: str, what: str, listing: str, name: str = "name") -> Json:
    """The item that is meant. `what` it is and what lists them are for the message if none fits, or several."""
    found = fitting(known, wanted, name)
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(f"{one[name]} ({one['id'][:13]})" for one in found)
        raise ClientFailed(f"{wanted!r} may be one of several: {several}. Say more of the id.")
    near = [one[name] for one in known if wanted and wanted.lower() in one[name].lower()]
    hint = f"Did you mean {shlex.quote(near[0])}?" if near else f"`{listing}` lists what there is."
    raise ClientFailed(f"There is no {what} {wanted!r}. {hint}")


def fitting(known: Sequence[Json], wanted: str, name: str = "name") -> list[Json]:
    """The items with that name; if there is none, with that name in another case; else whose id begins with it."""
    return (
        [one for one in known if one[name] == wanted]
        or [one for one in known if one[name].lower() == wanted.lower()]
        or [one for one in known if len(wanted) >= FEWEST_CHARACTERS and one["id"].startswith(wanted.lower())]
    )


def complete_names(incomplete: str) -> list[str]:
    return _completed(incomplete, lambda client: client.pages("/workspaces"))


def complete_deleted_names(incomplete: str) -> list[str]:
    return _completed(incomplete, deleted_workspaces)


def _completed(incomplete: str, known: Callable[[Client], Iterable[Json]]) -> list[str]:
    """The names for the shell's completion, which must never show an error."""
    try:
        with Client(contexts.in_use()) as client:
            return [ws["name"] for ws in known(client) if ws["name"].startswith(incomplete)]
    except Exception:  # noqa: BLE001 - whatever it is, the person is only typing
        return []


AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until it is done, and show progress.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_WHICH = {"metavar": "WORKSPACE", "help": "Name, id or beginning of an id."}
Which = Annotated[str, typer.Argument(autocompletion=complete_names, **_WHICH)]
WhichDeleted = Annotated[str, typer.Argument(autocompletion=complete_deleted_names, **_WHICH)]
