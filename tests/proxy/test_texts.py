"""What the proxy says: in both languages, the same things, to whoever would rather have which."""

import string
from datetime import UTC, datetime

import pytest

from codehub.proxy.pages.texts import SENTENCES, Language, amount, day, language, say

ENGLISH, KOREAN = Language.ENGLISH, Language.KOREAN
HANGUL = range(0xAC00, 0xD7A4)


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_both_languages_say_the_same_things() -> None:
    assert list(SENTENCES[ENGLISH]) == list(SENTENCES[KOREAN])
    assert set(SENTENCES) == set(Language)


@pytest.mark.parametrize("key", SENTENCES[ENGLISH])
def test_sentence_has_the_same_placeholders_and_its_own_letters(key: str) -> None:
    english, korean = SENTENCES[ENGLISH][key], SENTENCES[KOREAN][key]
    assert placeholders(english) == placeholders(korean)
    assert english.strip() == english != ""
    assert korean.strip() == korean != ""
    assert english.isascii() or "…" in english
    assert placeholders(english) or any(ord(letter) in HANGUL for letter in korean)


@pytest.mark.parametrize("key", [key for key in SENTENCES[ENGLISH] if key.endswith((".text", ".detail", ".todo"))])
def test_sentence_is_a_whole_one(key: str) -> None:
    for spoken in Language:
        assert SENTENCES[spoken][key][-1] in ".…"


def test_what_is_put_in_is_text_and_no_template() -> None:
    assert say(ENGLISH, "asleep.title", name="{name} {0} %s") == "{name} {0} %s is asleep"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, ENGLISH),
        (b"", ENGLISH),
        (b"ko", KOREAN),
        (b"ko-KR,ko;q=0.9,en-US;q=0.8,en;q=0.7", KOREAN),
        (b"en-US,en;q=0.9,ko;q=0.8", ENGLISH),
        (b"en;q=0.5, KO-kr ; q=0.6", KOREAN),
        (b"fr,de;q=0.9,ko;q=0.1", KOREAN),
        (b"fr,de;q=0.9", ENGLISH),
        (b"ko;q=0", ENGLISH),
        (b"ko;q=0.000,en;q=0.1", ENGLISH),
        (b"*,ko;q=0.5", ENGLISH),
        (b"*;q=0.1,ko;q=0.5", KOREAN),
        (b"ko;q=9,en", ENGLISH),
        (b"korean", ENGLISH),
        (b"\xff\xfe,ko", KOREAN),
        (b",;;q=,ko;q=0.3", KOREAN),
        (b"x" * 100_000 + b",ko", ENGLISH),
    ],
    ids=lambda value: None if isinstance(value, Language) else str(value)[:40],
)
def test_language_is_the_liked_one(header: bytes | None, wanted: Language) -> None:
    assert language(header) is wanted


def test_days_and_amounts_are_local() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    assert day(ENGLISH, at) == "1 March 2026"
    assert day(KOREAN, at) == "2026년 3월 1일"
    assert amount(ENGLISH, 1_200_000_000, 3_400_000_000) == "1.2 of 3.4 GB"
    assert amount(KOREAN, 1_200_000_000, 3_400_000_000) == "3.4 GB 중 1.2 GB"
    assert amount(ENGLISH, 2_000, None) == "2.0 kB so far"
    assert amount(ENGLISH, 17, 999) == "17 of 999 B"
    assert amount(ENGLISH, 2_000, 1_000) == "2.0 kB so far"
    assert amount(ENGLISH, 5 * 10**15, None) == "5000.0 TB so far"
