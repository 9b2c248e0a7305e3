"""Workspaces are served within the platform's own origin on one's own machine; elsewhere only if somebody says so."""

import pytest

from codehub.bootstrap.proxy import serves_by_path
from codehub.settings import Settings, SettingsError, load_settings

HOSTS = "https://{slug}.ws.example.com/"


def settings(**given: object) -> Settings:
    return load_settings(database_url="postgresql://unused", redis_url="redis://unused", **given)


@pytest.mark.parametrize(
    "public", [None, "http://localhost:8000", "http://127.0.0.1:8000/", "http://[::1]:8000", "http://hub.localhost"]
)
def test_on_this_machine_alone_it_is_done_unasked(public: str | None) -> None:
    assert serves_by_path(settings(proxy_address="127.0.0.1:8000", public_url=public))
    assert not serves_by_path(settings(proxy_address="127.0.0.1:8000", public_url=public, path_mode="off"))


@pytest.mark.parametrize(
    "given",
    [
        {"proxy_address": "0.0.0.0:8000"},
        {"proxy_address": "127.0.0.1:8000", "public_url": "https://hub.example.com"},
        {"proxy_address": "127.0.0.1:8000", "public_url": "https://127.example.com"},
    ],
    ids=["every address", "behind a TLS proxy", "a name that begins like ours"],
)
def test_what_others_reach_does_it_only_when_told(given: dict[str, str]) -> None:
    assert not serves_by_path(settings(workspace_url=HOSTS, **given))
    assert serves_by_path(settings(workspace_url=HOSTS, path_mode="on", **given))
    with pytest.raises(SettingsError, match="CODEHUB_PATH_MODE=on if you accept"):
        serves_by_path(settings(workspace_url="https://hub.example.com/w/{id}/", **given))
