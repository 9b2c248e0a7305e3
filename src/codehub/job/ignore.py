"""`.codehubignore` at the top of a home: what its owner does not want archived.

Patterns are gitignore's. As in git, the last that matches decides, and nothing below an ignored directory can be taken
back by a later `!` pattern: the directory is not entered. The file itself is archived like any other. What is left out
is lost when the volume goes, so a file that cannot be understood as a whole leaves out nothing.

Matching takes bounded steps: the author of a pattern must not be able to stop the job with it. A pattern is a row of
segments, a segment a row of letters, and in both a `...` stands for any number of what is in the row (`**` and `*`).
Both are matched by going back to the last `...` only, so the steps are at most the product of the two lengths.
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeVar

from codehub.job.volume import IGNORE_FILE

_Found = TypeVar("_Found")

LARGEST_FILE = 1 << 20
_SEPARATOR = "/"
_ANY_SEGMENT = "**"

_Ranges = tuple[tuple[str, str], ...]
_DIGIT, _LOWER, _UPPER = ("0", "9"), ("a", "z"), ("A", "Z")
_CLASSES: dict[str, _Ranges] = {
    "alnum": (_DIGIT, _LOWER, _UPPER),
    "alpha": (_LOWER, _UPPER),
    "blank": ((" ", " "), ("\t", "\t")),
    "cntrl": (("\x00", "\x1f"), ("\x7f", "\x7f")),
    "digit": (_DIGIT,),
    "graph": (("!", "~"),),
    "lower": (_LOWER,),
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": ((" ", " "), ("\t", "\n"), ("\r", "\r")),
    "upper": (_UPPER,),
    "xdigit": (_DIGIT, ("a", "f"), ("A", "F")),
}
"""Git's own character classes, not a locale's: of ASCII only, the spaces without vertical tab and form feed."""


@dataclass(frozen=True, slots=True)
class _OneOf:
    """`[...]`: one letter out of ranges; `?`, any letter, is the negation of no ranges."""

    ranges: _Ranges
    negated: bool

    def __contains__(self, letter: str) -> bool:
        return any(low <= letter <= high for low, high in self.ranges) != self.negated


_Letter = str | _OneOf
_Segment = str | list[_Letter | EllipsisType]
"""A string if it has no wildcard, as most have."""


@dataclass(frozen=True, slots=True)
class Pattern:
    segments: list[_Segment | EllipsisType]
    negated: bool
    directories_only: bool

    def matches(self, path: Sequence[str], *, is_directory: bool) -> bool:
        return (is_directory or not self.directories_only) and fits(self.segments, path, _segment_fits)


def parse_pattern(line: str) -> Pattern | None:
    """The pattern of one line; None if the line says nothing. Raises ValueError if it is no pattern."""
    text = _without_trailing_spaces(line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text.removeprefix("!")
    if not text:
        raise ValueError(line)
    directories_only = text.endswith(_SEPARATOR)
    text = text.removesuffix(_SEPARATOR)
    if not text:
        return None
    names = text.removeprefix(_SEPARATOR).split(_SEPARATOR)
    segments: list[_Segment | EllipsisType] = []
    if _SEPARATOR not in text:
        segments.append(...)
    elif names[-1] == _ANY_SEGMENT:
        names[-1:] = [_ANY_SEGMENT, "*"]  # all that is inside, and not the directory itself
    for name in names:
        if name != _ANY_SEGMENT or len(names) == 1:
            segments.append(_segment(name))
        elif segments[-1:] != [...]:
            segments.append(...)
    return Pattern(segments, negated, directories_only)


def fits(pattern: Sequence[object], found: Sequence[_Found], fits_one: Callable[[Any, _Found], bool]) -> bool:
    """Whether the whole of `found` fits the pattern. `...` in the pattern is any number of items, also none; there are
    no two in a row."""
    last = pattern[-1] if pattern else ...
    if last is not ... and not (found and fits_one(last, found[-1])):
        return False  # nearly all of a home, and no need to look further
    at = place = 0
    after_any, retried = -1, 0
    while place < len(found):
        wanted = pattern[at] if at < len(pattern) else None
        if wanted is ...:
            at += 1
            after_any, retried = at, place
        elif wanted is not None and fits_one(wanted, found[place]):
            at += 1
            place += 1
        elif after_any >= 0:
            retried += 1
            at, place = after_any, retried
        else:
            return False
    return at == len(pattern) or (at == len(pattern) - 1 and pattern[at] is ...)


def _segment_fits(segment: _Segment, name: str) -> bool:
    return segment == name if isinstance(segment, str) else fits(segment, name, _letter_fits)


def _letter_fits(wanted: _Letter, letter: str) -> bool:
    return wanted == letter if isinstance(wanted, str) else letter in wanted


def _without_trailing_spaces(line: str) -> str:
    text = line.rstrip(" ")
    escapes = len(text) - len(text.rstrip("\\"))
    return text + " " if escapes % 2 and text != line else text


def _segment(text: str) -> _Segment:
    letters: list[_Letter | EllipsisType] = []
    at = 0
    while at < len(text):
        letter, at = text[at], at + 1
        if letter == "*":
            if letters[-1:] != [...]:
                letters.append(...)
        elif letter == "?":
            letters.append(_OneOf((), negated=True))
        elif letter == "[":
            one_of, at = _one_of(text, at)
            letters.append(one_of)
        else:
            letter, at = _letter(text, at - 1)
            letters.append(letter)
    plain = [letter for letter in letters if isinstance(letter, str)]
    return "".join(plain) if len(plain) == len(letters) else letters


def _one_of(text: str, at: int) -> tuple[_OneOf, int]:
    negated = text[at : at + 1] in {"!", "^"}
    at += negated
    first = at
    ranges: list[tuple[str, str]] = []
    while text[at : at + 1] != "]" or at == first:
        if text.startswith("[:", at) and (end := text.index("]", at + 2)) > at + 2 and text[end - 1] == ":":
            ranges += _class(text[at + 2 : end - 1])
            at = end + 1
            continue
        low, at = _letter(text, at)
        high = low
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in {"", "]"}:
            high, at = _letter(text, at + 1)
        ranges.append((low, max(low, high)))  # of a range that runs backwards git takes the first
    return _OneOf(tuple(ranges), negated), at + 1


def _class(name: str) -> _Ranges:
    if name not in _CLASSES:
        raise ValueError(name)
    return _CLASSES[name]


def _letter(text: str, at: int) -> tuple[str, int]:
    """The letter at this place, and the place after it; a letter after a backslash stands for itself."""
    at += text[at : at + 1] == "\\"
    if at >= len(text):
        raise ValueError(text)
    return text[at], at + 1


class Ignore:
    """The patterns of a home's ignore file, and warnings about what in it is no pattern."""

    def __init__(self, patterns: list[Pattern], warnings: list[str]) -> None:
        self._last_first = patterns[::-1]
        self.warnings = warnings

    def matches(self, path: bytes, *, is_directory: bool) -> bool:
        if not self._last_first:
            return False
        names = os.fsdecode(path).split("/")
        for pattern in self._last_first:
            if pattern.matches(names, is_directory=is_directory):
                return not pattern.negated
        return False


def read_ignore(volume: int) -> Ignore:
    try:
        # Non-blocking: a fifo of this name must not hang the job.
        descriptor = os.open(IGNORE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=volume)
        with os.fdopen(descriptor, "rb", closefd=True) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _nothing("it is no file")
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return Ignore([], [])
    except OSError as error:
        return _nothing(f"it cannot be read ({error.strerror})")
    return parse_ignore(content)


def parse_ignore(content: bytes) -> Ignore:
    """The patterns of a file. A line that is no pattern is skipped with a warning: it must not keep a home from being
    archived. But if it begins with `!`, no pattern counts, for without it something would be lost."""
    if len(content) > LARGEST_FILE:
        return _nothing(f"it is longer than {LARGEST_FILE} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _nothing("it is not UTF-8 text")
    patterns, warnings = [], []
    for line in text.split("\n"):
        try:
            pattern = parse_pattern(line.rstrip("\r"))
        except ValueError:
            if len(line.strip()) > 1 and line.startswith("!"):
                return _nothing(f"what shall be kept by “{line.strip()[:200]}” cannot be understood")
            warnings.append(f"not a pattern: {line[:200]}")
            continue
        if pattern is not None:
            patterns.append(pattern)
    return Ignore(patterns, warnings)


def _nothing(why: str) -> Ignore:
    return Ignore([], [f"{why}, so nothing is left out"])
