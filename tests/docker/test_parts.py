"""The Docker adapter's pure parts: what failures mean, what events are about, what a job may know."""

from pathlib import Path
from uuid import UUID

import pytest

from codehub.adapters.docker.engine import Engine, agreed_version
from codehub.adapters.docker.events import EngineEvents
from codehub.adapters.docker.images import Layers
from codehub.adapters.docker.jobs import job_store
from codehub.adapters.image_pull import pull_failure
from codehub.domain.errors import BackendError, ErrorReason

KEY = UUID("11111111-2222-3333-4444-555555555555")


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (404, "pull access denied for x, repository does not exist or may require 'docker login'", "ImagePullFailed"),
        (404, "manifest for x:9 not found: manifest unknown: manifest unknown", "ImagePullFailed"),
        (500, 'Head "https://r.example/v2/x": no basic auth credentials', "ImagePullFailed"),
        (0, "unauthorized: authentication required", "ImagePullFailed"),
        (400, "invalid reference format", "ImagePullFailed"),
        (500, 'Get "https://r.example/v2/": dial tcp: lookup r.example: no such host', "Unreachable"),
        (500, 'Get "https://r.example/v2/": dial tcp 10.0.0.1:443: connect: connection refused', "Unreachable"),
        (0, "net/http: TLS handshake timeout", "Unreachable"),
        (500, "toomanyrequests: You have reached your pull rate limit", "Unreachable"),
        (404, "name unknown: repository name not known to registry", "ImagePullFailed"),
        (404, "no matching manifest for linux/amd64 in the manifest list entries", "ImagePullFailed"),
        (403, "denied: requested access to the resource is denied", "ImagePullFailed"),
        (500, "unknown: unknown error", "Unreachable"),
        (500, "received unexpected HTTP status: 503 Service Unavailable", "Unreachable"),
        (
            404,
            "error parsing HTTP 404 response body: invalid character '<' looking for beginning of value",
            "Unreachable",
        ),
        (500, 'Get "https://r.example/v2/": x509: certificate signed by unknown authority', "Unreachable"),
        (500, "failed to fetch oauth token: unexpected status: 502 Bad Gateway", "Unreachable"),
        (500, 'Get "https://r.example/v2/": context deadline exceeded', "Unreachable"),
        (500, "read tcp 10.0.0.2:1->10.0.0.1:443: read: connection reset by peer", "Unreachable"),
        (0, "unexpected EOF", "Unreachable"),
    ],
)
def test_a_registry_that_says_no_is_told_from_one_that_is_away(status: int, words: str, reason: str) -> None:
    failure = pull_failure("x:9", status, words)
    assert failure.reason is ErrorReason(reason)
    assert words in str(failure)


def test_progress_of_a_pull_is_what_all_layers_have() -> None:
    layers = Layers()
    assert str(layers) == ""
    mib = 1 << 20
    layers.hear({"status": "Downloading", "id": "a", "progressDetail": {"current": 3 * mib, "total": 10 * mib}})
    layers.hear({"status": "Downloading", "id": "b", "progressDetail": {"current": 0, "total": 10 * mib}})
    layers.hear({"status": "Verifying Checksum", "id": "a", "progressDetail": {}})
    assert str(layers) == ": 3 of 20 MiB"
    assert layers.amount == (3 * mib, 20 * mib)
    layers.hear({"status": "Download complete", "id": "a", "progressDetail": {}})
    assert str(layers) == ": 10 of 20 MiB"


@pytest.mark.parametrize(
    ("offered", "agreed"), [("1.40", "v1.40"), ("1.41", "v1.41"), ("1.47", "v1.47"), ("1.99", "v1.47")]
)
def test_the_newest_version_that_both_know(offered: str, agreed: str) -> None:
    assert agreed_version(offered) == agreed


def test_an_engine_that_is_too_old_is_told_so() -> None:
    with pytest.raises(BackendError, match=r"1\.24; it must be 1\.40 or newer"):
        agreed_version("1.24")


async def test_certificates_that_are_not_there_are_named() -> None:
    engine = Engine("tcp://127.0.0.1:1", Path("/nowhere"))
    with pytest.raises(BackendError, match=r"certificates in /nowhere \(ca\.pem, cert\.pem, key\.pem\)"):
        await engine.version()


def event(kind: str, key: str = "x", **attributes: str) -> dict[str, object]:
    names = {name.replace("_", "."): value for name, value in attributes.items()}
    return {"Type": kind, "Action": "die", "Actor": {"ID": key, "Attributes": names}}


def test_events_are_about_our_own_workspaces() -> None:
    hints = EngineEvents(Engine(), "here")
    ours = {"codehub_install": "here", "codehub_workspace": str(KEY)}
    assert hints.about(event("container", **ours, codehub_role="workspace")) == KEY
    assert hints.about(event("container", **ours, codehub_role="job")) == KEY
    assert hints.about(event("container", **ours, codehub_role="probe")) is None
    assert hints.about(event("container", **(ours | {"codehub_install": "there"}), codehub_role="job")) is None
    assert hints.about(event("container")) is None
    assert hints.about(event("volume", f"ws-{KEY}-home-2")) == KEY
    assert hints.about(event("volume", "pgdata")) is None


def test_a_job_gets_the_stores_credentials_and_nothing_else() -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": "a",
        "CODEHUB_S3_ENDPOINT": "http://s3",
        "https_proxy": "http://p",
        "AWS_CA_BUNDLE": "/here/only",
        "CODEHUB_DATABASE_URL": "postgresql://secret",
        "PATH": "/bin",
    }
    bucket = job_store("s3://homes", environ)
    assert bucket.env == {"AWS_ACCESS_KEY_ID": "a", "CODEHUB_S3_ENDPOINT": "http://s3", "https_proxy": "http://p"}
    directory = job_store("file:///srv/archives", environ)
    assert (directory.url, directory.directory, dict(directory.env)) == ("file:///archives", "/srv/archives", {})
