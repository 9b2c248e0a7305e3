"""Keys of secrets: rotated, lost, wrong; and the file that `codehub up` keeps its key in."""

import base64
import logging
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from codehub.adapters.encryption import (
    KEY_FILE,
    AesKeyring,
    BadKeys,
    ensure_key_file,
    key_id,
    new_key,
    parse_keys,
    read_key_file,
)
from codehub.adapters.memory import MemoryAccountDatabase
from codehub.bootstrap.operator import environment
from codehub.bootstrap.secrets import ensure_key, open_keyring
from codehub.bootstrap.services import start_logging
from codehub.domain.errors import Conflict
from codehub.domain.secrets import SecretKind, SecretName, template_owner
from codehub.ports.secrets import CannotOpen, Sealed, StoredSecret
from codehub.ports.stores import Actor
from codehub.settings import Settings, SettingsError, load_settings
from codehub.usecases.key_rotation import PAGE, examine, rotate

OPERATOR = Actor("operator")
OLD, NEW = parse_keys(f"{new_key()} {new_key()}")


def names(count: int) -> list[SecretName]:
    return [SecretName(template_owner("default"), SecretKind.VARIABLE, f"N{number:03}") for number in range(count)]


async def filled(keyring: AesKeyring, count: int) -> MemoryAccountDatabase:
    database = MemoryAccountDatabase()
    for name in names(count):
        sealed = keyring.seal(name, "", f"value of {name.name}")
        await database.secrets().put(StoredSecret(name, "", sealed), OPERATOR)
    return database


async def values(database: MemoryAccountDatabase, keyring: AesKeyring) -> list[str]:
    return [keyring.open(one) for one in await database.secrets().of_owners([template_owner("default")])]


async def test_values_are_the_same_before_between_and_after() -> None:
    count = PAGE + 7
    database = await filled(AesKeyring([OLD]), count)
    before = await values(database, AesKeyring([OLD]))
    both = AesKeyring([NEW, OLD])
    assert await values(database, both) == before
    done = await rotate(database.secrets(), both, database.audit(), OPERATOR)
    assert (done.resealed, done.unreadable, done.key_id) == (count, {}, key_id(NEW))
    assert await values(database, AesKeyring([NEW])) == before
    with pytest.raises(CannotOpen):
        await values(database, AesKeyring([OLD]))
    [entry] = await database.audit().entries(1)
    assert (entry.action, entry.details["resealed"]) == ("reseal_secrets", count)
    again = await rotate(database.secrets(), both, database.audit(), OPERATOR)
    assert again.resealed == 0


async def test_an_interrupted_rotation_goes_on() -> None:
    database, both = await filled(AesKeyring([OLD]), 3), AesKeyring([NEW, OLD])
    first = (await database.secrets().page(None, 1))[0]
    await database.secrets().reseal(first, both.seal(first.name, "", both.open(first)))
    assert (await examine(database.secrets(), both)).older == 2
    assert (await rotate(database.secrets(), both, database.audit(), OPERATOR)).resealed == 2
    assert (await examine(database.secrets(), both)).older == 0


async def test_what_cannot_be_opened_is_named_and_stays() -> None:
    database = await filled(AesKeyring([OLD]), 3)
    damaged = (await database.secrets().page(None, 1))[0]
    await database.secrets().reseal(damaged, Sealed(damaged.sealed.key_id, b"damaged"))
    done = await rotate(database.secrets(), AesKeyring([NEW, OLD]), database.audit(), OPERATOR)
    assert done.resealed == 2
    assert list(done.unreadable) == ["template:default variable N000"]
    assert (await database.secrets().page(None, 1))[0].sealed.data == b"damaged"


async def test_a_lost_key_is_known_by_its_id_and_nothing_is_deleted() -> None:
    database, without = await filled(AesKeyring([OLD]), 3), AesKeyring([NEW])
    report = await examine(database.secrets(), without)
    assert (report.count, report.lost, report.damaged) == (3, {key_id(OLD): 3}, [])
    done = await rotate(database.secrets(), without, database.audit(), OPERATOR)
    assert (done.resealed, len(done.unreadable)) == (0, 3)
    assert key_id(OLD) in done.unreadable["template:default variable N000"]
    assert len(await values(database, AesKeyring([OLD]))) == 3
    with pytest.raises(Conflict, match="CODEHUB_SECRETS_KEYS"):
        await rotate(database.secrets(), AesKeyring([]), database.audit(), OPERATOR)


async def test_swapped_rows_are_found() -> None:
    database, keyring = await filled(AesKeyring([OLD]), 2), AesKeyring([OLD])
    first, second = await database.secrets().page(None, 2)
    await database.secrets().reseal(first, second.sealed)
    assert (await examine(database.secrets(), keyring)).damaged == [str(first.name)]
    with pytest.raises(CannotOpen):
        keyring.open(replace(first, sealed=second.sealed))


# ── keys as text and in files ────────────────────────────────────────────────────────────────────────────────────────


KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize("text", ["", " ", "abc", KEY[:-1], f"{KEY}, planted-text", "=" * 44, "Ä" * 44])
def test_what_is_no_key_is_refused_unseen(text: str) -> None:
    with pytest.raises(BadKeys) as wrong:
        parse_keys(text)
    assert "planted" not in str(wrong.value)


def test_keys_are_parted_by_commas_or_lines() -> None:
    first, second = new_key(), new_key()
    assert parse_keys(f"{first},{second}") == parse_keys(f"{first}\n{second}\n") == parse_keys(f"{first}, {second}")


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    os.umask(old := os.umask(0))
    try:
        os.umask(0)
        path = ensure_key_file(tmp_path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert ensure_key_file(tmp_path).read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [KEY_FILE]
    assert len(read_key_file(path)) == 1


def test_what_a_killed_process_left_of_the_key_is_removed(tmp_path: Path) -> None:
    linked, unlinked = tmp_path / f".{KEY_FILE}.{'a' * 32}", tmp_path / f".{KEY_FILE}.{'b' * 32}"
    unlinked.write_text("a key that was never used\n")
    os.utime(unlinked, (0, 0))
    path = ensure_key_file(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [KEY_FILE]
    before = path.read_bytes()
    linked.hardlink_to(path)
    assert ensure_key_file(tmp_path).read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [KEY_FILE]


def test_what_another_process_is_writing_and_what_people_keep_beside_the_key_stays(tmp_path: Path) -> None:
    ensure_key_file(tmp_path)
    draft, copy = tmp_path / f".{KEY_FILE}.{'a' * 32}", tmp_path / f".{KEY_FILE}.bak"
    for other in (draft, copy):
        other.write_text("another\n")
    os.utime(copy, (0, 0))
    ensure_key_file(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {KEY_FILE, draft.name, copy.name}


def test_processes_that_begin_at_once_get_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from codehub.adapters.encryption import ensure_key_file\n"
        "sys.stdin.read(1); print(ensure_key_file(Path(sys.argv[1])).read_text())"
    )
    with ThreadPoolExecutor(4) as pool:
        begun = [
            subprocess.Popen(
                [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(4)
        ]
        outcomes = [pool.submit(one.communicate, "g", timeout=60) for one in begun]
        keys = {outcome.result()[0] for outcome in outcomes}
    assert [one.returncode for one in begun] == [0] * 4
    assert keys == {(tmp_path / KEY_FILE).read_text() + "\n"}
    assert [one.name for one in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("content", [b"", b"no key", b"\xff\xfe", None])
def test_a_key_file_that_holds_none_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadKeys, match=KEY_FILE):
        read_key_file(path)


def given(tmp_path: Path, **keys: Any) -> Settings:
    return load_settings(database_url="postgresql://none", redis_url="redis://none", data_dir=tmp_path, **keys)


def test_keys_come_from_the_settings_else_a_file_else_the_data_directory(tmp_path: Path) -> None:
    first, second, third = new_key(), new_key(), new_key()
    assert list(open_keyring(given(tmp_path)).key_ids) == [], "only `codehub up` makes one by itself"
    assert list(tmp_path.iterdir()) == []
    ensure_key(given(tmp_path))
    kept = (tmp_path / KEY_FILE).read_text()
    (tmp_path / "keys").write_text(f"{second}\n{third}\n")
    for keys, expected in (
        ({}, kept),
        ({"secrets_keys_file": tmp_path / "keys"}, f"{second} {third}"),
        ({"secrets_keys": f"{first},{second}"}, f"{first} {second}"),
    ):
        ensure_key(given(tmp_path, **keys))
        assert list(open_keyring(given(tmp_path, **keys)).key_ids) == [key_id(key) for key in parse_keys(expected)]
    assert (tmp_path / KEY_FILE).read_text() == kept


def test_a_key_file_that_is_damaged_or_missing_stops_the_start_and_says_which(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="none cannot be read"):
        open_keyring(given(tmp_path, secrets_keys_file=tmp_path / "none"))
    (tmp_path / KEY_FILE).write_text("damaged\n")
    with pytest.raises(SettingsError, match=KEY_FILE):
        open_keyring(given(tmp_path))
    ensure_key(given(tmp_path))
    assert (tmp_path / KEY_FILE).read_text() == "damaged\n", "what is there is never replaced"


def test_a_backup_s_settings_are_without_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEHUB_SECRETS_KEYS", new_key())
    monkeypatch.setenv("CODEHUB_SECRETS_KEYS_FILE", "/run/keys")
    kept = environment()
    assert "CODEHUB_SECRETS_KEYS" not in kept
    assert kept["CODEHUB_SECRETS_KEYS_FILE"] == "/run/keys", "where it was is no secret"


def test_log_lines_never_hold_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = new_key(), new_key()
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        start_logging(given(tmp_path, secrets_keys=f"{first}, {second}", log_format="json"))
        structlog.get_logger().warning("seen", words=f"a {first} b", more=[second])
    finally:
        structlog.configure(**before)
        root.handlers = handlers
        root.setLevel(level)
    said = capsys.readouterr().err
    assert "seen" in said
    assert first not in said
    assert second not in said
