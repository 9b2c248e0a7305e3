"""The sentences that people read, in their language; one file per language holds them.

A sentence is chosen by its key; both languages have the same keys with the same placeholders (tests hold that). What is
put into a placeholder is text and nothing else: it is never read as a template.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

from codehub.proxy.pages.texts.english import ENGLISH
from codehub.proxy.pages.texts.korean import KOREAN


class Language(StrEnum):
    """A language that we speak; its value is the tag that a document carries in `lang`."""

    ENGLISH = "en"
    KOREAN = "ko"


SENTENCES: Final[Mapping[Language, Mapping[str, str]]] = {Language.ENGLISH: ENGLISH, Language.KOREAN: KOREAN}

_BY_TAG: Final = {known.value: known for known in Language}
_LONGEST_HEADER: Final = 1_000
_RANGE: Final = re.compile(
    r"\s*(?P<tag>\*|[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)\s*(?:;\s*[qQ]\s*=\s*(?P<q>[01](?:\.[0-9]{0,3})?)\s*)?"
)
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def language(accept_language: bytes | None) -> Language:
    """The language that the browser prefers; English if it has no preference, or none that we speak."""
    best, preference = Language.ENGLISH, 0.0
    for part in (accept_language or b"")[:_LONGEST_HEADER].decode("latin-1").split(","):
        found = _RANGE.fullmatch(part)
        known = _supported(found["tag"]) if found else None
        if found and known is not None and (quality := min(float(found["q"] or 1), 1.0)) > preference:
            best, preference = known, quality
    return best


def _supported(tag: str) -> Language | None:
    if tag == "*":
        return Language.ENGLISH
    return _BY_TAG.get(tag.partition("-")[0].lower())


def say(language: Language, key: str, **values: object) -> str:
    return SENTENCES[language][key].format(**values)


def day(language: Language, at: datetime) -> str:
    if language is Language.KOREAN:
        return f"{at.year}년 {at.month}월 {at.day}일"
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def amount(language: Language, done: int, total: int | None) -> str:
    """How much is done, in the unit of the whole: "1.2 of 3.4 GB"."""
    if not total or total < done:
        return say(language, "amount.so_far", done=_in_unit(done, _unit(done)), unit=_UNITS[_unit(done)])
    unit = _unit(total)
    return say(language, "amount.of", done=_in_unit(done, unit), total=_in_unit(total, unit), unit=_UNITS[unit])


def _unit(count: int) -> int:
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count //= 1000
        unit += 1
    return unit


def _in_unit(count: int, unit: int) -> str:
    return f"{count}" if unit == 0 else f"{count / 1000**unit:.1f}"
