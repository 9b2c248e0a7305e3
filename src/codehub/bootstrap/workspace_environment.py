"""What the settings put into every workspace, whatever its runtime and its template: variables, and the authorities
that its programs trust."""

from codehub.domain.errors import BackendError
from codehub.settings import Settings


def workspace_environment(settings: Settings) -> dict[str, str]:
    """The variables that every workspace gets by the settings, whatever its runtime and its template."""
    gallery = settings.extension_gallery
    return {} if gallery is None else {"EXTENSIONS_GALLERY": gallery}


def ca_bundle(settings: Settings) -> bytes:
    """The operator's own certificate authorities, as PEM; empty if there are none."""
    if settings.ca_bundle is None:
        return b""
    try:
        return settings.ca_bundle.read_bytes()
    except OSError as error:
        raise BackendError(f"CODEHUB_CA_BUNDLE {settings.ca_bundle} cannot be read: {error.strerror}") from error
