"""Encode buffers are used again, by all logs of the process together, and few of them are kept."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.engine.append import pending
from kstore.engine.append.pending import SPARE_BYTES_MAX, SPARE_COUNT_MAX, keep_buffer, spare_buffer
from kstore.record._codec import BatchBuffer, Record
from kstore.record.builder import build_batch
from kstore.segments.tail import SegmentTail
from kstore.types import DURABILITIES, Durability
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> deque[BatchBuffer]:
    spare: deque[BatchBuffer] = deque(maxlen=SPARE_COUNT_MAX)
    monkeypatch.setattr(pending, "_spare", spare)
    return spare


def test_a_kept_buffer_is_used_again_empty() -> None:
    buffer = spare_buffer()
    buffer.extend(b"abc")
    keep_buffer(buffer)
    assert spare_buffer() is buffer
    assert buffer.size == 0
    assert spare_buffer() is not buffer


def test_few_are_kept_and_together_few_bytes(kept: deque[BatchBuffer]) -> None:
    keep_buffer(BatchBuffer(SPARE_BYTES_MAX + 1))
    assert not kept
    large = BatchBuffer(SPARE_BYTES_MAX // 2)
    for buffer in (large, BatchBuffer(SPARE_BYTES_MAX // 2 + 1), BatchBuffer(SPARE_BYTES_MAX // 4)):
        keep_buffer(buffer)
    assert [buffer.capacity for buffer in kept] == [SPARE_BYTES_MAX // 2, SPARE_BYTES_MAX // 4]
    for _ in range(2 * SPARE_COUNT_MAX):
        keep_buffer(BatchBuffer())
    assert len(kept) == SPARE_COUNT_MAX


@pytest.mark.parametrize("durability", DURABILITIES)
def test_none_is_kept_while_it_is_written(
    tmp_path: Path, durability: Durability, kept: deque[BatchBuffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_counts = []
    write = SegmentTail.write

    def counted(tail: SegmentTail, *args: Any, **named: Any) -> None:
        kept_counts.append(len(kept))
        write(tail, *args, **named)

    monkeypatch.setattr(SegmentTail, "write", counted)
    with Log(tmp_path / "log", durability=durability, fs=RecordingFs()) as log:
        log.append_many([b"a"])
        log.append_batches(build_batch([Record(0, 1, value=b"b")]))
        log.append_batches(build_batch([Record(0, 1, value=b"c")]))
    assert kept_counts == [0, 0, 0]
    assert len(kept) == 1


def test_logs_share_them_and_a_failed_append_keeps_none(tmp_path: Path, kept: deque[BatchBuffer]) -> None:
    fs = FailingFs()
    with Log(tmp_path / "a", durability="os") as log, Log(tmp_path / "b", durability="os", fs=fs) as other:
        log.append_many([b"a" * 1000] * 1000)
        (buffer,) = kept
        other.append_many([b"b"])
        assert list(kept) == [buffer]
        fs.faults.append(Fault(1, 28, kinds=frozenset({"write_all"})))
        with pytest.raises(OSError, match="No space"):
            other.append_many([b"c"])
        assert not kept
        other.append_many([b"d"])
        assert [record.value for record in other.read()] == [b"b", b"d"]
