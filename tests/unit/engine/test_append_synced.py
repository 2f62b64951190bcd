"""Synced appends of plain records, which one thread makes and writes for all that wait: the same as one by one."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.config import LogConfig
from kstore.engine.append._group import PendingSingle
from kstore.engine.append.appends import Appends
from kstore.engine.change.roll import Rolls
from kstore.errors import ClosedError, ForkedError, KstoreError, PoisonedError, SyncFailedError
from kstore.files.local import OsFile
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.segments.tail import SegmentTail
from kstore.state.log_state import StateFile
from kstore.types import AppendInfo
from tests.crash.power_cuts import ROOT
from tests.support.fakes.crash_states import Disk, nothing
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.size_limit import size_limit

NOW_MS = 1_700_000_000_000
WAIT_SECONDS = 300


def log_at(path: Path, **settings: Any) -> Log:
    log = Log(path, clock=ManualClock(), **settings)
    log.append(b"first")
    return log


def group_of(log: Log, values: list[bytes], *, also: Callable[[], Any] | None = None) -> list[Any]:
    """What threads get that append ``values``, in their order, as one group; ``also`` is one more append."""
    appends = writer_of(log).appends
    group = appends._group
    assert group is not None
    found: list[Any] = [None] * (len(values) + (also is not None))

    def work(number: int) -> None:
        try:
            found[number] = also() if number == len(values) and also is not None else log.append(values[number])
        except KstoreError as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(found))]
    begins = threading.Thread(target=log.append_many, args=([b"leads"],), daemon=True)
    # The leader's write waits for the lock.
    with writer_of(log).turn.lock:
        begins.start()
        while not group.is_led or group.waiting_count:
            begins.join(0.0001)
        for number, thread in enumerate(threads):
            thread.start()
            while group.waiting_count <= number:
                thread.join(0.0001)
    for thread in (begins, *threads):
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    return found


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


def values_in(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


@contextmanager
def without_general_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise AssertionError("the general path")

    with monkeypatch.context() as patch:
        patch.setattr(Appends, "_commit", refuse)
        yield


@pytest.mark.parametrize("interval", [1, 200, 4096])
def test_a_group_writes_what_single_appends_write(
    tmp_path: Path, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [bytes([number]) * (31 * number % 400) for number in range(12)]
    with log_at(tmp_path / "group", index_interval_bytes=interval) as log, without_general_path(monkeypatch):
        assert group_of(log, values) == list(range(2, 14))
        metrics = log.metrics()
        assert [metrics[name] for name in ("appends", "append_batches", "append_records")] == [14, 14, 14]
        assert metrics["append_bytes"] == writer_of(log).ends.position
        groups: Any = metrics["group_appends"]
        assert (groups.sum, sum(groups.counts)) == (14, 3)
        assert log.high_watermark == 14
        log.check()
        with Log(tmp_path / "group", read_only=True) as view:
            assert view.high_watermark == 14
    with log_at(tmp_path / "one", index_interval_bytes=interval, durability="os") as log:
        log.append(b"leads")
        for value in values:
            log.append_many([value])
    assert files_of(tmp_path / "group") == files_of(tmp_path / "one")


@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_batch_is_that_of_the_builder(tmp_path: Path, key: bytes | None) -> None:
    with log_at(tmp_path / "log") as log:
        writer = writer_of(log)
        writer.files.epochs.assign(3, 1)
        start = writer.ends.position
        assert writer.appends.append_single(b"value", key) == (1, NOW_MS)
        data = (tmp_path / "log" / f"{0:020d}.log").read_bytes()[start:]
        assert data == build_batch([Record(1, NOW_MS, key=key, value=b"value")], base_offset=1, leader_epoch=3)


@pytest.mark.parametrize(
    "settings",
    [{"segment_bytes": 1024}, {"segment_index_bytes": 100, "index_interval_bytes": 1}],
    ids=["size", "index"],
)
def test_a_group_that_needs_a_new_segment_gets_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    values = [b"%d" % number * 100 for number in range(12)]
    with log_at(tmp_path / "log", **settings) as log:
        assert group_of(log, values) == list(range(2, 14))
        assert group_of(log, values) == list(range(15, 27))
        assert group_of(log, values) == list(range(28, 40))
        assert log.append(b"last") == 40
        assert values_in(log) == [b"first", *[b"leads", *values] * 3, b"last"]
        assert len(list((tmp_path / "log").glob("*.log"))) > 1
        log.check()


def test_a_group_of_different_appends_is_one_write(tmp_path: Path) -> None:
    with log_at(tmp_path / "log") as log:
        found = group_of(log, [b"a", b"b"], also=lambda: log.append_many([b"c", b"d"]))
        assert found[:2] == [2, 3]
        assert isinstance(found[2], AppendInfo)
        assert (found[2].first_offset, found[2].last_offset) == (4, 5)
        groups: Any = log.metrics()["group_appends"]
        assert (groups.sum, sum(groups.counts)) == (5, 3)
        assert values_in(log) == [b"first", b"leads", b"a", b"b", b"c", b"d"]


def test_settings_that_change_while_a_record_waits_refuse_only_that_record(tmp_path: Path) -> None:
    with log_at(tmp_path / "log") as log:
        appends = writer_of(log).appends
        small, large = PendingSingle(b"small", None), PendingSingle(bytes(500), None)
        writer_of(log).reconfigure(LogConfig(max_message_bytes=200, compression_type="lz4"))
        appends._commit_group([large, small])
        assert isinstance(large.error, KstoreError)
        assert large.result is None
        assert (small.result, small.error, small.timestamp) == (1, None, NOW_MS)


def test_closed_poisoned_and_forked_logs_refuse_it(tmp_path: Path) -> None:
    log = log_at(tmp_path / "log")
    short = writer_of(log).appends.append_single
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            try:
                refused = short(b"b", None) is None
                with pytest.raises(ForkedError):
                    log.append(b"b")
                os._exit(0 if refused else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    append = log.append
    assert append(b"b") == 1
    log.close()
    assert short(b"c", None) is None
    with pytest.raises(ClosedError):
        append(b"c")


# --- faults -----------------------------------------------------------------------------------------------------------


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"not synced")


@contextmanager
def other_descriptor(log: Log, descriptor: int) -> Iterator[None]:
    """The ``.log`` has another descriptor: whoever writes to it fails."""
    tail = writer_of(log).files.tail
    assert tail is not None
    file: Any = tail.file
    fd, file._fd = file._fd, descriptor
    try:
        yield
    finally:
        file._fd = fd
        os.close(descriptor)


def test_a_write_that_the_system_refuses_is_tried_by_the_file_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "log" / f"{0:020d}.log"
    log = log_at(tmp_path / "log")
    singles = [PendingSingle(b"a", None), PendingSingle(b"b", None)]
    with other_descriptor(log, os.open(path, os.O_RDONLY)), pytest.raises(KstoreError):
        writer_of(log).appends._commit_group(list(singles))
    assert [single.result for single in singles] == [None, None]
    log.close()
    with Log(tmp_path / "log") as log:
        assert values_in(log) == [b"first"]
        assert log.append(b"c") == 1


def test_a_sync_that_fails_poisons_the_log_and_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_at(tmp_path / "log")
    tail = writer_of(log).files.tail
    assert tail is not None
    file: Any = tail.file
    path = tmp_path / "log" / f"{0:020d}.log"
    size = path.stat().st_size
    # Nothing that a test can do to a file makes its sync fail after its write: as if it had.
    grow(path)
    with other_descriptor(log, os.open(path, os.O_RDONLY)):
        writes: list[object] = []
        monkeypatch.setattr(OsFile, "write_and_sync", lambda *arguments: writes.append(arguments))
        with pytest.raises(KstoreError) as raised:
            log.append(b"a")
        assert isinstance(raised.value, SyncFailedError | PoisonedError)
        assert writes == []
    assert file._has_failed_sync
    with pytest.raises(PoisonedError):
        log.append(b"b")
    assert log.high_watermark == 1
    monkeypatch.undo()
    log.close()
    with Log(tmp_path / "log") as log:
        assert path.stat().st_size == size
        assert values_in(log) == [b"first"]
        assert log.append(b"c") == 1


@pytest.mark.parametrize("append", [lambda log: log.append(b"a"), lambda log: log.append_many([b"a", b"b"])])
@pytest.mark.parametrize("step", [(SegmentTail, "cut_unsynced"), (SegmentTail, "cut_back"), (Rolls, "undo")])
def test_an_interrupt_after_a_failed_sync_does_not_hide_it(
    tmp_path: Path, append: Callable[[Log], object], step: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path / "log")
    path = tmp_path / "log" / f"{0:020d}.log"
    grow(path)
    with other_descriptor(log, os.open(path, os.O_RDONLY)), monkeypatch.context() as patch:
        patch.setattr(*step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            append(log)
    for _ in range(2):
        with pytest.raises(PoisonedError):
            append(log)
    assert values_in(log) == [b"first"]
    log.close()
    with Log(tmp_path / "log") as log:
        assert values_in(log) == [b"first"]


def test_an_interrupt_before_a_failed_write_is_cut_back_poisons_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = FailingFs()
    with Log(tmp_path / "log", fs=fs) as log, monkeypatch.context() as patch:
        log.append(b"first")
        fs.faults.append(Fault(1, errno.ENOSPC, written=10, kinds=frozenset({"write_and_sync"})))
        patch.setattr(SegmentTail, "cut_back", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(b"a")
        with pytest.raises(PoisonedError):
            log.append(b"b")
    with Log(tmp_path / "log") as log:
        assert values_in(log) == [b"first"]
        assert log.append(b"c") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["interrupt", "no memory"])
def test_what_is_cut_back_after_its_sync_does_not_come_back_with_a_power_cut(error: BaseException) -> None:
    with in_memory() as machine:
        recording = MemoryRecording(MemoryFs(ROOT))
        synced = Fault(1, raising=error, written=None, kinds=frozenset({"write_and_sync"}))
        fs = FailingFs(recording)
        log = Log(ROOT / "log", fs=fs, clock=ManualClock())
        log.append(b"first")
        fs.faults.append(synced)
        with pytest.raises(type(error)):
            log.append(b"a")
        file = fs.failures[0]
        written = next(one for one in reversed(recording.operations) if one.kind == "write_all")
        assert (written.path, written.data) == (file.path, file.data)
        log.close()
        disk = Disk(ROOT)
        for operation in recording.operations:
            # The whole write and its sync came before the error.
            disk.apply(replace(operation, kind="write_and_sync") if operation is written else operation)
        machine.restart()
        with Log(ROOT / "log", fs=MemoryFs(ROOT, disk.image(nothing)), clock=ManualClock()) as log:
            assert values_in(log) == [b"first"]


def test_a_failed_sync_is_cut_back_and_says_so(tmp_path: Path) -> None:
    with log_at(tmp_path / "log") as log:
        tail = writer_of(log).files.tail
        assert tail is not None
        path = tmp_path / "log" / f"{0:020d}.log"
        size = path.stat().st_size
        grow(path)
        with pytest.raises(SyncFailedError, match="sync failed"):
            tail.cut_unsynced(errno.EIO)
        assert path.stat().st_size == size
        log.check()


def test_a_short_write_leaves_nothing_and_the_next_append_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log" / f"{0:020d}.log"
    with log_at(tmp_path / "log", segment_bytes=1 << 20) as log:
        size = path.stat().st_size
        with size_limit(size + 100):
            with pytest.raises(KstoreError):
                log.append(bytes(100))
            assert path.stat().st_size == size
            log.check()
            assert log.append(b"fits") == 1
        assert log.append(b"b") == 2
        assert values_in(log) == [b"first", b"fits", b"b"]


def test_a_group_for_which_there_is_no_room_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "log" / f"{0:020d}.log"
    with log_at(tmp_path / "log", segment_bytes=1 << 20) as log:
        log.append(b"leads")
        size = path.stat().st_size
        singles = [PendingSingle(bytes(100), None) for _ in range(3)]
        with size_limit(size + 250), pytest.raises(KstoreError):
            writer_of(log).appends._commit_group(list(singles))
        assert [single.result for single in singles] == [None] * 3
        assert path.stat().st_size == size
        log.check()
        assert log.append(b"b") == 2


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", [(SegmentTail, "note"), (SegmentTail, "_add_entry")])
def test_an_interrupt_between_the_write_and_its_publication_leaves_nothing(
    tmp_path: Path, step: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with log_at(tmp_path / "log", index_interval_bytes=1) as log:
        log.append(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(*step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"c")
        log.check()
        assert log.append(b"d") == 2
        assert values_in(log) == [b"first", b"b", b"d"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_after_the_publication_keeps_the_group(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    with log_at(tmp_path / "log") as log:
        singles = [PendingSingle(b"%d" % number, None) for number in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(StateFile, "publish_durable_end", fails)
            # A lack of memory then is no error of the appends.
            with pytest.raises(error) if error is KeyboardInterrupt else nullcontext():
                writer_of(log).appends._commit_group(list(singles))
            assert [single.result for single in singles] == [1, 2, 3]
            if error is MemoryError:
                assert log.append(b"answered") == 4
        log.check()
        assert values_in(log)[:4] == [b"first", b"0", b"1", b"2"]


def test_an_interrupt_while_the_leader_waits_for_the_lock_leaves_nothing(tmp_path: Path) -> None:
    main, is_taken, is_over = threading.get_ident(), threading.Event(), threading.Event()
    with log_at(tmp_path / "log") as log:
        lock = writer_of(log).turn.lock

        def hold() -> None:
            with lock:
                is_taken.set()
                signal.pthread_kill(main, signal.SIGINT)
                is_over.wait(WAIT_SECONDS)

        def append_meanwhile() -> None:
            holder.start()
            is_taken.wait(WAIT_SECONDS)
            log.append(b"b")

        holder = threading.Thread(target=hold)
        with pytest.raises(KeyboardInterrupt):
            append_meanwhile()
        is_over.set()
        holder.join()
        assert log.append(b"c") == 1
        log.check()
        assert values_in(log) == [b"first", b"c"]
