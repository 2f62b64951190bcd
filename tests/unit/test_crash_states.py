"""The model of a disk: bytes of failed syncs in the page cache do not come back over later synced bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash_states import Disk, Stored, everything
from tests.fake_fs import Operation

ROOT = Path("/memory")
FILE = str(ROOT / "file")
SYNC = Operation("fsync", FILE, inode=1)


def write(position: int, data: bytes) -> Operation:
    return Operation("pwrite", FILE, inode=1, position=position, data=data)


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
    found = disk.image(everything)["file"]
    assert found is not None
    assert found.data == expected
