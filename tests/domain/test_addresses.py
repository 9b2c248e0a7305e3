"""Where a browser reaches a workspace, for each shape of address that the settings allow."""

from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.addresses import ENTRANCE, entry_url, has_own_host, local_path, workspace_url
from codehub.domain.errors import Conflict
from tests.rows import WORKSPACE_ID

LOCAL, WILD, PATH = "http://{slug}.localhost:8000/", "https://{slug}.ws.example.com", "https://hub.example.com/w/{id}/"
BY_ID = "https://w-{id}.example.com/ide/"


@pytest.mark.parametrize(
    ("pattern", "own", "plain", "port"),
    [
        (LOCAL, True, "http://demo.localhost:8000/", "http://8080--demo.localhost:8000/"),
        (WILD, True, "https://demo.ws.example.com", "https://8080--demo.ws.example.com"),
        (BY_ID, True, f"https://w-{WORKSPACE_ID}.example.com/ide/", f"https://w-8080--{WORKSPACE_ID}.example.com/ide/"),
        ("http://{slug}.x/{slug}/", True, "http://demo.x/demo/", "http://8080--demo.x/demo/"),
        (PATH, False, f"https://hub.example.com/w/{WORKSPACE_ID}/", None),
        ("http://hub/{slug}", False, "http://hub/demo", None),
    ],
)
def test_a_workspace_and_its_ports_have_addresses(pattern: str, own: bool, plain: str, port: str | None) -> None:
    assert has_own_host(pattern) is own
    assert workspace_url(pattern, "demo", WORKSPACE_ID) == plain
    if port:
        assert workspace_url(pattern, "demo", WORKSPACE_ID, 8080) == port
        return
    with pytest.raises(Conflict) as error:
        workspace_url(pattern, "demo", WORKSPACE_ID, 8080)
    assert error.value.code == "ports_need_subdomains"
    with pytest.raises(Conflict):
        entry_url(pattern, "demo", WORKSPACE_ID, "secret", 8080)


@pytest.mark.parametrize(
    ("pattern", "port", "path", "address"),
    [
        (LOCAL, None, "/", "http://demo.localhost:8000/_codehub/enter?ticket=s3-cr_t"),
        (LOCAL, 80, "/", "http://80--demo.localhost:8000/_codehub/enter?ticket=s3-cr_t"),
        (WILD, None, "/a?b=/c&d", "https://demo.ws.example.com/_codehub/enter?ticket=s3-cr_t&to=%2Fa%3Fb%3D%2Fc%26d"),
        (PATH, None, "/", f"https://hub.example.com/w/{WORKSPACE_ID}/"),
        (PATH.removesuffix("/"), None, "/a?b=/c", f"https://hub.example.com/w/{WORKSPACE_ID}/a?b=/c"),
    ],
)
def test_one_step_leads_in(pattern: str, port: int | None, path: str, address: str) -> None:
    assert entry_url(pattern, "demo", WORKSPACE_ID, "s3-cr_t", port, path) == address


@given(st.text(), st.text("/ab?&=+%2f#;", max_size=20).map(lambda text: local_path(f"/{text}")))
def test_what_goes_in_comes_out(ticket: str, path: str) -> None:
    address = urlsplit(entry_url(LOCAL, "demo", WORKSPACE_ID, ticket, None, path))
    assert (address.netloc, address.path, address.fragment) == ("demo.localhost:8000", f"/{ENTRANCE}", "")
    found = parse_qs(address.query, keep_blank_values=True, strict_parsing=True)
    assert found == {"ticket": [ticket]} | ({} if path == "/" else {"to": [path]})
