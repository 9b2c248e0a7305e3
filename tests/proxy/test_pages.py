"""The pages as bytes: everything is text, the policy forbids the rest, and a program gets what a program can use."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from uuid import UUID

import pytest

from codehub.domain.access import access_to
from codehub.domain.workspace import Desired, Operation, Phase, Progress, Workspace
from codehub.proxy.access.verdicts import Respond, UpstreamFailure
from codehub.proxy.pages.content import (
    PageModel,
    failure_page,
    limit_page,
    no_listener_page,
    not_found_page,
    signed_out_page,
    unavailable_page,
    workspace_page,
)
from codehub.proxy.pages.render import POLICY, answer, asset, page, sign_in_page, state
from codehub.proxy.pages.texts import Language
from tests import rows

NASTY = "<img src=x onerror=alert(1)>\"'&{name}"
HTML = b"text/html,application/xhtml+xml,*/*;q=0.8"


class Read(HTMLParser):
    """The elements of a document, their attributes, and its text."""

    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def row(**changes: object) -> Workspace:
    return rows.with_home(name=NASTY, **changes)


def shown(workspace: Workspace) -> PageModel:
    return workspace_page(
        workspace, access_to(workspace), Language.ENGLISH, wakes=False, public_url="https://hub.example"
    )


def header(answered: Respond, name: bytes) -> bytes | None:
    return dict(answered.headers).get(name)


VIEWS = {
    "asleep": shown(row(desired_state=Desired.STANDBY)),
    "restoring": shown(
        rows.busy(
            replace(rows.archived(desired_state=Desired.RUNNING), name=NASTY),
            Operation.RESTORING,
            op_progress=Progress(1, 1, 2),
        )
    ),
    "error": shown(rows.broken(row(), error_info=rows.error_info(message=NASTY))),
    "limit": limit_page(
        row(), [rows.workspace(id=UUID(int=1), name=NASTY, desired_state=Desired.RUNNING)], Language.ENGLISH
    ),
    "unreachable": failure_page(UpstreamFailure.UNREACHABLE, Language.ENGLISH, NASTY),
    "no_listener": no_listener_page(3000, NASTY, Language.ENGLISH),
    "signed_out": signed_out_page(Language.ENGLISH, f"/signin?next={NASTY}"),
    "not_found": not_found_page(Language.ENGLISH),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    plain = Read(page(replace(VIEWS[name], title="a", text="b", detail="c", report="d"), Language.ENGLISH).body)
    read = Read(page(VIEWS[name], Language.ENGLISH).body)
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in plain.elements]
    assert VIEWS[name].title in read.text
    assert VIEWS[name].text in read.text
    assert VIEWS[name].report in read.text
    main = dict(read.all("main")[0])
    assert json.loads(main["data-view"] or "") == json.loads(state(VIEWS[name]).body)


@pytest.mark.parametrize("name", [*VIEWS, "sign_in"])
def test_document_brings_nothing_of_its_own_to_run(name: str) -> None:
    made = sign_in_page(Language.ENGLISH, NASTY) if name == "sign_in" else page(VIEWS[name], Language.ENGLISH)
    read = Read(made.body)
    for tag, attributes in read.elements:
        assert tag not in ("style", "iframe", "object", "base")
        assert not [each for each in attributes if each.startswith("on") or each in ("style", "srcdoc")]
        assert not (attributes.get("href") or "").startswith("javascript:")
    assert [script["type"] for script in read.all("script")] == ["module"]
    assert all((script["src"] or "").startswith("/_codehub/") for script in read.all("script"))
    assert header(made, b"Content-Security-Policy") == POLICY
    assert header(made, b"Cache-Control") == b"no-store"
    assert header(made, b"X-Content-Type-Options") == b"nosniff"
    assert header(made, b"Referrer-Policy") == b"same-origin"


def test_policy_allows_our_own_files_and_no_more() -> None:
    rules = dict(rule.strip().split(b" ", 1) for rule in POLICY.split(b";"))
    assert rules[b"default-src"] == rules[b"base-uri"] == rules[b"frame-ancestors"] == b"'none'"
    assert rules[b"script-src"] == rules[b"style-src"] == rules[b"connect-src"] == b"'self'"
    assert b"unsafe" not in POLICY


@pytest.mark.parametrize("language", Language)
def test_document_says_its_language(language: Language) -> None:
    for made in (page(VIEWS["asleep"], language), sign_in_page(language)):
        assert Read(made.body).all("html") == [{"lang": language.value}]


def test_page_carries_the_status_and_says_that_it_is_ours() -> None:
    assert page(VIEWS["asleep"], Language.ENGLISH).status == 200
    assert page(VIEWS["error"], Language.ENGLISH).status == 502
    assert page(VIEWS["not_found"], Language.ENGLISH).status == 404
    assert header(page(VIEWS["unreachable"], Language.ENGLISH), b"CodeHub-Page") == b"unreachable"


def test_what_no_encoding_can_hold_is_replaced() -> None:
    assert "?" in page(replace(VIEWS["error"], report="half \ud83d"), Language.ENGLISH).body.decode()


@pytest.mark.parametrize("language", Language)
def test_page_without_script_says_that_it_needs_it(language: Language) -> None:
    for made in (page(VIEWS["asleep"], language), sign_in_page(language)):
        unscripted = made.body.decode().partition("<noscript>")[2].partition("</noscript>")[0]
        assert "JavaScript" in Read(unscripted.encode()).text


# ── assets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prefix", [b"/", b"/w/0123/"])
def test_every_asset_of_a_document_is_served_for_good(prefix: bytes) -> None:
    documents = [page(VIEWS["asleep"], Language.ENGLISH, prefix), sign_in_page(Language.ENGLISH, None, prefix)]
    found = set()
    for read in (Read(document.body) for document in documents):
        links = [each.get("src") or each.get("href") or "" for _, each in read.elements]
        found |= {link for link in links if "_codehub/" in link}
    assert len(found) == 4
    for link in found:
        assert link.startswith(prefix.decode() + "_codehub/")
        served = asset(link.removeprefix(prefix.decode() + "_codehub/").encode())
        assert served is not None
        assert b"immutable" in (header(served, b"Cache-Control") or b"")
        assert header(served, b"X-Content-Type-Options") == b"nosniff"
        assert served.body


@pytest.mark.parametrize("name", [b"page.css", b"page.js", b"signin.js", b"local_path.js", b"icon.svg"])
def test_asset_under_its_own_name_is_asked_for_again(name: bytes) -> None:
    served = asset(name)
    assert served is not None
    assert header(served, b"Cache-Control") == b"no-cache"
    tag = header(served, b"ETag") or b""
    for known in (tag, b"W/" + tag, b'"other", ' + tag):
        unchanged = asset(name, known)
        assert unchanged is not None
        assert (unchanged.status, unchanged.body) == (304, b"")
        assert header(unchanged, b"ETag") == tag
    assert asset(name, b'"other"') == served


@pytest.mark.parametrize("name", [b"", b"..", b"../pages.py", b"page.css/", b"emblems.svg", b"page.0.css", b"wake"])
def test_nothing_else_is_an_asset(name: bytes) -> None:
    assert asset(name) is None


# ── who gets what ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("accept", [HTML, b"TEXT/HTML", b"application/json, text/html;q=0.1"], ids=str)
def test_a_browser_gets_a_page(accept: bytes) -> None:
    made = answer(VIEWS["asleep"], accept, Language.ENGLISH)
    assert header(made, b"Content-Type") == b"text/html; charset=utf-8"
    assert made.status == 200


@pytest.mark.parametrize("accept", [None, b"", b"*/*", b"application/json", b"image/avif,image/*"], ids=str)
def test_a_program_gets_a_problem(accept: bytes | None) -> None:
    made = answer(VIEWS["asleep"], accept, Language.ENGLISH)
    said = json.loads(made.body)
    assert header(made, b"Content-Type") == b"application/problem+json"
    assert (made.status, said["status"], said["code"]) == (503, 503, "asleep")
    assert header(made, b"Retry-After") == b"2"
    assert "files are where you left them" in said["detail"]


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("error", 502, "error"),
        ("limit", 429, "limit_reached"),
        ("signed_out", 401, "unauthenticated"),
        ("not_found", 404, "not_found"),
        ("unreachable", 502, "unreachable"),
        ("restoring", 503, "waiting"),
    ],
)
def test_a_problem_has_a_code_of_its_own(name: str, status: int, code: str) -> None:
    for language in Language:
        made = answer(VIEWS[name], None, language)
        assert (made.status, json.loads(made.body)["code"]) == (status, code)


def test_not_found_tells_nothing_of_what_is_there() -> None:
    assert page(not_found_page(Language.ENGLISH), Language.ENGLISH) == page(
        not_found_page(Language.ENGLISH), Language.ENGLISH
    )
    gone = rows.workspace(phase=Phase.DELETED, name="secret")
    assert gone.name not in page(not_found_page(Language.ENGLISH), Language.ENGLISH).body.decode()


def test_state_is_the_view_with_its_version() -> None:
    made = state(VIEWS["limit"], 429)
    assert made.status == 429
    said = json.loads(made.body)
    assert said.pop("version") == VIEWS["limit"].version
    assert said == json.loads(json.dumps(VIEWS["limit"].to_json()))
    assert header(made, b"Cache-Control") == b"no-store"
    assert state(unavailable_page(Language.ENGLISH)).status == 200


# ── signing in ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sign_in_form_helps_password_managers_and_leaks_nothing_without_script() -> None:
    read = Read(sign_in_page(Language.ENGLISH).body)
    fields = {each["name"]: each for each in read.all("input")}
    assert fields["username"]["autocomplete"] == "username"
    assert fields["password"]["autocomplete"] == "current-password"
    assert fields["password"]["type"] == "password"
    assert read.all("form")[0]["method"] == "post", "a form that is sent as it is must not put a password into a URL"
    assert {each["for"] for each in read.all("label")} == {each["id"] for each in fields.values()}
    assert read.all("a") == []


def test_provider_is_offered_by_name() -> None:
    read = Read(sign_in_page(Language.ENGLISH, NASTY).body)
    assert f"Sign in with {NASTY}" in read.text
    assert [each["href"] for each in read.all("a")] == ["/api/v1/session/oidc"]
