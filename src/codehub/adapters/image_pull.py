"""What a failed pull of an image means, whoever pulled it.

A registry that says "no such image" or "not for you" is an answer. Everything else (it cannot be found or reached,
hangs up, falls silent, is overloaded, fails) is none: it is asked again for as long as somebody wants the image.
"""

import re

from codehub.domain.errors import BackendError, ErrorReason, Unreachable

_BAD_REQUEST = 400
_ANSWERS = re.compile(
    r"(manifest|name|blob|repository|tag)\b[^:]* (unknown|not found|not known)|manifest unknown|does not exist|"
    r"(^|[ :])denied\b|access denied|unauthorized|authentication required|no basic auth credentials|"
    r"no matching manifest|invalid reference|must be lowercase",
    re.IGNORECASE,
)
"""What registries, and the engine in their name, say of an image that is not to be had."""
_NO_ANSWER = re.compile(
    r"dial tcp|no such host|server misbehaving|connection re(fused|set)|time(d )?out|deadline exceeded|TLS|EOF|"
    r"certificate|toomanyrequests|too many requests|rate limit|unexpected HTTP status|unexpected status.*: 5\d\d|"
    r"error parsing HTTP",
    re.IGNORECASE,
)
"""What is said of the way to a registry, whatever else is in the same sentence."""


def pull_failure(image: str, status: int, words: str) -> BackendError:
    """ImagePullFailed if somebody who knows has said no; Unreachable otherwise."""
    answered = status == _BAD_REQUEST or _ANSWERS.search(words)
    if answered and not _NO_ANSWER.search(words):
        message = f"image {image!r} cannot be had: {words}"
        return BackendError(message, reason=ErrorReason.IMAGE_PULL_FAILED, image=image)
    return Unreachable(f"image {image!r} cannot be pulled now: {words}", endpoint="registry", image=image, error=words)
