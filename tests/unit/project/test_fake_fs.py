"""The tests' own file systems: what the recorder sees, and which call fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kstore.errors import DiskFullError, SyncFailedError
from kstore.files.local import SYSTEM_FS
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs


def test_the_recorder_sees_every_byte_and_every_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    fs = RecordingFs()
    file = fs.open(path, write=True, create=True)
    file.write_all([b"ab", b"c"], 5)
    file.write_and_sync([b"d"], 8)
    mapping = file.map(4096)
    mapping.store(1, b"xy")
    mapping.sync()
    fs.mark("acknowledged", 7)
    fs.sync_dir(path.parent)
    inode = path.stat().st_ino
    seen = [(op.kind, op.inode, op.position, op.data) for op in fs.operations]
    assert seen == [
        ("create", inode, 0, b""),
        ("write_all", inode, 5, b"abc"),
        ("write_and_sync", inode, 8, b"d"),
        ("map", inode, 0, b""),
        ("store", inode, 1, b"xy"),
        ("sync_mapping", inode, 0, b""),
        ("mark acknowledged", 0, 7, b""),
        ("sync_dir", 0, 0, b""),
    ]


def test_the_failing_call_fails_once_or_always(tmp_path: Path) -> None:
    path = tmp_path / "file"
    once = FailingFs(SYSTEM_FS, Fault(at=2, errno=errno.ENOSPC, kinds=frozenset({"write_all"}), written=1))
    file = once.open(path, write=True, create=True)
    file.write_all([b"abc"], 0)
    with pytest.raises(DiskFullError):
        file.write_all([b"def"], 3)
    assert file.pread(10, 0) == b"abcd"
    file.write_all([b"def"], 3)
    sticky = FailingFs(SYSTEM_FS, Fault(at=1, sticky=True, kinds=frozenset({"fdatasync"})))
    file = sticky.open(path, write=True)
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            file.fdatasync()


def test_the_failing_one_can_fail_in_the_sync_of_a_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    fs = FailingFs(SYSTEM_FS, Fault(at=2, written=None))
    file = fs.open(path, write=True, create=True)
    with pytest.raises(SyncFailedError):
        file.write_and_sync([b"abc"], 0)
    assert file.pread(10, 0) == b"abc"
