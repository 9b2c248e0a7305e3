"""What is known of a workspace's usage, and when it is warned of: unknown is never 0, and never full."""

import pytest

from codehub.domain.usage import (
    WARNING_MESSAGES,
    ComputeUsage,
    DiskUsage,
    Usage,
    UsageWarning,
    cpu_in_use,
    is_filling,
    usage_of,
    usage_warnings,
)

GB = 1_000_000_000


def warned(*disk: int | None) -> list[UsageWarning]:
    return list(usage_warnings(Usage(disk=DiskUsage(*disk))))


def test_unknown_is_not_full() -> None:
    assert usage_warnings(Usage()) == ()
    assert warned() == []
    assert warned(None, 10 * GB, None, None) == []
    assert warned(9 * GB, None, None, 1) == []


@pytest.mark.parametrize(("used", "is_warned"), [(0, False), (8_999_999_999, False), (9 * GB, True), (11 * GB, True)])
def test_nine_tenths_of_a_limit_are_nearly_full(used: int, is_warned: bool) -> None:
    assert warned(used, 10 * GB, 10 * GB, 10 * GB - used) == ([UsageWarning.DISK_NEARLY_FULL] if is_warned else [])


@pytest.mark.parametrize(
    ("total", "free", "is_warned"),
    [
        (10 * GB, 1_000_000_001, False),
        (10 * GB, 1 * GB, True),
        (10 * GB, 0, True),
        (4_000 * GB, 3 * GB, False),
        (4_000 * GB, 2 * GB, True),
    ],
)
def test_a_shared_file_system_is_nearly_full_by_what_is_left(total: int, free: int, is_warned: bool) -> None:
    assert warned(1, None, total, free) == ([UsageWarning.FILE_SYSTEM_NEARLY_FULL] if is_warned else [])


def test_every_warning_says_what_to_do() -> None:
    assert set(WARNING_MESSAGES) == set(UsageWarning)


def test_a_disk_is_watched_before_it_is_warned_of() -> None:
    assert is_filling(DiskUsage(75, 100, 100, 25))
    assert not is_filling(DiskUsage(74, 100, 100, 26))
    assert is_filling(DiskUsage(1, None, 100 * GB, 8 * GB))
    assert not is_filling(DiskUsage(1, None, 100 * GB, 9 * GB))
    assert not is_filling(DiskUsage(None, 100, None, None))
    assert not is_filling(DiskUsage())


def test_cpu_is_counted_between_two_looks_at_the_same_run() -> None:
    earlier, later = ComputeUsage("a", 10.0), ComputeUsage("a", 13.0)
    assert cpu_in_use(earlier, later, 2.0) == 1.5
    assert cpu_in_use(earlier, earlier, 2.0) == 0.0
    assert cpu_in_use(None, later, 2.0) is None
    assert cpu_in_use(earlier, later, 0.0) is None
    assert cpu_in_use(later, earlier, 2.0) is None, "a count that fell says nothing"
    assert cpu_in_use(earlier, ComputeUsage("b", 13.0), 2.0) is None, "another run counts from its own start"
    assert cpu_in_use(ComputeUsage("a"), later, 2.0) is None
    assert cpu_in_use(earlier, ComputeUsage("a"), 2.0) is None


def test_usage_is_put_together() -> None:
    disk = DiskUsage(1, 2, 3, 4)
    assert usage_of(ComputeUsage("a", 1.0, 2.0, 3, 4), 0.5, disk) == Usage(0.5, 2.0, 3, 4, disk)
