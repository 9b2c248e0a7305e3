"""A store that breaks off, in whichever way, is not reached; one that answers wrong is asked again. Neither is damage,
and neither is a failure of the home: a real S3 server behind proxies that break and change what they carry."""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from codehub.job.errors import ExitCode, JobFailed
from codehub.job.store import ArchiveStore
from tests.faulty_proxy import Answered, Break, BreakingProxy, ChangingProxy, breaking, changing
from tests.job.harness import (
    JobHarness,
    run_job,
    verify,
)
from tests.job.s3_server import S3Server
from tests.job.trees import assert_same

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

WAYS = tuple(way for way in Break if way is not Break.HANG)
"""A store that hangs is given up after a minute of silence; the other ways are the quicker ones."""
IMPATIENT = ("--backoff-seconds", "0.05")


@pytest.fixture
def home(harness: JobHarness) -> JobHarness:
    (harness.home / "large").write_bytes(os.urandom(3 << 20))
    (harness.home / "small").write_text("small")
    return harness


@pytest.fixture
def cut(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakingProxy]:
    with breaking(("127.0.0.1", s3.port)) as (port, proxy):
        monkeypatch.setenv("CODEHUB_S3_ENDPOINT", f"http://127.0.0.1:{port}")
        yield proxy


@pytest.fixture
def liar(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChangingProxy]:
    with changing(s3.port) as (port, proxy):
        monkeypatch.setenv("CODEHUB_S3_ENDPOINT", f"http://127.0.0.1:{port}")
        yield proxy


# ── outages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_store_that_breaks_off_is_not_reached(home: JobHarness, cut: BreakingProxy, way: Break) -> None:
    before = home.tree_of_home()
    cut.choose = lambda: way
    archived = run_job([*home.archive_arguments(), *IMPATIENT])
    assert (archived.code, archived.last["reason"]) == (ExitCode.UNREACHABLE, "Unreachable"), archived.message
    cut.choose = lambda: None
    assert run_job(home.archive_arguments()).code == ExitCode.DONE
    cut.choose = lambda: way
    restored = run_job([*home.restore_arguments(), *IMPATIENT])
    assert (restored.code, restored.last["reason"]) == (ExitCode.UNREACHABLE, "Unreachable"), restored.message
    assert os.listdir(home.restored) == []
    cut.choose = lambda: None
    assert run_job(home.restore_arguments()).code == ExitCode.DONE
    assert_same(before, home.tree_restored())


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_breaks_off_at_random_is_worked_with_in_the_end(
    home: JobHarness, cut: BreakingProxy, seed: int
) -> None:
    before, chance = home.tree_of_home(), random.Random(seed)
    cut.choose = lambda: chance.choice(WAYS) if chance.random() < 0.3 else None
    for arguments in (home.archive_arguments(), home.restore_arguments()):
        for _ in range(20):
            outcome = run_job([*arguments, *IMPATIENT])
            assert outcome.code in (ExitCode.DONE, ExitCode.UNREACHABLE), outcome.message
            if outcome.code == ExitCode.DONE:
                break
        else:
            raise AssertionError("not once in twenty times")
    assert_same(before, home.tree_restored())


def test_an_upload_that_the_store_forgets_is_an_outage(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    (harness.home / "a").write_text("x")
    monkeypatch.setattr(ArchiveStore, "sync", lambda _store: harness.object.unlink())
    archived = harness.archive()
    what = "the object store does not give back what was sent"
    assert (archived.code, archived.message) == (ExitCode.UNREACHABLE, what)
    assert not harness.meta.exists()


# ── wrong answers ────────────────────────────────────────────────────────────────────────────────────────────────────

Change = Callable[[Answered], Answered]


def flipped(answered: Answered) -> Answered:
    at = len(answered.body) // 2
    body = answered.body[:at] + bytes([answered.body[at] ^ 1]) + answered.body[at + 1 :] if answered.body else b""
    return answered._replace(body=body)


def short(answered: Answered) -> Answered:
    return answered._replace(body=answered.body[:-7], length=answered.length - 7)


def missing(_answered: Answered) -> Answered:
    return Answered(404, b"", 0)


ANSWERS = {
    "a flipped bit of the archive": ("GET", "home.tar.zst", flipped),
    "a short archive": ("GET", "home.tar.zst", short),
    "a wrong length": ("HEAD", "home.tar.zst", short),
    "no archive": ("HEAD", "home.tar.zst", missing),
    "a flipped bit of .meta": ("GET", ".meta", flipped),
    "a short .meta": ("GET", ".meta", short),
    "no .meta": ("GET", ".meta", missing),
}


def wrong(method: str, end: str, change: Change, times: int) -> Callable[[str, str, Answered], Answered]:
    """The first so many answers to that question are changed."""
    left = times

    def changed(asked: str, path: str, answered: Answered) -> Answered:
        nonlocal left
        if asked != method or not path.partition("?")[0].endswith(end) or not left:
            return answered
        left -= 1
        return change(answered)

    return changed


def verdict(harness: JobHarness) -> ExitCode:
    try:
        verify(harness.store())
    except JobFailed as failure:
        return failure.code
    return ExitCode.DONE


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_wrong_answer_is_not_a_wrong_object(home: JobHarness, liar: ChangingProxy, answer: str) -> None:
    before = home.tree_of_home()
    assert run_job(home.archive_arguments()).code == ExitCode.DONE
    liar.change = wrong(*ANSWERS[answer], times=1)
    restored = run_job([*home.restore_arguments(), *IMPATIENT])
    assert restored.code == ExitCode.DONE, restored.message
    assert_same(before, home.tree_restored())
    liar.change = wrong(*ANSWERS[answer], times=1)
    assert verdict(home) in (ExitCode.DONE, ExitCode.UNREACHABLE)


def test_answers_that_are_wrong_in_another_way_each_time_are_no_damage(home: JobHarness, liar: ChangingProxy) -> None:
    assert run_job(home.archive_arguments()).code == ExitCode.DONE
    chance = random.Random(1)

    def anywhere(answered: Answered) -> Answered:
        at = chance.randrange(len(answered.body))
        body = answered.body[:at] + bytes([answered.body[at] ^ 1]) + answered.body[at + 1 :]
        return answered._replace(body=body)

    liar.change = wrong("GET", "home.tar.zst", anywhere, times=1000)
    restored = run_job([*home.restore_arguments(), *IMPATIENT])
    assert (restored.code, restored.last["reason"]) == (ExitCode.UNREACHABLE, "Unreachable"), restored.message
    assert os.listdir(home.restored) == []


@pytest.mark.parametrize("answer", ["a flipped bit of the archive", "a wrong length", "a short .meta"])
def test_what_is_wrong_in_the_same_way_each_time_is_damage(home: JobHarness, liar: ChangingProxy, answer: str) -> None:
    assert run_job(home.archive_arguments()).code == ExitCode.DONE
    liar.change = wrong(*ANSWERS[answer], times=1000)
    restored = run_job([*home.restore_arguments(), *IMPATIENT])
    assert (restored.code, restored.last["reason"]) == (ExitCode.ARCHIVE_CORRUPTED, "ArchiveCorrupted")
    assert os.listdir(home.restored) == []


@pytest.mark.parametrize("answer", ["a flipped bit of the archive", "a short archive", "a flipped bit of .meta"])
def test_a_wrong_answer_while_an_archive_is_proven_is_asked_for_again(
    home: JobHarness, liar: ChangingProxy, answer: str
) -> None:
    liar.change = wrong(*ANSWERS[answer], times=1)
    archived = run_job([*home.archive_arguments(), *IMPATIENT])
    assert archived.code == ExitCode.DONE, archived.message
    verify(home.store())
