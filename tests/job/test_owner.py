"""A store that is not the one it should be is left as it is, however much it looks like a place for archives."""

from collections.abc import Callable
from pathlib import Path

import pytest

from codehub.job import archive as archive_module
from codehub.job.archive import ArchiveRequest, archive
from codehub.job.errors import ExitCode, JobFailed
from codehub.job.store import ArchiveStore, Owner
from tests.job.jobs import Desk, Heard, run_job

MARK = "codehub-owner"
OPTION = ("--owner", MARK, "this-install")


def lose_mount(archives: Path) -> None:
    archives.rename(archives.with_name("disk"))
    archives.mkdir()


def test_its_own_store_is_used(desk: Desk) -> None:
    (desk.home / "a").write_text("newest")
    (desk.archives / MARK).write_text("this-install\n")
    assert run_job([*desk.archive_arguments(), *OPTION]).code == ExitCode.DONE
    assert run_job([*desk.restore_arguments(), *OPTION]).code == ExitCode.DONE
    assert (desk.restored / "a").read_text() == "newest"


@pytest.mark.parametrize("found", [None, "another"])
@pytest.mark.parametrize("arguments", [Desk.archive_arguments, Desk.restore_arguments], ids=["archive", "restore"])
def test_anothers_is_not(desk: Desk, arguments: Callable[[Desk], list[str]], found: str | None) -> None:
    if found:
        (desk.archives / MARK).write_text(found)
    before = sorted(desk.archives.rglob("*"))
    refused = run_job([*arguments(desk), *OPTION])
    assert (refused.code, refused.last["reason"]) == (ExitCode.OTHER_STORE, "Unreachable")
    assert refused.last["detail"] == "other_store"
    assert "this-install" in refused.last["message"]
    assert sorted(desk.archives.rglob("*")) == before


def test_a_mount_lost_during_the_upload_vouches_for_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.archives / MARK).write_text("this-install")
    upload = archive_module._upload

    def uploaded_below(volume: int, store: ArchiveStore, *rest: object) -> object:
        lose_mount(desk.archives)
        return upload(volume, store, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(archive_module, "_upload", uploaded_below)
    with pytest.raises(JobFailed) as refused:
        archive(ArchiveRequest(desk.home, desk.store_url, desk.key, 0.01, Owner(MARK, "this-install")), Heard())
    assert refused.value.code is ExitCode.OTHER_STORE
    assert not desk.meta.exists()
