"""POST /workspaces/{id}/exec: a command of one's own workspace, streamed, audited, and ended with the right to it."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory.runtime import Container
from codehub.api import commands
from codehub.domain.identity import Role, Scope
from codehub.domain.workspace import Phase
from codehub.ports.exec import OutputStream
from tests.api.memory_api import ApiUser, MemoryApi
from tests.eventually import eventually


async def running(api: MemoryApi, owner: ApiUser, name: str = "demo") -> str:
    """A workspace that runs."""
    ws = await owner.create(name)
    api.controller_writes(ws["id"], phase=Phase.RUNNING)
    api.backends.runtime.state.containers[UUID(ws["id"])] = Container("run-1", "home")
    return f"/api/v1/workspaces/{ws['id']}/exec"


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(one) for one in text.splitlines()]


class Stream:
    """One request, straight on the ASGI app, whose answer is seen as it comes. `leave` closes its connection."""

    def __init__(self, api: MemoryApi, path: str, authorization: str, body: dict[str, Any]) -> None:
        self.text = b""
        self.leave = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        headers = [(b"authorization", authorization.encode()), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "server": ("hub.test", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
        }
        self.task = asyncio.ensure_future(api.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.text += message.get("body", b"")


async def test_what_it_says_and_how_it_ends_are_lines(api: MemoryApi, ann: ApiUser) -> None:
    path = await running(api, ann)
    answer = await ann.http.post(path, json={"argv": ["sh", "-c", "echo 안녕; echo err >&2; exit 3"]})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == commands.LINES_TYPE
    assert lines(answer.text) == [
        {"stream": "stdout", "text": "안녕\n"},
        {"stream": "stderr", "text": "err\n"},
        {"exit_code": 3, "signal": None},
    ]


async def test_input_variables_and_directory_are_the_caller_s(api: MemoryApi, ann: ApiUser) -> None:
    path = await running(api, ann)
    said = lines((await ann.http.post(path, json={"argv": ["cat"], "stdin": "typed"})).text)
    assert said == [{"stream": "stdout", "text": "typed"}, {"exit_code": 0, "signal": None}]
    told = {"argv": ["printenv", "A"], "env": {"A": "b"}}
    assert lines((await ann.http.post(path, json=told)).text)[0]["text"] == "b\n"
    assert lines((await ann.http.post(path, json={"argv": ["pwd"], "cwd": "/tmp"})).text)[0]["text"] == "/tmp\n"


async def test_a_signal_is_named(api: MemoryApi, ann: ApiUser) -> None:
    answer = await ann.http.post(await running(api, ann), json={"argv": ["sh", "-c", "kill -TERM $$"]})
    assert lines(answer.text) == [{"exit_code": 143, "signal": "TERM"}]


def test_text_is_cut_between_characters_and_bytes_are_base64() -> None:
    stream = commands.TextStream(OutputStream.STDOUT)
    korean = "가".encode()
    assert stream.lines(b"a" + korean[:2]) == [commands.line({"stream": "stdout", "text": "a"})]
    assert stream.lines(korean[2:]) == [commands.line({"stream": "stdout", "text": "가"})]
    assert stream.lines(b"\xff\xfe") == [commands.line({"stream": "stdout", "base64": "//4="})]
    assert stream.lines(korean[:1]) == []
    assert stream.rest() == [commands.line({"stream": "stdout", "base64": "6g=="})]


async def test_one_that_sleeps_is_not_woken(api: MemoryApi, ann: ApiUser) -> None:
    ws = await ann.create(desired_state="STANDBY")
    answer = await ann.http.post(f"/api/v1/workspaces/{ws['id']}/exec", json={"argv": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_running")
    assert (await ann.http.get(f"/api/v1/workspaces/{ws['id']}")).json()["desired_state"] == "STANDBY"


@pytest.mark.parametrize("argv", [[], ["\0"], [""], ["\ud800"]])
async def test_what_is_no_command_is_refused(api: MemoryApi, ann: ApiUser, argv: list[str]) -> None:
    path = await running(api, ann)
    answer = await ann.http.post(path, content=json.dumps({"argv": argv}), headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)


async def test_each_command_is_audited_and_its_content_is_not(api: MemoryApi, ann: ApiUser) -> None:
    path = await running(api, ann)
    await ann.http.post(path, json={"argv": ["echo", "a b"], "stdin": "content", "env": {"A": "value"}})
    entry = next(one for one in api.backends.database.state.accounts.audit if one.action == "exec")
    assert (entry.actor, entry.details["command"]) == (ann.name, "echo 'a b'")
    assert entry.details["credential"].startswith("token:")
    assert "content" not in repr(entry)
    assert "value" not in repr(entry)


async def test_an_admin_may_and_another_person_and_a_reading_token_may_not(api: MemoryApi, ann: ApiUser) -> None:
    path = await running(api, ann)
    admin, ben = await api.person("root", Role.ADMIN), await api.person("ben")
    reader = await api.person("ann", scopes=frozenset({Scope.READ}))
    answers = [await one.http.post(path, json={"argv": ["true"]}) for one in (admin, ben, reader)]
    assert [answer.status_code for answer in answers] == [200, 404, 403]


async def test_it_counts_as_activity(api: MemoryApi, ann: ApiUser) -> None:
    path = await running(api, ann)
    key = UUID(path.split("/")[4])
    before = api.rows[key].last_access_at
    await ann.http.post(path, json={"argv": ["sleep", "0.05"]})
    after = api.rows[key].last_access_at
    assert after is not None
    assert before is None or after > before


async def test_it_ends_when_its_token_is_revoked(api: MemoryApi, ann: ApiUser) -> None:
    stream = await endless(api, ann)
    [token] = (await ann.http.get("/api/v1/tokens")).json()["items"]
    assert (await ann.http.delete(f"/api/v1/tokens/{token['id']}")).status_code == 204
    with pytest.raises(RuntimeError, match="response already started"):  # the server breaks the connection
        await asyncio.wait_for(stream.task, 10)
    assert b"exit_code" not in stream.text
    assert await are_closed(api)


async def test_it_ends_when_its_caller_leaves(api: MemoryApi, ann: ApiUser) -> None:
    stream = await endless(api, ann)
    stream.leave.set()
    await asyncio.wait_for(stream.task, 10)
    assert await are_closed(api)


async def test_a_long_silence_has_empty_lines(api: MemoryApi, ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "HEARTBEAT_SECONDS", 0.01)
    stream = await endless(api, ann)

    async def is_kept_open() -> bool:
        return stream.text.endswith(b"\n\n")

    await eventually(is_kept_open)
    stream.leave.set()
    await stream.task


async def test_a_stop_is_told(api: MemoryApi, ann: ApiUser) -> None:
    stream = await endless(api, ann)
    [container] = api.backends.runtime.state.containers.values()
    container.end()
    await asyncio.wait_for(stream.task, 10)
    assert lines(stream.text.decode())[-1]["error"] == "interrupted"


async def test_a_person_has_so_many_at_once(api: MemoryApi, ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.app.state.commands, "_most", 1)
    stream = await endless(api, ann)
    path = await running(api, ann, "other")
    answer = await ann.http.post(path, json={"argv": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (429, "command_limit")
    stream.leave.set()
    await stream.task
    assert (await ann.http.post(path, json={"argv": ["true"]})).status_code == 200


async def endless(api: MemoryApi, owner: ApiUser) -> Stream:
    """A command that does not end by itself, and has begun."""
    body = {"argv": ["sh", "-c", "echo begun; sleep 600"]}
    stream = Stream(api, await running(api, owner), owner.http.headers["authorization"], body)

    async def has_begun() -> bool:
        return b"begun" in stream.text

    await eventually(has_begun)
    return stream


async def are_closed(api: MemoryApi) -> bool:
    containers = api.backends.runtime.state.containers.values()
    return all(session._ended.done() for container in containers for session in container.sessions)
