"""The model of a disk: what a write over other bytes may leave, and that none comes back over later synced bytes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.support.fakes.crash_states import SECTOR_SIZE, Choice, Disk, Stored, everything, nothing, subset
from tests.support.fakes.fake_fs import Operation

ROOT = Path("/memory")
FILE = str(ROOT / "file")
SYNC = Operation("fsync", FILE, inode=1)


def write(position: int, data: bytes, *, sync: bool = False) -> Operation:
    return Operation("write_and_sync" if sync else "pwrite", FILE, inode=1, position=position, data=data)


def content(disk: Disk, choose: Choice) -> bytes:
    found = disk.image(choose)["file"]
    assert found is not None
    return found.data


def zeros(size: int) -> Disk:
    """A disk with a file of so many synced zeros."""
    return Disk(ROOT, image={"file": Stored(bytes(size), inode=1)})


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ((), b"..lost...."),
        ((Operation("truncate", FILE, inode=1, size=4), SYNC), b"..lo"),
        ((write(3, b"new"), SYNC), b"..lnew...."),
        ((write(0, b"whole file"), SYNC), b"whole file"),
    ],
    ids=["nothing", "a truncation", "a write into it", "a write over it"],
)
def test_what_a_failed_sync_left_does_not_come_back_over_what_was_synced_since(
    since: tuple[Operation, ...], expected: bytes
) -> None:
    disk = Disk(ROOT, image={"file": Stored(b".." + b"." * 8, inode=1)})
    disk.apply(write(2, b"lost"))
    disk.lose_sync(SYNC)
    for operation in since:
        disk.apply(operation)
    disk.drop_lost(everything)
    assert content(disk, everything) == expected


def test_a_synced_write_over_other_bytes_leaves_any_part_of_its_sectors_until_it_returns() -> None:
    # It begins in the sector in which the acknowledged bytes end.
    disk, start, stop = zeros(4 * SECTOR_SIZE), 100, 3 * SECTOR_SIZE + 50
    disk.apply(write(0, b"a" * start, sync=True))
    record = write(start, b"b" * (stop - start), sync=True)
    bounds = (start, SECTOR_SIZE, 2 * SECTOR_SIZE, 3 * SECTOR_SIZE, stop)
    with disk.within(record):
        found = {content(disk, subset(bits)) for bits in range(16)}
    disk.apply(record)
    assert found == {
        b"a" * start
        + b"".join(fill * (after - at) for fill, at, after in zip(fills, bounds[:-1], bounds[1:], strict=True)).ljust(
            4 * SECTOR_SIZE - start, b"\0"
        )
        for fills in product((b"b", b"\0"), repeat=4)
    }
    assert {content(disk, choose) for choose in (nothing, everything)} == {
        (b"a" * start + record.data).ljust(4 * SECTOR_SIZE, b"\0")
    }


def test_an_acknowledged_write_over_zeros_that_was_not_synced_is_lost_in_some_state() -> None:
    disk = zeros(2 * SECTOR_SIZE)
    disk.apply(write(0, b"first", sync=True))
    disk.apply(write(5, b"second"))
    assert content(disk, nothing) == b"first".ljust(2 * SECTOR_SIZE, b"\0")
    assert content(disk, everything).startswith(b"firstsecond")


def test_zeros_that_were_not_synced_do_not_come_back_over_what_was_synced_since() -> None:
    disk = zeros(0)
    disk.apply(write(0, bytes(2 * SECTOR_SIZE)))
    disk.apply(write(10, b"record", sync=True))
    found = {content(disk, subset(bits)) for bits in range(8)}
    assert {data[10:16] for data in found} == {b"record"}
    # The zeros around it, also those in its sector, may still be missing.
    assert {len(data) for data in found} == {16, SECTOR_SIZE, 2 * SECTOR_SIZE}
