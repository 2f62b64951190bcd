"""What tests of whole logs share: batches with offsets and producers of our choice, and copies of logs as a kill leaves
them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from tests.log_helpers import TIME

__all__ = ["data", "edit", "files", "killed", "marker", "offsets", "segment_bases", "transaction"]


def offsets(log: Log, start: int | None = None, **options: Any) -> list[int]:
    return [record.offset for record in log.read(start, **options)]


def data(*wanted: int, timestamp: int = TIME, size: int = 10, **fields: Any) -> bytes:
    """One batch with a record at each of the offsets ``wanted``; the times are those of the offsets."""
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
    """A copy of an open log: what a writer that is killed now leaves."""
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
