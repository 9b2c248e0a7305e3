"""What a workspace is made from: templates are the list of images that may run at all. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from codehub.domain.errors import Invalid

TEXT_LENGTH = 500
VARIABLES = 100
VALUE_LENGTH = 4096
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class Template:
    """`image_ref` empty: the runtime's own image. A limit that is None is the runtime's own. Times are the store's."""

    name: str
    description: str = ""
    image_ref: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    created_at: datetime = _BEFORE_ALL
    updated_at: datetime = _BEFORE_ALL
    disabled_at: datetime | None = None


def checked_template(template: Template) -> Template:
    """Invalid, saying which part, unless a workspace could be made from it."""
    if not _NAME.fullmatch(template.name):
        raise Invalid("A template's name has 1 to 40 lower-case letters, digits and inner hyphens.")
    for text in (template.description, template.image_ref):
        if len(text) > TEXT_LENGTH or not text.isprintable():
            raise Invalid(f"A template's texts have at most {TEXT_LENGTH} printable characters.")
    if " " in template.image_ref:
        raise Invalid("An image's name has no blanks.")
    _check_variables(template.env)
    limits = (template.cpu, template.memory_bytes, template.disk_bytes, template.pids)
    if any(limit is not None and not 0 < limit < 2**63 for limit in limits):
        raise Invalid("A template's limits are numbers above 0; leave one out for the runtime's own.")
    return template


def _check_variables(env: Mapping[str, str]) -> None:
    if len(env) > VARIABLES:
        raise Invalid(f"A template sets at most {VARIABLES} environment variables.")
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise Invalid(f"{name[:100]!r} is no name for an environment variable.")
        if len(value) > VALUE_LENGTH or "\x00" in value or not _encodable(value):
            raise Invalid(f"The value of {name} has at most {VALUE_LENGTH} characters and no NUL.")


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
