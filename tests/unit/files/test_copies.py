"""Bytes that the kernel copies from file to file, and what happens if it cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from kstore.errors import DiskFullError, TruncatedFileError
from kstore.files.copies import PIECE_BYTES, FileRange, copy_range, crc_of
from kstore.files.local import SYSTEM_FS
from kstore.record.crc import crc32c
from tests.support.fakes.fake_fs import RecordingFs

SIZE = PIECE_BYTES + 1000
DATA = os.urandom(SIZE)

CopyFileRange = Callable[..., int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(DATA)
    return tmp_path


def copied(path: Path, position: int = 0, size: int = SIZE) -> bytes:
    source, target = SYSTEM_FS.open(path / "source"), SYSTEM_FS.open(path / "target", write=True, create=True)
    copy_range(FileRange(source, position, size), target)
    return (path / "target").read_bytes()


def test_bytes_are_copied_to_their_position(path: Path) -> None:
    assert copied(path) == DATA
    (path / "target").unlink()
    assert copied(path, 500, 100) == bytes(500) + DATA[500:600]


NEEDS_THE_CALL = pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="this system has no copy_file_range")


@NEEDS_THE_CALL
@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_what_the_kernel_cannot_copy_is_read_and_written(code: int, path: Path) -> None:
    real: CopyFileRange = os.copy_file_range
    answers: list[CopyFileRange] = [
        lambda *args: real(args[0], args[1], 70, *args[3:]),
        mock.Mock(side_effect=OSError(code, "no")),
    ]
    with mock.patch.object(os, "copy_file_range", lambda *args: answers.pop(0)(*args)):
        assert copied(path) == DATA
    assert not answers


@NEEDS_THE_CALL
def test_without_the_system_call_bytes_are_read_and_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    assert copied(path) == DATA


def test_a_file_that_wraps_another_sees_each_write(path: Path) -> None:
    fs = RecordingFs()
    target = fs.open(path / "target", write=True, create=True)
    copy_range(FileRange(fs.open(path / "source"), 0, SIZE), target)
    assert (path / "target").read_bytes() == DATA
    assert "write_all" in fs.kinds()


def test_a_source_that_ends_early_is_an_error(path: Path) -> None:
    with pytest.raises(TruncatedFileError, match=f"it ends before {SIZE + 1} bytes"):
        copied(path, size=SIZE + 1)


@NEEDS_THE_CALL
def test_a_full_disk_is_a_typed_error(path: Path) -> None:
    with (
        mock.patch.object(os, "copy_file_range", side_effect=OSError(errno.ENOSPC, "no space")),
        pytest.raises(DiskFullError),
    ):
        copied(path)


def test_a_crc_continues(path: Path) -> None:
    file = SYSTEM_FS.open(path / "source")
    assert crc_of(FileRange(file, 0, SIZE)) == crc32c(DATA)
    assert crc_of(FileRange(file, 600, SIZE - 600), crc_of(FileRange(file, 0, 600))) == crc32c(DATA)
