"""Restore points over HTTP: browsed and downloaded, with names that are no text and names that would escape."""

import asyncio
import io
import os
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
import zstandard

from codehub.adapters.memory.archives import StoredArchive, StoredEntry
from codehub.adapters.memory.fault_injection import Network
from codehub.api.restore_points import MOST_DOWNLOADS, MOST_LISTINGS, disposition
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Role
from codehub.domain.judge import ArchiveState
from codehub.ports.archives import EntryKind
from tests.api.memory_api import ApiUser, Backends, MemoryApi, memory_api
from tests.rows import OP_ID, broken

T = TypeVar("T")
HOME = {
    b"read me.txt": b"hello",
    b"project/a.py": b"print()",
    b"project/\xff\xfe": b"no text",
    b"\xed\x95\x9c\xea\xb8\x80.txt": b"korean",
    b'quote"\r\nSet-Cookie: x=y.txt': b"sly",
}


@pytest.fixture
async def point(api: MemoryApi, ann: ApiUser) -> str:
    """The address of a restore point of Ann's."""
    made = await ann.create(desired_state="PENDING")
    workspace_id, now = UUID(made["id"]), datetime.now(UTC)
    key = f"{workspace_id}/{OP_ID}/home.tar.zst"
    api.backends.database.state.points[workspace_id] = [
        RestorePoint(workspace_id, OP_ID, key, 1, 1, "0" * 64, now, now)
    ]
    entries = {name: StoredEntry(EntryKind.FILE, content) for name, content in HOME.items()}
    entries[b"project"] = StoredEntry(EntryKind.FOLDER)
    entries[b"link"] = StoredEntry(EntryKind.LINK, target=b"/etc/passwd")
    stored = StoredArchive((), now, committed=True)
    stored.home = entries
    api.backends.archives.state.objects[key] = stored
    return f"/api/v1/workspaces/{workspace_id}/archives/{OP_ID}"


async def test_the_list_marks_the_restore_point_that_the_home_stands_on(
    api: MemoryApi, ann: ApiUser, point: str
) -> None:
    rows, workspace_id = api.backends.database.state.rows, UUID(point.split("/")[4])
    for key, marked in ((f"{workspace_id}/{OP_ID}/home.tar.zst", True), (None, False)):
        rows[workspace_id] = replace(rows[workspace_id], archive_key=key)
        [found] = (await ann.http.get(point.rpartition("/")[0])).json()["items"]
        assert (found["op_id"], found["is_present"], found["bytes"]) == (str(OP_ID), marked, 1)


async def test_a_folder_is_listed_and_each_entry_can_be_fetched(ann: ApiUser, point: str) -> None:
    listed: dict[str, Any] = {}
    for folder in ("", "?path=project"):
        tree = await ann.http.get(f"{point}/tree{folder}")
        assert tree.status_code == 200, tree.text
        listed |= {entry["path"]: entry for entry in tree.json()["entries"]}
    assert {entry["kind"] for entry in listed.values()} == {"file", "folder", "link"}
    fetched = {
        (await ann.http.get(f"{point}/content?path={path}")).content
        for path, entry in listed.items()
        if entry["kind"] == "file"
    }
    assert fetched == set(HOME.values())


async def test_a_folder_comes_in_pages(ann: ApiUser, point: str) -> None:
    whole = (await ann.http.get(f"{point}/tree")).json()
    assert whole["next_cursor"] is None
    pages: list[dict[str, Any]] = []
    cursor: str | None = None
    while not pages or cursor:
        answer = await ann.http.get(f"{point}/tree", params={"limit": 4} | ({"cursor": cursor} if cursor else {}))
        pages.append(answer.json())
        cursor = pages[-1]["next_cursor"]
    assert [len(page["entries"]) for page in pages] == [4, 1]
    assert [entry for page in pages for entry in page["entries"]] == whole["entries"]
    exact = await ann.http.get(f"{point}/tree", params={"limit": 5})
    assert exact.json() == whole


async def test_a_page_of_a_folder_is_one_that_was_given(ann: ApiUser, point: str) -> None:
    cursor = (await ann.http.get(f"{point}/tree", params={"limit": 1})).json()["next_cursor"]
    elsewhere = await ann.http.get(f"{point}/tree", params={"path": "project", "cursor": cursor})
    assert elsewhere.json()["errors"][0]["field"] == "cursor"
    for query in ({"cursor": "x"}, {"limit": 0}, {"limit": 1001}):
        assert (await ann.http.get(f"{point}/tree", params=query)).status_code == 422


async def test_one_person_has_so_many_downloads_at_once(
    api: MemoryApi, ann: ApiUser, bob: ApiUser, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, reading = asyncio.Event(), asyncio.Semaphore(0)
    contents: Any = type(api.parts.contents)
    plain = contents.content

    @asynccontextmanager
    async def slowly(self: Any, *what: Any, **how: Any) -> AsyncIterator[Any]:
        reading.release()
        await go_on.wait()
        async with plain(self, *what, **how) as content:
            yield content

    monkeypatch.setattr(contents, "content", slowly)
    url = f"{point}/content?path=project/a.py"
    first = [asyncio.ensure_future(ann.http.get(url)) for _ in range(MOST_DOWNLOADS)]
    async with asyncio.timeout(10):
        for _ in first:
            await reading.acquire()
        refused = await ann.http.get(url)
    assert (refused.status_code, refused.json()["code"]) == (429, "download_limit")
    assert int(refused.headers["retry-after"]) > 0
    go_on.set()
    assert [answer.content for answer in await asyncio.gather(*first)] == [b"print()"] * 4
    assert (await ann.http.get(f"{point}/content?path=nothing")).status_code == 404
    for _ in range(MOST_DOWNLOADS + 1):
        assert (await ann.http.get(url)).status_code == 200


async def test_one_person_lists_so_many_folders_at_once(
    api: MemoryApi, ann: ApiUser, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, reading = asyncio.Event(), asyncio.Semaphore(0)
    contents: Any = type(api.parts.contents)
    plain = contents.tree

    async def slowly(self: Any, *what: Any, **how: Any) -> Any:
        reading.release()
        await go_on.wait()
        return await plain(self, *what, **how)

    monkeypatch.setattr(contents, "tree", slowly)
    first = [asyncio.ensure_future(ann.http.get(f"{point}/tree")) for _ in range(MOST_LISTINGS)]
    async with asyncio.timeout(10):
        for _ in first:
            await reading.acquire()
        refused = await ann.http.get(f"{point}/tree")
    assert (refused.status_code, refused.json()["code"]) == (429, "listing_limit")
    assert int(refused.headers["retry-after"]) > 0
    admin = await api.person("root", Role.ADMIN)
    theirs = asyncio.ensure_future(admin.http.get(f"{point}/tree"))
    async with asyncio.timeout(10):
        await reading.acquire()
    go_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*first, theirs)} == {200}
    for _ in range(MOST_LISTINGS + 1):
        assert (await ann.http.get(f"{point}/tree?path=nothing")).status_code == 404
    assert (await ann.http.get(f"{point}/tree")).status_code == 200


async def test_a_download_is_saved_and_never_shown(ann: ApiUser, point: str) -> None:
    got = await ann.http.get(f"{point}/content", params={"path": "read me.txt"})
    assert (got.content, got.headers["content-length"]) == (b"hello", "5")
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-disposition"] == (
        "attachment; filename=\"read me.txt\"; filename*=UTF-8''read%20me.txt"
    )


async def test_a_folder_is_a_tar(ann: ApiUser, point: str) -> None:
    got = await ann.http.get(f"{point}/content", params={"path": "project"})
    assert b"ustar" in got.content
    assert "project.tar" in got.headers["content-disposition"]


async def test_the_whole_is_given_as_it_is_stored(ann: ApiUser, bob: ApiUser, point: str) -> None:
    got = await ann.http.get(f"{point}/original")
    assert (got.headers["content-type"], got.headers["content-length"]) == (
        "application/octet-stream",
        str(len(got.content)),
    )
    assert "home.tar.zst" in got.headers["content-disposition"]
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompressobj().decompress(got.content))) as tar:
        assert {b"project", *HOME} <= {os.fsencode(name) for name in tar.getnames()}
    assert (await bob.http.get(f"{point}/original")).status_code == 404


@pytest.mark.parametrize(
    "name", ['a"b', "a\r\nX: y", "../../etc/passwd", "한글", "\udcff", "a;b", "%0d%0a", "", "x" * 5000, "a\\b", "\x00"]
)
def test_no_name_gets_out_of_its_header(name: str) -> None:
    header = disposition(name)
    header.encode("ascii")
    assert header.count('"') == 2
    assert not set("\r\n\x00\\") & set(header)
    assert header.startswith('attachment; filename="')
    plain = header.split('"')[1]
    assert "/" not in plain
    assert plain.strip(" .") or plain == "file" or set(plain) <= {"_", "."}


@pytest.mark.parametrize("path", ["nothing", "../secret", "/etc/passwd", "project/../read me.txt", "read me.txt/x"])
async def test_what_is_not_inside_is_not_there(ann: ApiUser, point: str, path: str) -> None:
    assert (await ann.http.get(f"{point}/content", params={"path": path})).status_code in (404, 422)


async def test_a_link_has_no_content_and_nul_no_place(ann: ApiUser, point: str) -> None:
    assert (await ann.http.get(f"{point}/content?path=link")).status_code == 422
    assert (await ann.http.get(f"{point}/content?path=a%00b")).json()["errors"][0]["field"] == "path"
    assert (await ann.http.get(f"{point}/tree?path={'a' * 5000}")).status_code == 422
    assert (await ann.http.get(f"{point}/tree", params={"path": "read me.txt"})).status_code == 422


async def test_a_point_of_another_workspace_is_not_there(
    api: MemoryApi, ann: ApiUser, bob: ApiUser, point: str
) -> None:
    theirs = await bob.create(desired_state="PENDING")
    mixed = f"/api/v1/workspaces/{theirs['id']}/archives/{OP_ID}/tree"
    assert (await bob.http.get(mixed)).status_code == 404
    assert (await bob.http.get(f"{point}/tree")).status_code == 404
    assert (await ann.http.get(point.replace(str(OP_ID), str(uuid4())) + "/tree")).status_code == 404


async def test_a_damaged_archive_is_said_and_not_our_fault(api: MemoryApi, ann: ApiUser, point: str) -> None:
    for stored in api.backends.archives.state.objects.values():
        stored.state = ArchiveState.CORRUPTED
    got = await ann.http.get(f"{point}/tree")
    assert (got.status_code, got.json()["code"]) == (502, "backend_failed")


async def test_restoring_names_a_restore_point_of_one_s_own(api: MemoryApi, ann: ApiUser, point: str) -> None:
    workspace = point.partition("/archives")[0]
    missing = await ann.http.post(f"{workspace}/restore", json={"archive": str(uuid4())})
    assert missing.status_code == 404
    accepted = await ann.http.post(f"{workspace}/restore", json={"archive": str(OP_ID)})
    assert accepted.status_code == 202
    row = api.rows[UUID(workspace.rsplit("/", 1)[1])]
    assert row.restore_pending
    assert row.restore_from is not None
    assert str(OP_ID) in row.restore_from


async def test_nobody_goes_back_to_a_restore_point_that_is_not_there(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create(desired_state="PENDING")
    wrong = broken(api.rows[UUID(made["id"])])
    api.controller_writes(made["id"], phase=wrong.phase, error_info=wrong.error_info, error_reason=wrong.error_reason)
    answer = await ann.http.post(f"/api/v1/workspaces/{made['id']}/recover", json={"action": "use_archive"})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_restore_point")
    assert not api.rows[UUID(made["id"])].recover_pending


class CountingNetwork(Network):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        self.calls[name] += 1
        return await super().call(name, effect, about)


@pytest.mark.parametrize("what", ["", f"/{OP_ID}/tree", f"/{OP_ID}/content?path=who", f"/{OP_ID}/original"])
async def test_a_request_reads_the_workspace_and_its_restore_points_once(what: str) -> None:
    network = CountingNetwork()
    async with memory_api(Backends.fresh(network)) as api:
        ann = await api.person("ann")
        workspace_id, now = UUID((await ann.create(desired_state="PENDING"))["id"]), datetime.now(UTC)
        key = f"{workspace_id}/{OP_ID}/home.tar.zst"
        point = RestorePoint(workspace_id, OP_ID, key, 1, 1, "0" * 64, now, now)
        api.backends.database.state.points[workspace_id] = [point]
        home = {b"who": StoredEntry(EntryKind.FILE, b"ann")}
        api.backends.archives.state.objects[key] = StoredArchive((), now, committed=True, home=home)
        for _ in range(2):  # the first download makes the process listen for revoked access, which asks once more
            network.calls.clear()
            assert (await ann.http.get(f"/api/v1/workspaces/{workspace_id}/archives{what}")).status_code == 200
    reads = {name: count for name, count in network.calls.items() if name.startswith("views.")}
    assert reads == {"views.some": 1, "views.restore_points": 1}
