"""The answers that the proxy gives by itself, and the date they carry."""

import json
import time
from http import HTTPStatus

from codehub.proxy.access.verdicts import Cap, Header, Respond, UpstreamFailure

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_FAILURES = {
    UpstreamFailure.UNREACHABLE: (
        502,
        "The workspace does not answer. It may be starting or stopping: try again shortly.",
    ),
    UpstreamFailure.BUSY: (
        503,
        "The workspace has as many connections as it may. Close some of its tabs and try again.",
    ),
    UpstreamFailure.CLOSED_EARLY: (502, "The workspace closed the connection before it answered. Try again."),
    UpstreamFailure.GARBAGE: (502, "What answered is not an HTTP server, or one that breaks the rules of HTTP."),
    UpstreamFailure.TOO_SLOW: (504, "The workspace took too long to answer. It may be busy: try again shortly."),
}


_CAPS = {
    Cap.ALL: (503, "The front door has as many connections as it may. Try again shortly."),
    Cap.ADDRESS: (429, "Too many connections are open from your address. Close some, and try again shortly."),
    Cap.PERSON: (429, "You have too many connections open. Close some tabs, and try again shortly."),
}


def problem(status: int, detail: str, code: str | None = None) -> Respond:
    title = _REASONS.get(status, b"Error").decode()
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    if code is not None:
        body["code"] = code
    return Respond(
        status,
        ((b"Content-Type", b"application/problem+json"), (b"Cache-Control", b"no-store")),
        json.dumps(body).encode() + b"\n",
    )


def failure_problem(failure: UpstreamFailure) -> Respond:
    status, detail = _FAILURES[failure]
    return problem(status, detail, failure.value)


def overload_problem(cap: Cap) -> Respond:
    status, detail = _CAPS[cap]
    return problem(status, detail, cap.value)


def serialised(answer: Respond, date: bytes, request_id: bytes, *, body: bool, close: bool) -> bytes:
    lines = [b"HTTP/1.1 %d %b" % (answer.status, _REASONS.get(answer.status, b"")), date]
    lines += [name + b": " + value for name, value in answer.headers]
    if answer.status not in (204, 304):
        lines.append(b"Content-Length: %d" % len(answer.body))
    if request_id:
        lines.append(b"X-Request-Id: " + request_id)
    if close:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    head = b"\r\n".join(lines)
    return head + answer.body if body and answer.status not in (204, 304) else head


def date_line(seconds: float) -> bytes:
    at = time.gmtime(seconds)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
    return f"Date: {day}, {at.tm_mday:02} {month} {at.tm_year} {clock} GMT".encode()


def redirect(to: str, headers: tuple[Header, ...] = ()) -> Respond:
    """A redirect to an address that was made from settings and checked paths, never from what a client sent."""
    ours = ((b"Location", to.encode()), (b"Cache-Control", b"no-store"), (b"Referrer-Policy", b"no-referrer"))
    return Respond(303, (*ours, *headers))
