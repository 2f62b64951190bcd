"""Shared by the tests of whole logs: batches with chosen offsets and producers, and copies of logs as a kill leaves
them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.state.log_state import LogState, read_state
from tests.support.lives.log_helpers import TIME

FIRST = f"{0:020d}.log"


def park(log: Log) -> None:
    """Closes the tail of an unused log, once its background flush is done."""
    while not writer_of(log).files.park():
        with writer_of(log).files.syncs.lock:
            pass


def offsets(log: Log, start: int | None = None, **options: Any) -> list[int]:
    return [record.offset for record in log.read(start, **options)]


def data(*wanted: int, timestamp: int = TIME, size: int = 10, **fields: Any) -> bytes:
    """One batch with a record at each of the offsets ``wanted``; its time follows from the offset."""
    return build_batch([Record(at, timestamp + at, value=b"%d" % at + b"." * size) for at in wanted], **fields)


def transaction(producer_id: int, *wanted: int, epoch: int = 0, sequence: int = 0, **fields: Any) -> bytes:
    """One transactional batch."""
    return data(
        *wanted,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
        **fields,
    )


def marker(producer_id: int, offset: int, *, commit: bool, epoch: int = 0) -> bytes:
    """The end of a producer's transaction."""
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    key, value = EndTransactionMarker(kind, 0).encode()
    return build_batch(
        [Record(offset, TIME + offset, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        is_transactional=True,
        is_control=True,
    )


def killed(log: Log, target: Path) -> Path:
    """A copy of an open log: the state after a kill of its writer now."""
    shutil.copytree(log.path, target)
    return target


def segment_bases(path: Path) -> list[int]:
    return sorted(int(each.stem) for each in path.glob("*.log"))


def files(path: Path, *suffixes: str) -> dict[str, bytes]:
    """Names and bytes of the files in a log's directory with one of ``suffixes``."""
    return {each.name: each.read_bytes() for each in sorted(path.iterdir()) if each.suffix in suffixes}


def edit(path: Path, change: Callable[[bytearray], Any]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


# --- losses -----------------------------------------------------------------------------------------------------------


def state_of(path: Path) -> LogState:
    state = read_state(SYSTEM_FS, path / "kstore.state")
    assert state is not None
    return state


def tail_lost(path: Path, **settings: Any) -> Path:
    """A log of records 0 to 10, of which the disk has lost 9 and 10, at its end; not recovered yet."""
    with Log(path.with_name(path.name + "-alive"), **settings) as log:
        for number in range(9):
            log.append(b"%d" % number)
        size = (log.path / FIRST).stat().st_size
        log.append(b"9")
        log.append(b"10")
        shutil.copytree(log.path, path)
    os.truncate(path / FIRST, size)
    return path


def lost_in_the_middle(path: Path, **settings: Any) -> Path:
    """The same log, recovered and continued: records 0 to 8 and 11 to 13 exist."""
    with Log(tail_lost(path, **settings), **settings) as log:
        for number in range(11, 14):
            assert log.append(b"%d" % number) == number
    return path


def fenced(path: Path) -> Path:
    """A log of records 0 to 9 in batches of one, of which 4 is damaged."""
    with Log(path) as log:
        for number in range(10):
            log.append(b"%d" % number)
        size = (path / FIRST).stat().st_size // 10
    flip(path / FIRST, 4 * size + 65)
    return path


def flip(path: Path, position: int) -> None:
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
