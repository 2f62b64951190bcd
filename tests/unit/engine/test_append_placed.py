"""An append with nothing to decide takes a short path, and must write the same."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.engine.append.appends import Appends
from kstore.engine.append.pending import PendingAppend
from kstore.engine.change.durability import WriteBehind
from kstore.engine.producers import LogProducers
from kstore.errors import DeliveryError, DiskFullError, KstoreError, PoisonedError, StorageError
from kstore.log import writer_of
from kstore.record._codec import BatchBuffer, EncodedBatch, Record
from kstore.record.builder import build_batch, build_batches
from kstore.segments._numbers import TailNumbers
from kstore.segments.tail import SegmentTail
from kstore.state.log_state import StateFile
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.lives.producer_helpers import unthreaded

NOW_MS = 1_700_000_000_000
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several batches": {"max_message_bytes": 300, "index_interval_bytes": 500},
    "an entry for each batch": {"max_message_bytes": 200, "index_interval_bytes": 1},
    "small segments": {"max_message_bytes": 300, "segment_bytes": 2000},
    "small indexes": {"max_message_bytes": 200, "index_interval_bytes": 1, "segment_index_bytes": 120},
    "lz4": {"compression_type": "lz4", "max_message_bytes": 300},
    "LogAppendTime": {"message_timestamp_type": "LogAppendTime"},
}


def files_of(path: Path) -> dict[str, bytes]:
    suffixes = (".log", ".index", ".timeindex", ".snapshot")
    return {file.name: file.read_bytes() for file in path.rglob("*") if file.suffix in suffixes}


def either_way(work: Callable[[bool], object], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Does ``work(True)``, then ``work(False)`` without short paths; returns which of the first appends took one."""
    taken: list[bool] = []
    short_ways = {"_commit_placed": Appends._commit_placed}

    def noted(way: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = way(*arguments)
            taken.append(bool(result))
            return result

        return call

    with monkeypatch.context() as patch:
        for name, way in short_ways.items():
            patch.setattr(Appends, name, noted(way))
        work(True)
        for name in short_ways:
            patch.setattr(Appends, name, lambda *_: None)
        work(False)
    return taken


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_files_and_results_are_those_of_the_general_path(
    tmp_path: Path, settings: dict[str, Any], durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[bool, tuple[object, ...]] = {}

    def work(is_short: bool) -> None:
        path = tmp_path / str(is_short)
        clock = ManualClock()
        with Log(path, durability=durability, clock=clock, **settings) as log:
            results = []
            for number in range(30):
                values = [b"%d %d" % (number, at) * (number % 7) for at in range(number % 11)]
                times = [NOW_MS - at * number for at in range(len(values))] if number % 3 == 0 else None
                results.append(log.append_many(values, timestamps=times))
                clock.advance(number % 2)
            log.check()
            counts = {name: count for name, count in log.metrics().items() if name.startswith("append")}
        found[is_short] = (results, counts, files_of(path))

    taken = either_way(work, monkeypatch)
    assert found[True] == found[False]
    assert sum(taken) > (5 if settings else 20)


@pytest.mark.parametrize("idempotent", [True, False])
def test_files_of_a_producer_are_those_of_the_general_path(
    tmp_path: Path, idempotent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[bool, dict[str, bytes]] = {}

    def work(is_short: bool) -> None:
        path = tmp_path / str(is_short)
        with unthreaded(path, enable_idempotence=idempotent, batch_size=200) as one:
            for number in range(1, 20):
                values = [b"%d %d" % (number, at) for at in range(3 * number)]
                deliveries = one.producer.send_many("orders", values)
                one.producer.flush()
                assert deliveries.result() == list(range(deliveries[0].offset, deliveries[0].offset + 3 * number))
        found[is_short] = files_of(path)

    taken = either_way(work, monkeypatch)
    assert found[True] == found[False]
    assert sum(taken) > 10


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


@pytest.mark.parametrize("is_short", [True, False], ids=["short", "general"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_interrupt_after_the_write_leaves_nothing(
    tmp_path: Path, durability: Durability, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_short:
        monkeypatch.setattr(Appends, "_commit_placed", lambda *_: False)
    note = SegmentTail.note

    def interrupted(tail: SegmentTail, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        note(tail, position, size, last_offset, max_timestamp)
        raise KeyboardInterrupt

    with Log(tmp_path / "log", durability=durability, max_message_bytes=200, index_interval_bytes=1) as log:
        log.append_many([b"a"])
        with monkeypatch.context() as patch:
            patch.setattr(SegmentTail, "note", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append_many([b"b" * 90] * 5)
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


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Inside, no file of this process can grow beyond ``size``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def batch_of(values: list[bytes]) -> PendingAppend:
    buffer = BatchBuffer()
    return PendingAppend(buffer, build_batches(buffer, values, now_ms=NOW_MS, size_max=1 << 20), "none")


# --- the compiled part ------------------------------------------------------------------------------------------------


def numbers(**settings: Any) -> TailNumbers:
    made = TailNumbers(0, 0)
    made.first_timestamp, made.segment_bytes, made.segment_ms = NOW_MS, 1 << 30, 10_000
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def encoded(*, is_one_buffer: bool = True) -> tuple[BatchBuffer | list[BatchBuffer], list[EncodedBatch]]:
    buffers: list[BatchBuffer] = []
    batches: list[EncodedBatch] = []
    for at in range(3):
        buffers.append(buffers[0] if at and is_one_buffer else BatchBuffer())
        batches += build_batches(buffers[-1], [b"v%d" % at] * (at + 1), now_ms=NOW_MS, size_max=1 << 20)
    return (buffers[0] if is_one_buffer else buffers), batches


@pytest.mark.parametrize("is_one_buffer", [True, False])
def test_batches_get_consecutive_offsets(is_one_buffer: bool) -> None:
    buffers, batches = encoded(is_one_buffer=is_one_buffer)
    placed = numbers().place(buffers, batches, 7, 5, NOW_MS, NOW_MS)
    assert placed is not None
    views, size, record_count, max_timestamp, offset_of_max = placed
    assert len(views) == (1 if is_one_buffer else 3)
    assert (record_count, max_timestamp, offset_of_max) == (6, NOW_MS, 7)
    data = b"".join(views)
    assert len(data) == size == sum(batch.size for batch in batches)
    heads = [data[at : at + 16] for at in (0, batches[0].size, batches[0].size + batches[1].size)]
    assert [int.from_bytes(head[:8], "big") for head in heads] == [7, 8, 10]
    assert {int.from_bytes(head[12:], "big") for head in heads} == {5}


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"segment_bytes": 236}, {}),  # the third does not fit
        ({"indexes_full": True}, {}),
        ({"first_timestamp": -1}, {}),  # the segment's first record has no time
        ({"first_timestamp": NOW_MS - 10_001}, {}),
        ({}, {"offset": 2**31 - 5}),  # too far from the segment's start
        ({}, {"now_ms": NOW_MS + 10_001}),  # the segment was idle
        ({}, {"batches": []}),
    ],
)
def test_what_may_need_a_new_segment_is_left_to_a_decision(changes: dict[str, Any], arguments: dict[str, Any]) -> None:
    buffer, batches = encoded()
    plain = {"buffers": buffer, "batches": batches, "offset": 2**31 - 6, "leader_epoch": 0, "now_ms": NOW_MS}
    plain["last_append_ms"] = NOW_MS
    assert sum(batch.size for batch in batches) == 237
    before = bytes(buffer)  # type: ignore[arg-type]  # one buffer
    assert numbers(**changes).place(**{**plain, **arguments}) is None
    assert bytes(buffer) == before  # type: ignore[arg-type]
    assert numbers().place(**plain) is not None  # type: ignore[arg-type]


def test_batches_that_do_not_follow_one_another_are_left_to_a_decision() -> None:
    buffer, batches = encoded()
    assert numbers().place(buffer, batches[::2], 0, 0, NOW_MS, NOW_MS) is None


def test_buffers_that_are_not_one_for_each_batch_are_refused() -> None:
    buffers, batches = encoded(is_one_buffer=False)
    with pytest.raises(ValueError, match="2 buffers, expected one for each of the 3 batches"):
        numbers().place(buffers[:2], batches, 0, 0, NOW_MS, NOW_MS)  # type: ignore[index]  # a list
    for wrong in (None, 7):
        with pytest.raises(TypeError):
            numbers().place([wrong] * 3, batches, 0, 0, NOW_MS, NOW_MS)  # type: ignore[list-item]


def test_a_batch_outside_its_buffer_is_refused() -> None:
    buffer, batches = encoded()
    with pytest.raises(ValueError, match="expected a batch in the"):
        numbers().place(buffer, [batches[0]._replace(position=1 << 20)], 0, 0, NOW_MS, NOW_MS)
    with pytest.raises(TypeError):
        numbers().place(buffer, [(1, 2, 3)], 0, 0, NOW_MS, NOW_MS)  # type: ignore[list-item]
