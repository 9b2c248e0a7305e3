"""Which addresses a workspace may be filled from. Pure.

The address is stored, shown in logs and handed to `git` inside the workspace, so it holds no password and cannot be
read as an option.
"""

import re

from codehub.domain.errors import Invalid

LONGEST = 1000

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?"
_PATH = r"[A-Za-z0-9._~%+@=,/-]+"
_FORMS = (
    re.compile(rf"(?:https|git)://{_HOST}/{_PATH}"),
    re.compile(rf"ssh://(?:[A-Za-z0-9._-]+@)?{_HOST}/{_PATH}"),
    re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]*@{_HOST}:(?!-){_PATH}"),
)


def checked_git_url(text: str) -> str:
    if len(text) <= LONGEST and any(form.fullmatch(text) for form in _FORMS):
        return text
    raise Invalid(
        "A git address is https://host/path, ssh://user@host/path, git://host/path or user@host:path, without a "
        "password; put credentials into the workspace instead.",
        "git_url",
    )
