"""An append of encoded batches that needs no decision is compiled: what a failure at each of its steps leaves."""

from __future__ import annotations

import errno
import gc
import os
import tracemalloc
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.engine.append._path import Plan
from kstore.engine.append.pending import PendingAppend
from kstore.engine.change.durability import WriteBehind
from kstore.engine.over import foreign
from kstore.engine.producers import LogProducers
from kstore.errors import (
    DeliveryError,
    DiskFullError,
    KstoreError,
    OutOfOrderSequenceError,
    PoisonedError,
    RecordTooLargeError,
    StorageError,
)
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import writer_of
from kstore.record._codec import BatchBuffer, EncodedBatch, Record
from kstore.record.builder import build_batch, build_batches
from kstore.rules.validate import UnchangedBatch, split_batches, unchanged, validate
from kstore.segments.tail import SegmentTail
from kstore.state.log_state import StateFile
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.fakes.general_path import GeneralPath
from tests.support.harness.size_limit import size_limit
from tests.support.lives.producer_helpers import unthreaded

NOW_MS = 1_700_000_000_000
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


@pytest.mark.parametrize("step", [1, 2, -1])
def test_any_view_of_bytes_is_taken(tmp_path: Path, step: int) -> None:
    data = build_batch([Record(0, NOW_MS, value=b"a")])
    view = memoryview(bytearray(len(data) * abs(step)))[::step]
    view[:] = data
    with Log(tmp_path / "log", clock=ManualClock(NOW_MS)) as log:
        assert log.append_batches(view).last_offset == 0
        assert [record.value for record in log.read()] == [b"a"]


def test_something_without_bytes_is_a_type_error(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log, pytest.raises(TypeError, match="bytes-like object"):
        log.append_batches(17)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_changed_once_the_check_begins_is_not_written(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(build_batch([Record(0, NOW_MS, value=b"a")]) * count)

    def changed(*given: Any) -> UnchangedBatch | None:
        data[:] = bytes(len(data))
        return unchanged(*given)

    monkeypatch.setattr(foreign, "unchanged", changed)
    with Log(tmp_path / "log", clock=ManualClock(NOW_MS)) as log:
        log.append_batches(data)
        assert [record.value for record in log.read()] == [b"a"] * count


def test_a_batch_over_the_limit_is_refused_without_a_copy(tmp_path: Path) -> None:
    data = build_batch([Record(0, NOW_MS, value=bytes(16 << 20))])
    with Log(tmp_path / "log") as log:
        tracemalloc.start()
        try:
            with pytest.raises(RecordTooLargeError):
                log.append_batches(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20


def test_a_failed_one_leaves_nothing_and_the_next_continues(tmp_path: Path) -> None:
    fs = FailingFs()
    with Log(tmp_path / "log", durability="os", fs=fs, max_message_bytes=200) as log:
        log.append_many([b"a"])
        fs.faults.append(Fault(1, 28, written=300, kinds=frozenset({"write_all"})))
        with pytest.raises(DiskFullError):
            log.append_many([b"b" * 90] * 5)
        log.check()
        assert log.append_many([b"c"]).first_offset == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]
        assert log.metrics()["append_errors"] == {"DiskFullError": 1}


@pytest.mark.parametrize("fs", [SYSTEM_FS, RecordingFs()], ids=["compiled", "by the tail"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_interrupt_after_the_write_leaves_nothing(
    tmp_path: Path, durability: Durability, fs: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = SegmentTail.note

    def interrupted(tail: SegmentTail, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        note(tail, position, size, last_offset, max_timestamp)
        raise KeyboardInterrupt

    with Log(tmp_path / "log", durability=durability, fs=fs, max_message_bytes=200, index_interval_bytes=1) as log:
        log.append_many([b"a"])
        with monkeypatch.context() as patch:
            patch.setattr(SegmentTail, "note", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append_many([b"b" * 90] * 5)
        log.check()
        assert log.append_many([b"c"]).first_offset == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_interrupt_before_the_publication_leaves_nothing_on_the_general_path(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Log(tmp_path / "log", durability=durability, max_message_bytes=200, segment_bytes=1024) as log:
        log.append_many([b"a"])
        appends = writer_of(log).appends
        with monkeypatch.context() as patch:
            patch.setattr(appends, "path", GeneralPath(appends.path, interrupt))
            with pytest.raises(KeyboardInterrupt):
                log.append_many([b"b" * 90] * 12)  # in several segments
        log.check()
        assert log.append_many([b"c"]).first_offset == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]


def test_a_producer_s_one_that_fails_after_the_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, taken = SegmentTail.note, []

    def failing(tail: SegmentTail, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        note(tail, position, size, last_offset, max_timestamp)
        taken.append(position)
        raise StorageError(errno.EIO, "an index that cannot grow")

    with unthreaded(tmp_path / "log", batch_size=200, topic={"index_interval_bytes": 1}, retries=0) as one:
        one.producer.send("orders", b"a")
        one.producer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(SegmentTail, "note", failing)
            failed = one.producer.send_many("orders", [b"b" * 90] * 5)
            with pytest.raises(DeliveryError, match="an index that cannot grow"):
                one.producer.flush()
        assert all(isinstance(each.exception(), StorageError) for each in failed)
        assert taken
        log = one.store.log("orders")
        log.check()
        assert log.append(b"c") == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_an_append_that_was_interrupted_after_it_was_published_has_its_result(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # The first call after the publication.
    step: tuple[type, str] = (StateFile, "publish_durable_end")
    if durability == "os":
        step = (WriteBehind, "flush_as_due")
    with Log(tmp_path / "log", durability=durability, flush_messages=2) as log:
        log.append(b"a")
        append = batch_of([b"b", b"c"])
        with monkeypatch.context() as patch:
            patch.setattr(*step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer_of(log).appends.commit_many((append,))
        assert append.result is not None
        assert (append.result.first_offset, append.result.last_offset) == (1, 2)
        assert [record.value for record in log.read()] == [b"a", b"b", b"c"]


def test_a_refused_append_is_freed_with_its_error(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append_batches(
            build_batch([Record(0, NOW_MS, value=b"a")], producer_id=7, producer_epoch=0, base_sequence=0)
        )
        refused, other = batch_of([b"b"]), batch_of([b"c"])
        refused.with_producers, refused.stamp = True, (7, 0, 50, False)
        data = build_batch([Record(0, NOW_MS, value=b"b")], producer_id=7, producer_epoch=0, base_sequence=50)
        made = validate(split_batches(data), writer_of(log).context.config, now_ms=NOW_MS)
        refused.buffer, refused.batches = made.buffer, made.batches
        writer_of(log).appends.commit_many([refused, other])
        assert isinstance(refused.error, OutOfOrderSequenceError)
        # Its traceback leads to the plan of the write, and back to the append.
        error = weakref.ref(refused.error)
        del refused
        gc.collect()
        assert error() is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_producers_that_cannot_be_noted_after_a_publication_poison_the_log(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    with Log(tmp_path / "log") as log:
        data = build_batch([Record(0, NOW_MS, value=b"a")], producer_id=7, producer_epoch=0, base_sequence=0)
        log.append_batches(data)
        append = batch_of([b"b"])
        append.with_producers, append.stamp = True, (7, 0, 1, False)
        with monkeypatch.context() as patch:
            patch.setattr(LogProducers, "take_in_run", fails)
            with suppress(KeyboardInterrupt):
                writer_of(log).appends.commit_many((append,))
        assert append.result is not None
        assert append.result.first_offset == 1
        assert [record.value for record in log.read()] == [b"a", b"b"]
        assert [record.value for record in log.read(isolation_level="read_committed")] == [b"a"]
        with pytest.raises(PoisonedError):
            log.append(b"c")


def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the writes that the tail does from now on, not the compiled write."""
    found: list[int] = []
    write = SegmentTail.write

    def noted(tail: SegmentTail, buffers: Any, size: int, *, sync: bool) -> None:
        found.append(size)
        write(tail, buffers, size, sync=sync)

    monkeypatch.setattr(SegmentTail, "write", noted)
    return found


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_write_is_compiled_and_one_that_the_system_takes_in_part_is_the_tail_s(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log" / f"{0:020d}.log"
    with Log(tmp_path / "log", durability=durability, segment_bytes=1 << 20) as log:
        log.append(b"a")
        found = written(monkeypatch)
        assert log.append_many([b"b", b"c"]).first_offset == 1
        assert found == []
        size = path.stat().st_size
        with size_limit(size + 100), pytest.raises(KstoreError):
            log.append_many([bytes(100), b"d"])
        assert found
        assert path.stat().st_size == size
        log.check()
        assert log.append_many([b"e"]).first_offset == 3
        assert [record.value for record in log.read()] == [b"a", b"b", b"c", b"e"]
        log.check()


def test_a_sync_that_fails_poisons_the_log_and_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log" / f"{0:020d}.log"
    log = Log(tmp_path / "log")
    log.append(b"a")
    tail = writer_of(log).files.tail
    assert tail is not None
    file: Any = tail.file
    with path.open("ab") as other:
        other.write(b"not synced")
    fd, file._fd = file._fd, os.open(path, os.O_RDONLY)
    found = written(monkeypatch)
    try:
        with pytest.raises(KstoreError):
            log.append_many([b"b", b"c"])
    finally:
        os.close(file._fd)
        file._fd = fd
    assert found == []
    assert file._has_failed_sync
    with pytest.raises(PoisonedError):
        log.append_many([b"d"])
    log.close()
    with Log(tmp_path / "log") as log:
        assert [record.value for record in log.read()] == [b"a"]


def batch_of(values: list[bytes]) -> PendingAppend:
    buffer = BatchBuffer()
    return PendingAppend(buffer, build_batches(buffer, values, now_ms=NOW_MS, size_max=1 << 20), "none")


# --- what a plan takes ------------------------------------------------------------------------------------------------


def planned(log: Log) -> Plan:
    return writer_of(log).appends.path.plan(NOW_MS)


def encoded(*, is_one_buffer: bool = True) -> tuple[list[BatchBuffer], list[EncodedBatch]]:
    """Three batches, of 1, 2 and 3 records."""
    buffers: list[BatchBuffer] = []
    batches: list[EncodedBatch] = []
    for at in range(3):
        buffers.append(buffers[0] if at and is_one_buffer else BatchBuffer())
        batches += build_batches(buffers[-1], [b"v%d" % at] * (at + 1), now_ms=NOW_MS, size_max=1 << 20)
    return buffers, batches


@pytest.mark.parametrize("is_one_buffer", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2)], ids=["in a row", "with a gap"])
def test_batches_are_written_in_their_order_with_offsets_and_epoch(
    tmp_path: Path, is_one_buffer: bool, order: tuple[int, ...]
) -> None:
    buffers, batches = encoded(is_one_buffer=is_one_buffer)
    with Log(tmp_path / "log", clock=ManualClock(NOW_MS)) as log:
        log.append(b"first")
        position = writer_of(log).ends.position
        plan, offset = planned(log), 1
        for at in order:
            assert plan.add(buffers[at], batches[at], offset, offset + at, 5)
            offset += at + 1
        path = writer_of(log).appends.path
        path.write(plan)
        path.publish(plan, [], [], None)
        data = (tmp_path / "log" / f"{0:020d}.log").read_bytes()[position:]
        assert len(data) == sum(batches[at].size for at in order)
        assert [record.value for record in log.read(1)] == [b"v%d" % at for at in order for _ in range(at + 1)]
        start = 0
        for at in order:
            assert int.from_bytes(data[start + 12 : start + 16], "big") == 5
            start += batches[at].size


@pytest.mark.parametrize(
    ("changes", "last_offset"),
    [
        ({"segment_bytes": 69 + 20}, 1),  # one that does not fit
        ({"entry_room": 0}, 1),
        ({"first_timestamp": -1}, 1),  # the segment's first record has no time
        ({"first_timestamp": NOW_MS - 10_001}, 1),
        ({}, 2**31),  # too far from the segment's start
    ],
)
def test_what_may_need_a_new_segment_is_left_to_a_decision(
    tmp_path: Path, changes: dict[str, Any], last_offset: int
) -> None:
    buffers, batches = encoded()
    with Log(tmp_path / "log", clock=ManualClock(NOW_MS), segment_ms=10_000) as log:
        log.append(b"first")
        tail = writer_of(log).files.tail
        assert tail is not None
        usual = {name: getattr(tail.numbers, name) for name in changes}
        for name, value in changes.items():
            setattr(tail.numbers, name, value)
        before = bytes(buffers[0])
        plan = planned(log)
        assert not plan.add(buffers[0], batches[0], last_offset, last_offset, 0)
        assert plan.segment_end == tail.position
        assert bytes(buffers[0]) == before
        for name, value in usual.items():
            setattr(tail.numbers, name, value)
        assert planned(log).add(buffers[0], batches[0], 1, 1, 0)


def test_buffers_that_are_not_one_for_each_batch_are_refused(tmp_path: Path) -> None:
    buffers, batches = encoded(is_one_buffer=False)
    with Log(tmp_path / "log") as log:
        log.append(b"first")
        append = PendingAppend(buffers[0], batches, "none", buffers=buffers[:2])
        with pytest.raises(ValueError, match="2 buffers, expected one for each of the 3 batches"):
            writer_of(log).commit_many([append])
        for wrong in (None, 7):
            append = PendingAppend(buffers[0], batches, "none", buffers=[wrong] * 3)  # type: ignore[list-item]
            with pytest.raises(TypeError):
                writer_of(log).commit_many([append])
        assert log.append(b"next") == 1


def test_a_batch_outside_its_buffer_is_refused(tmp_path: Path) -> None:
    buffers, batches = encoded()
    with Log(tmp_path / "log") as log:
        log.append(b"first")
        append = PendingAppend(buffers[0], [batches[0]._replace(position=1 << 20)], "none")
        with pytest.raises(ValueError, match="expected a batch in the"):
            writer_of(log).commit_many([append])
        append = PendingAppend(buffers[0], [(1, 2, 3)], "none")  # type: ignore[list-item]
        with pytest.raises(TypeError, match="expected an EncodedBatch"):
            writer_of(log).commit_many([append])
        assert log.append(b"next") == 1
