"""A store that is not the one it should be is left as it is, however much it looks like a place for archives."""

from collections.abc import Callable
from pathlib import Path

import pytest

from codehub.job import archive as archive_module
from codehub.job.archive import ArchiveRequest, archive
from codehub.job.errors import ExitCode, JobFailed
from codehub.job.store import ArchiveStore, Owner
from tests.job.harness import JobHarness, RecordedProgress, run_job

MARK = "codehub-owner"
OPTION = ("--owner", MARK, "this-install")


def lose_mount(archives: Path) -> None:
    archives.rename(archives.with_name("disk"))
    archives.mkdir()


def test_its_own_store_is_used(harness: JobHarness) -> None:
    (harness.home / "a").write_text("newest")
    (harness.archives / MARK).write_text("this-install\n")
    assert run_job([*harness.archive_arguments(), *OPTION]).code == ExitCode.DONE
    assert run_job([*harness.restore_arguments(), *OPTION]).code == ExitCode.DONE
    assert (harness.restored / "a").read_text() == "newest"


@pytest.mark.parametrize("found", [None, "another"])
@pytest.mark.parametrize(
    "arguments", [JobHarness.archive_arguments, JobHarness.restore_arguments], ids=["archive", "restore"]
)
def test_anothers_is_not(harness: JobHarness, arguments: Callable[[JobHarness], list[str]], found: str | None) -> None:
    if found:
        (harness.archives / MARK).write_text(found)
    before = sorted(harness.archives.rglob("*"))
    refused = run_job([*arguments(harness), *OPTION])
    assert (refused.code, refused.last["reason"]) == (ExitCode.OTHER_STORE, "Unreachable")
    assert refused.last["detail"] == "other_store"
    assert "this-install" in refused.last["message"]
    assert sorted(harness.archives.rglob("*")) == before


def test_a_mount_lost_during_the_upload_vouches_for_nothing(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (harness.archives / MARK).write_text("this-install")
    upload = archive_module._upload

    def uploaded_below(volume: int, store: ArchiveStore, *rest: object) -> object:
        lose_mount(harness.archives)
        return upload(volume, store, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(archive_module, "_upload", uploaded_below)
    with pytest.raises(JobFailed) as refused:
        archive(
            ArchiveRequest(harness.home, harness.store_url, harness.key, 0.01, Owner(MARK, "this-install")),
            RecordedProgress(),
        )
    assert refused.value.code is ExitCode.OTHER_STORE
    assert not harness.meta.exists()
