"""Somebody's work told from background messages, message by message, however the bytes are cut and framed."""

import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.proxy.presence.tap import AppPresence, IdePresence, ide_tap, may_be_activity
from codehub.proxy.websocket.frames import close_frame
from tests.proxy.recording.tape import header, masked
from tests.proxy.test_frames import cuts

MANAGEMENT, EXTENSION_HOST = 1, 2
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Message = tuple[int, bytes]
"""An outer frame's type, and what it carries."""

# ── VS Code's encodings, as far as they matter here ──────────────────────────────────────────────────────────────────


def handshake(kind: int) -> Message:
    return 2, b'{"type":"connectionType","commit":"%b","desiredConnectionType":%d}' % (COMMIT.encode(), kind)


def number(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return found + bytes((value,))


def integer(value: int) -> bytes:
    return b"\x06" + number(value)


def text(value: str, tag: bytes = b"\x01") -> bytes:
    return tag + number(len(value)) + value.encode()


def array(*items: bytes) -> bytes:
    return b"\x04" + number(len(items)) + b"".join(items)


def call(identity: int, channel: str, method: str, argument: bytes = b"\0") -> Message:
    return 1, array(integer(100), integer(identity), text(channel), text(method)) + argument


def subscription(identity: int, channel: str, event: str) -> Message:
    return 1, array(integer(102), integer(identity), text(channel), text(event)) + b"\0"


def undone(what: int, identity: int) -> Message:
    return 1, array(integer(what), integer(identity)) + b"\0"


def result(identity: int, carried: bytes = b"\0") -> Message:
    return 1, array(integer(201), integer(identity)) + carried


def event(identity: int, carried: bytes) -> Message:
    return 1, array(integer(204), integer(identity)) + carried


def request(method: str, arguments: str = "[]", kind: int = 1) -> Message:
    return 1, (
        bytes((kind,))
        + (7).to_bytes(4, "big")
        + bytes((98, len(method)))
        + method.encode()
        + len(arguments).to_bytes(4, "big")
        + arguments.encode()
    )


def reply(kind: int) -> Message:
    return 1, bytes((kind,)) + (7).to_bytes(4, "big")


def value(carried: object) -> bytes:
    return text(json.dumps(carried, separators=(",", ":")), b"\x05")


def uri(path: str) -> bytes:
    return array(
        text(json.dumps({"$mid": 1, "external": f"vscode-remote:{path}", "path": path}, separators=(",", ":")), b"\x05")
    )


def changed(path: str) -> bytes:
    return array(value({"resource": {"path": path}, "type": 0}))


OWN = "/home/coder/.local/share/code-server/User/workspaceStorage/-1a2b3c/state.json"
DATA = text('{"id":3,"event":"tick 2\\r\\n"}', b"\x05")
TITLE = text('{"id":3,"property":{"type":"title","value":"make"}}', b"\x05")

SILENT = [(kind, b"") for kind in (3, 5, 7, 8, 9)] + [(6, b"\0\0\0\1")]

MANAGEMENT_CLIENT: list[tuple[Message, bool]] = [
    (call(7, "telemetry", "ping"), False),
    (call(300, "telemetry", "logTelemetry", text('{"eventName":"x"}', b"\x05")), False),
    (call(8, "extensions", "getExtensionsControlManifest"), False),
    (call(9, "remoteterminal", "$updateTitle", array(integer(3), text("make"))), False),
    (call(10, "remoteFilesystem", "writeFile", uri(OWN)), False),
    (call(11, "remoteFilesystem", "stat", uri(OWN)), False),
    (undone(101, 7), False),
    (undone(103, 999), False),
    (call(70000, "remoteterminal", "$input", array(integer(3), text("e"))), True),
    (call(12, "remoteFilesystem", "writeFile", uri("/home/coder/notes.txt")), True),
    (call(13, "remoteFilesystem", "writeFile", uri("/home/coder/.local/share/code-server/User/settings.json")), True),
    (call(14, "extensions", "install"), True),
    (call(15, "a channel of a later version".replace(" ", "-"), "poll"), True),
    (subscription(16, "remoteFilesystem", "readFileStream"), True),
    ((1, b"\x04\x04\x06"), True),
    ((1, b"no such encoding"), True),
    ((1, b""), True),
]
MANAGEMENT_UPSTREAM: list[tuple[Message, bool]] = [
    (result(7), False),
    (result(70000, text("x" * 5000)), False),
    ((1, array(integer(202), integer(7)) + text('{"message":"no"}', b"\x05")), False),
    (event(21, changed(OWN)), False),
    (event(21, b"\x01\x05error"), False),
    (event(4000, changed("/home/coder/" + "d/" * 300 + "f")), False),  # subscribed to on another socket
    (event(4001, TITLE), False),
    (event(4002, DATA), True),
    (event(4003, array(text("resource"))), True),
    (event(4004, b"\0"), True),
    ((1, array(integer(205), integer(7)) + b"\0"), True),
    ((1, b"\xff" * 40), True),
]
EXTENSION_HOST_EITHER: list[tuple[Message, bool]] = [
    (request("$onFileEvent", '[{"created":[],"changed":[]}]'), False),
    (request("$onDidChangeWindowActive", "[false]"), False),
    (request("$executeCommand", '["_setContext",["operationInProgress",false],true]'), False),
    (request("$provideDecorations", "[2,[" + "x" * 6000 + "]]", kind=2), False),
    *((reply(kind), False) for kind in range(5, 13)),
    ((1, b"\x02"), False),
    (request("$onDidChangeWindowActive", "[true]"), True),
    (request("$executeCommand", '["workbench.action.files.save"]'), True),
    (request("$acceptModelChanged", '[{"$mid":1}]'), True),
    (request("$acceptTerminalInteraction", "[1]"), True),
    (request("$aMethodOfALaterVersion", kind=4), True),
    (reply(13), True),
    ((1, b"\x0d\0\0\0\0\0\0\0\0\0"), True),
]


def outer(message: Message, sequence: int = 1) -> bytes:
    kind, carried = message
    return bytes((kind,)) + sequence.to_bytes(4, "big") + bytes(4) + len(carried).to_bytes(4, "big") + carried


def from_browser(payload: bytes, key: bytes = b"\x81\x07\x66\x00") -> bytes:
    return header(0x82, len(payload), 0x80) + key + masked(payload, key)


def from_server(payload: bytes) -> bytes:
    return header(0x82, len(payload), 0) + payload


class Watched:
    """A tap of either kind, how often it told, and a clock that stands still unless moved."""

    def __init__(self, make: Callable[..., IdePresence | AppPresence] = IdePresence, rest: float = 0.0) -> None:
        self.told = 0
        self.now = 100.0
        resting = {"rest": rest} if make is IdePresence else {}
        self.tap = make(self._seen, clock=lambda: self.now, **resting)

    def _seen(self) -> None:
        self.told += 1

    def client(self, *messages: Message) -> int:
        before = self.told
        for message in messages:
            self.tap.from_client(from_browser(outer(message)))
        return self.told - before

    def upstream(self, *messages: Message) -> int:
        before = self.told
        for message in messages:
            self.tap.from_upstream(from_server(outer(message)))
        return self.told - before


def speaking(kind: int, rest: float = 0.0) -> Watched:
    watched = Watched(rest=rest)
    assert watched.client(handshake(kind)) == 0
    if kind == MANAGEMENT:
        assert watched.client(subscription(21, "remoteFilesystem", "fileChange")) == 0
    return watched


# ── one message at a time ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", range(len(MANAGEMENT_CLIENT)))
def test_calls(number: int) -> None:
    message, expected = MANAGEMENT_CLIENT[number]
    assert speaking(MANAGEMENT).client(message) == expected


@pytest.mark.parametrize("number", range(len(MANAGEMENT_UPSTREAM)))
def test_results_and_events(number: int) -> None:
    message, expected = MANAGEMENT_UPSTREAM[number]
    assert speaking(MANAGEMENT).upstream(message) == expected


@pytest.mark.parametrize("number", range(len(EXTENSION_HOST_EITHER)))
def test_requests_and_replies(number: int) -> None:
    message, expected = EXTENSION_HOST_EITHER[number]
    assert speaking(EXTENSION_HOST).client(message) == expected
    assert speaking(EXTENSION_HOST).upstream(message) == expected


@pytest.mark.parametrize("kind", [MANAGEMENT, EXTENSION_HOST])
def test_keeping_the_connection_alive_is_nobody_s_work(kind: int) -> None:
    watched = speaking(kind)
    assert watched.client(*SILENT, handshake(kind)) == 0
    assert watched.upstream(*SILENT, (2, b'{"type":"ok"}')) == 0


@pytest.mark.parametrize("kind", [0, 3])
def test_without_a_known_handshake_each_message_counts(kind: int) -> None:
    watched = Watched()
    watched.client(handshake(kind), (9, b""))
    assert watched.told == 0
    assert watched.client(call(7, "telemetry", "ping")) == 1
    assert watched.upstream(result(7)) == 1


def test_an_ended_subscription_is_forgotten() -> None:
    watched = speaking(MANAGEMENT)
    assert watched.upstream(event(21, b"\0")) == 0
    watched.client(undone(103, 21))
    assert watched.upstream(event(21, b"\0")) == 1


def test_only_so_many_subscriptions_are_remembered_and_the_newest_are() -> None:
    watched = speaking(MANAGEMENT)
    for identity in range(1000, 3000):
        watched.client(subscription(identity, "remoteFilesystem", "fileChange"))
    assert watched.upstream(event(2999, b"\0")) == 0
    assert watched.upstream(event(1000, b"\0")) == 1
    assert watched.upstream(event(1000, changed(OWN))) == 0
    assert isinstance(watched.tap, IdePresence)
    assert len(watched.tap._conversation._quiet) <= 32


def test_what_is_no_outer_frame_counts_from_then_on_either_way() -> None:
    watched = speaking(MANAGEMENT)
    assert watched.upstream((77, b"?")) == 1
    assert watched.client(call(7, "telemetry", "ping")) == 1
    assert watched.upstream(result(7)) == 1
    watched.tap.from_client(b"\x89\x80mask")
    assert watched.told == 3


# ── however it is cut ────────────────────────────────────────────────────────────────────────────────────────────────

CLIENT_MANAGEMENT = [*MANAGEMENT_CLIENT, *((message, False) for message in SILENT)]
UPSTREAM_MANAGEMENT = [*MANAGEMENT_UPSTREAM, *((message, False) for message in SILENT)]
EITHER_HOST = [*EXTENSION_HOST_EITHER, *((message, False) for message in SILENT)]


def framed(draw: st.DrawFn, stream: bytes, *, client: bool) -> bytes:
    """The stream as WebSocket messages that are cut anywhere, in frames that are too, with pings between them."""
    wire = bytearray()
    for piece in cuts(draw, stream, most=6):
        first = draw(st.sampled_from((0x82, 0x02, 0x80)))
        key = draw(st.binary(min_size=4, max_size=4))
        wire += (
            header(first, len(piece), 0x80) + key + masked(piece, key)
            if client
            else header(first, len(piece), 0) + piece
        )
        wire += draw(st.sampled_from((b"", b"\x89\x00", b"\x8a\x03abc")))
    return bytes(wire)


@given(st.data(), st.sampled_from((MANAGEMENT, EXTENSION_HOST)), st.booleans())
def test_any_cuts_and_frames_give_the_same_verdicts(data: st.DataObject, kind: int, client: bool) -> None:
    known = (CLIENT_MANAGEMENT if client else UPSTREAM_MANAGEMENT) if kind == MANAGEMENT else EITHER_HOST
    said = data.draw(st.lists(st.sampled_from(known), max_size=8))
    watched = speaking(kind)
    before = watched.told
    stream = b"".join(outer(message) for message, _ in said)
    wire = data.draw(st.composite(framed)(stream, client=client))
    for piece in data.draw(st.composite(cuts)(wire)):
        (watched.tap.from_client if client else watched.tap.from_upstream)(piece)
    assert watched.told - before == sum(expected for _, expected in said)


@given(st.data(), st.sampled_from((MANAGEMENT, EXTENSION_HOST)), st.booleans())
def test_resting_never_loses_the_place(data: st.DataObject, kind: int, client: bool) -> None:
    """Whatever passes while the tap rests, afterwards it tells quiet from loud as before."""
    known = (CLIENT_MANAGEMENT if client else UPSTREAM_MANAGEMENT) if kind == MANAGEMENT else EITHER_HOST
    watched = speaking(kind, rest=10.0)
    assert watched.client((1, b"?" * 30)) == 1
    said = data.draw(st.lists(st.sampled_from(known), max_size=8))
    feed = watched.tap.from_client if client else watched.tap.from_upstream
    if data.draw(st.booleans()):
        wire = data.draw(st.composite(framed)(b"".join(outer(message) for message, _ in said), client=client))
        for piece in data.draw(st.composite(cuts)(wire)):
            feed(piece)
    else:
        for message, _ in said:
            feed(from_browser(outer(message)) if client else from_server(outer(message)))
    assert watched.told == 1
    watched.now += 11.0
    assert watched.client((9, b""), handshake(kind)) == watched.upstream((9, b"")) == 0
    assert watched.client((1, b"?" * 30)) == 1
    watched.now += 11.0
    assert watched.upstream((1, b"?" * 30)) == 1


def test_a_subscription_made_while_it_rests_is_remembered() -> None:
    for filler in ("", "x" * 300):
        watched = speaking(MANAGEMENT, rest=10.0)
        assert watched.client((1, b"?" * 30)) == 1
        kind, carried = subscription(5000, "remoteFilesystem", "fileChange")
        watched.client((kind, carried + filler.encode()))
        watched.now += 11.0
        assert watched.upstream(event(5000, b"\0")) == 0


def test_one_message_over_many_frames_while_it_rests() -> None:
    """The IDE sends what is longer than 256 KiB in several messages: the second begins in the middle."""
    watched = speaking(MANAGEMENT, rest=10.0)
    watched.client((1, b"?" * 30))
    whole = outer(result(7, bytes(300_000)))
    watched.tap.from_upstream(from_server(whole[:262144]))
    watched.tap.from_upstream(from_server(whole[262144:]))
    watched.now += 11.0
    assert watched.upstream(result(8), (9, b"")) == 0
    assert watched.upstream(event(4002, DATA)) == 1


@pytest.mark.parametrize("client", [True, False])
@pytest.mark.parametrize(("first", "rest"), [(400, 65536), (400, 1 << 24)])
def test_a_frame_that_looks_whole_while_it_rests(client: bool, first: int, rest: int) -> None:
    """The length of a frame ends in the same digits as that of the message of which it holds only the beginning."""
    watched = speaking(EXTENSION_HOST, rest=10.0)
    assert watched.client((1, b"?" * 30)) == 1
    whole = outer((1, reply(9)[1] + bytes(first + rest - 5)))
    pieces = (whole[: 13 + first], whole[13 + first :])
    for piece in pieces:
        if client:
            watched.tap.from_client(from_browser(piece))
        else:
            watched.tap.from_upstream(from_server(piece))
    watched.now += 11.0
    says = watched.client if client else watched.upstream
    assert says(reply(9), (9, b"")) == 0
    assert says(request("$acceptModelChanged")) == 1


@pytest.mark.parametrize("client", [True, False])
@pytest.mark.parametrize("size", [60, 400])
@pytest.mark.parametrize("cut_at", [5, 13 + 30, 13 + 600])
def test_the_middle_of_a_message_that_looks_like_one(client: bool, size: int, cut_at: int) -> None:
    """Where a message would have its length, this piece of another's middle has its own."""
    watched = speaking(EXTENSION_HOST, rest=10.0)
    assert watched.client((1, b"?" * 30)) == 1
    whole = bytearray(outer((1, reply(9)[1] + bytes(cut_at + size - 13 - 5))))
    whole[cut_at + 9 : cut_at + 13] = (size - 13).to_bytes(4, "big")
    for piece in (bytes(whole[:cut_at]), bytes(whole[cut_at:])):
        if client:
            watched.tap.from_client(from_browser(piece))
        else:
            watched.tap.from_upstream(from_server(piece))
    watched.now += 11.0
    says = watched.client if client else watched.upstream
    assert says(reply(9), (9, b""), reply(9)) == 0
    assert says(request("$acceptModelChanged")) == 1


def test_it_tells_once_and_then_rests() -> None:
    watched = speaking(MANAGEMENT, rest=10.0)
    key = call(70, "remoteterminal", "$input", array(integer(3), text("e")))
    assert watched.client(key, key, key) == 1
    watched.now += 9.0
    assert watched.client(key) == watched.upstream(event(4002, DATA)) == 0
    watched.now += 2.0
    assert watched.upstream(event(4002, DATA)) == 1


# ── garbage, and bounds ──────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=200)), max_size=20))
def test_garbage_never_raises(pieces: list[tuple[bool, bytes]]) -> None:
    for watched in (speaking(MANAGEMENT), Watched(AppPresence)):
        for client, piece in pieces:
            (watched.tap.from_client if client else watched.tap.from_upstream)(piece)


@given(st.binary(min_size=1, max_size=200).filter(lambda payload: payload[0] not in (1, 2, 3, 5, 6, 7, 8, 9)))
def test_garbage_in_frames_counts(payload: bytes) -> None:
    for feed_client in (True, False):
        watched = speaking(EXTENSION_HOST)
        for _ in range(3):
            if feed_client:
                watched.tap.from_client(from_browser(payload))
            else:
                watched.tap.from_upstream(from_server(payload))
        assert watched.told == 3


def test_what_is_no_frame_counts() -> None:
    watched = speaking(MANAGEMENT)
    watched.tap.from_upstream(b"HTTP/1.1 200 OK\r\n\r\n")
    watched.tap.from_upstream(b"more")
    assert watched.told == 2
    assert not watched.tap.at_boundary


def test_a_tap_is_small_and_stays_so() -> None:
    tracemalloc.start()
    taps = [IdePresence(lambda: None) for _ in range(20)]
    idle = tracemalloc.get_traced_memory()[0] / len(taps)
    for tap in taps:
        tap.from_client(from_browser(outer(handshake(MANAGEMENT))))
        for identity in range(60):
            tap.from_client(from_browser(outer(subscription(identity, "remoteFilesystem", "fileChange"))))
        tap.from_client(from_browser(outer(call(7, "remoteFilesystem", "writeFile", b"x" * 10_000)))[:9_000])
        tap.from_upstream(from_server(outer(result(7, bytes(300))))[:200])
    used = tracemalloc.get_traced_memory()[0] / len(taps)
    tracemalloc.stop()
    assert idle < 2_500
    assert used < 8_000


# ── apps, requests, and where a frame of ours may go ─────────────────────────────────────────────────────────────────


def test_any_new_message_to_an_app_counts_and_none_from_it() -> None:
    watched = Watched(AppPresence)
    for first, letter in ((0x81, b"a"), (0x82, b"b"), (0x01, b"c"), (0x80, b"d")):
        watched.tap.from_client(header(first, 1, 0x80) + b"mask" + masked(letter, b"mask"))
        watched.tap.from_upstream(header(first, 1, 0) + letter)
    assert watched.told == 4
    for first in (0x89, 0x8A, 0x88):
        watched.tap.from_client(header(first, 3, 0x80) + b"mask" + b"abc")
    watched.tap.from_upstream(b"no frame at all")
    assert watched.told == 4


def said(watched: Watched, payload: bytes, *, client: bool = True) -> int:
    before = watched.told
    if client:
        watched.tap.from_client(from_browser(payload))
    else:
        watched.tap.from_upstream(from_server(payload))
    return watched.told - before


def test_a_message_to_an_app_at_a_steady_period_counts_a_few_times() -> None:
    watched = Watched(AppPresence)
    verdicts = []
    for _ in range(20):
        watched.now += 30.0
        verdicts.append(said(watched, b'{"type":"ping"}'))
    assert verdicts == [1, 1, 1, 1] + [0] * 16
    assert said(watched, b'{"type":"other"}') == 1


def test_a_counter_or_a_time_in_a_message_makes_no_other_message_of_it() -> None:
    watched = Watched(AppPresence)
    verdicts = []
    for number in range(20):
        watched.now += 30.0
        verdicts.append(said(watched, b'{"id":"a%df","at":"2026-11-16T06:%02d:00.5Z","do":"ping"}' % (number, number)))
    assert sum(verdicts) == 4


@given(st.data())
def test_any_cuts_of_messages_to_an_app_give_the_same_verdicts(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.sampled_from((b"", b"ping", b"x" * 255, b"y" * 256, b"z" * 70_000)), max_size=8))
    whole, cut = Watched(AppPresence), Watched(AppPresence)
    for payload in payloads:
        whole.tap.from_client(from_browser(payload))
    for piece in data.draw(st.composite(cuts)(b"".join(from_browser(payload) for payload in payloads))):
        cut.tap.from_client(piece)
    assert cut.told == whole.told


def test_what_an_ide_sends_counts_unless_it_is_the_very_same_at_a_steady_period() -> None:
    watched = Watched(lambda seen, **more: AppPresence(seen, output=True, **more))
    told = [0, 0]
    for number in range(20):
        watched.now += 10.0
        told[0] += said(watched, b'["stdout","tick %d"]' % number, client=False)
        watched.now += 1.0
        told[1] += said(watched, b'["status","idle"]', client=False)
    assert told == [20, 4]


@pytest.mark.parametrize(
    ("target", "made"),
    [
        (f"/stable-{COMMIT}?reconnectionToken=1&reconnection=false", IdePresence),
        (f"/oss-{COMMIT}?a=b&reconnectionToken=1", IdePresence),
        ("/api/kernels/1/channels?session_id=2", AppPresence),
        ("/terminals/websocket/1", AppPresence),
    ],
)
def test_only_sockets_of_vs_code_are_read_as_such(target: str, made: type[IdePresence | AppPresence]) -> None:
    """A kernel's first byte is one of VS Code's types: read as VS Code, nobody at work in a notebook would be seen."""
    assert type(ide_tap(target.encode(), lambda: None)) is made


def test_an_app_s_tap_is_small_and_stays_so() -> None:
    tracemalloc.start()
    taps = [AppPresence(lambda: None, output=True) for _ in range(20)]
    for tap in taps:
        for number in range(400):
            tap.from_client(from_browser(bytes((97 + number % 23,)) * 300))
            tap.from_upstream(from_server(bytes((97 + number % 23,)) * 300))
        tap.from_client(from_browser(b"x" * 10_000)[:9_000])
    used = tracemalloc.get_traced_memory()[0] / len(taps)
    tracemalloc.stop()
    assert used < 16_000


@pytest.mark.parametrize("make", [IdePresence, AppPresence])
def test_it_knows_where_a_frame_of_ours_may_go(make: Callable[..., IdePresence | AppPresence]) -> None:
    tap = make(lambda: None)

    def after(piece: bytes) -> bool:
        tap.from_upstream(piece)
        return tap.at_boundary

    wire = from_server(outer(event(4002, DATA)))
    for _ in range(3):
        assert [after(piece) for piece in (wire[:1], wire[1:-1], wire[-1:] + wire, wire)] == [False, False, True, True]
    tap.from_client(b"\x82")
    assert tap.at_boundary
    assert not after(close_frame(1000))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/", True),
        ("/?folder=/home/coder", True),
        ("/proxy/8080/", True),
        (f"/stable-{COMMIT}/vscode-remote-resource?path=%2Fhome%2Fcoder%2Fcat.png", True),
        ("/_staticky", True),
        ("/healthzz", True),
        ("/stable-0/static/x.js", True),
        (f"/stable-{COMMIT}/static/out/vs/code/browser/workbench/workbench.js", False),
        (f"/stable-{COMMIT}?reconnectionToken=1&reconnection=true&skipWebSocketFrames=false", False),
        ("/_static/out/browser/serviceWorker.js", False),
        ("/healthz", False),
        ("/manifest.json", False),
        ("/mint-key", False),
        ("/update/check", False),
        ("/update/check?force=1", False),
    ],
)
def test_requests(target: str, expected: bool) -> None:
    assert may_be_activity(b"GET", target.encode()) == expected
