"""The operator's own certificate authorities, for the programs inside workspaces.

Each of these programs looks for authorities elsewhere and most read one file alone, so every variable names the same
file, which holds the system's authorities and then the operator's.
"""

from pathlib import Path

_VARIABLES = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
)
DEBIAN = "/etc/ssl/certs/ca-certificates.crt"
_SYSTEM = (DEBIAN, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")
"""Where distributions keep all authorities in one file: Debian, Fedora, openSUSE, Alpine."""


def ca_environment(path: Path | str) -> dict[str, str]:
    """The variables by which OpenSSL, curl, git, node, pip and requests use the bundle at `path`."""
    return dict.fromkeys(_VARIABLES, str(path))


def with_system_authorities(own: bytes) -> bytes:
    """The bundle of this machine's authorities and the operator's."""
    found = next((place for place in map(Path, _SYSTEM) if place.is_file()), None)
    return (found.read_bytes().rstrip() + b"\n" if found else b"") + own
