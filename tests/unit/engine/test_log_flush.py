"""A lone log flushes its sealed segments in the background, so that a kill leaves little to recover."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import pytest

import kstore
from kstore.engine.change import flush as flusher_module
from kstore.engine.change.flush import UNFLUSHED_MAX, Flusher, TailFlush
from kstore.errors import ClosedError, KstoreError, PoisonedError, SyncFailedError
from kstore.files import local, platform
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.logs.open_logs import Flushes
from kstore.state.log_state import read_state
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, WRITES, FailingFs, Fault, Operation, RecordingFs, WatchedFs
from tests.support.fakes.without_flusher import log_without_flusher
from tests.support.lives.log_cases import killed, marker, transaction

DURABILITIES: tuple[Durability, ...] = ("os", "interval")
# Far more than anything here takes, except on a busy machine.
LONG = 60.0


def recovery_point(log: Log) -> int:
    state = read_state(SYSTEM_FS, log.path / "kstore.state")
    assert state is not None
    return state.recovery_point


def fill(log: Log, segments: int) -> None:
    for _ in range(segments):
        log.append(b"x" * 100)
        log.roll()


class WaitingFs(WatchedFs):
    """Its background syncs of ``.log`` files wait for ``go_on``; counts how many run at the same time."""

    def __init__(self, inner: FileSystem = SYSTEM_FS) -> None:
        super().__init__(inner)
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self._lock = threading.Lock()
        self._count = 0
        self.count_max = 0

    def perform(self, operation: Operation, action: Any) -> Any:
        if operation.kind != "fdatasync" or not operation.path.endswith(".log"):
            return super().perform(operation, action)
        with self._lock:
            self._count += 1
            self.count_max = max(self.count_max, self._count)
        try:
            self.begun.release()
            assert self.go_on.wait(LONG)
            return super().perform(operation, action)
        finally:
            with self._lock:
                self._count -= 1


def flushed_to(log: Log, offset: int) -> None:
    """Waits until the log's thread has put everything below ``offset`` on disk."""
    breath = threading.Event()
    while recovery_point(log) < offset:
        assert not breath.wait(0.001)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_roll_flushes_what_it_seals_in_the_background(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, flush_ms="1d") as log:
        fill(log, 1)
        flushed_to(log, 1)
        log.append(b"not sealed")
        assert recovery_point(log) == 1


@pytest.mark.parametrize("durability", DURABILITIES)
def test_where_no_thread_can_be_started_the_flush_happens_in_the_roll(
    durability: Durability, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Log(tmp_path / "log", durability=durability, flush_ms="1d") as log:
        fill(log, 3)
        assert recovery_point(log) == 3
        log.append(b"x")
        # An append in "interval" requests a later flush: without a thread it flushes at once.
        assert recovery_point(log) == (4 if durability == "interval" else 3)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.usefixtures("unflushed")
@pytest.mark.sampled(1)
def test_a_kill_leaves_a_bounded_number_of_segments_to_recover(durability: Durability, tmp_path: Path) -> None:
    """Even if the thread never runs."""
    with Log(tmp_path / "log", durability=durability, flush_ms="1d") as log:
        for number in range(3 * UNFLUSHED_MAX):
            fill(log, 1)
            copy = killed(log, tmp_path / f"killed-{number}")
            with Log(copy, durability=durability) as again:
                assert again.recovery.segments_scanned <= UNFLUSHED_MAX + 1
                assert again.end_offset == number + 1
        assert len(writer_of(log).files.unflushed) < UNFLUSHED_MAX


@pytest.mark.usefixtures("unflushed")
def test_an_append_of_many_segments_keeps_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=1024, max_message_bytes=1024) as log:
        log.append_many([b"x" * 500] * 5 * UNFLUSHED_MAX)
        assert len(writer_of(log).files.unflushed) < UNFLUSHED_MAX
        assert recovery_point(log) <= log.end_offset
        log.check()


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.usefixtures("unflushed")
def test_a_flush_of_sealed_segments_tells_nothing_of_the_active_one(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, flush_ms="1d") as log:
        fill(log, 2)
        log.append(b"in no file that is synced")
        writer_of(log).flush_sealed()
        assert recovery_point(log) == 2
        state = read_state(SYSTEM_FS, log.path / "kstore.state")
        assert state is not None
        assert state.durable_end == 2


def test_one_sync_is_in_flight_at_a_time_and_the_recovery_point_only_rises(tmp_path: Path) -> None:
    fs = WaitingFs()
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        fill(log, 1)
        assert fs.begun.acquire(timeout=LONG)
        # During a flush, other flushes wait for it, but appends do not.
        flushing = [threading.Thread(target=log.flush) for _ in range(3)]
        for thread in flushing:
            thread.start()
        fill(log, 4)
        assert (log.end_offset, recovery_point(log)) == (5, 0)
        fs.go_on.set()
        points = []
        for thread in flushing:
            while thread.is_alive():
                points.append(recovery_point(log))
                thread.join(0.001)
        assert points == sorted(points)
        flushed_to(log, 5)
    assert fs.count_max == 1


@pytest.mark.parametrize("how", ["flush", "flush_messages", "close", "roll"])
def test_a_sync_that_fails_in_the_background_is_not_repeated_by_others(how: str, tmp_path: Path) -> None:
    """The system reports a lost page once: a second sync of the file would succeed."""
    failing = FailingFs(SYSTEM_FS, Fault(at=1, kinds=frozenset({"fdatasync"}), suffix=".log"))
    fs = WaitingFs(failing)
    settings: dict[str, Any] = {"flush_messages": 4} if how == "flush_messages" else {}
    log = Log(tmp_path / "log", durability="os", fs=fs, **settings)
    fill(log, 1)
    assert fs.begun.acquire(timeout=LONG)
    works: dict[str, Callable[[], object]] = {
        "flush": log.flush,
        "flush_messages": lambda: [log.append(b"x") for _ in range(4)],
        "close": log.close,
        "roll": lambda: fill(log, UNFLUSHED_MAX),
    }
    errors: list[BaseException] = []

    def work() -> None:
        try:
            works[how]()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    fs.go_on.set()
    thread.join(LONG)
    # A close waits for the thread, and says what no other call has said.
    (error,) = errors
    assert isinstance(error, SyncFailedError if how == "close" else SyncFailedError | PoisonedError)
    if how != "close":
        with pytest.raises(PoisonedError):
            log.append(b"x")
    log.close()
    assert [operation.kind for operation in failing.failures] == ["fdatasync"]
    assert failing.second_syncs == []
    state = read_state(SYSTEM_FS, log.path / "kstore.state")
    assert state is not None
    assert (state.recovery_point, state.durable_end, state.clean) == (0, 0, False)


def test_a_sync_that_fails_in_a_roll_poisons_the_log(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(at=1, kinds=frozenset({"fdatasync"}), suffix=".log"))
    log = log_without_flusher(tmp_path / "log", durability="os", fs=fs)
    log.append(b"x")
    with pytest.raises(SyncFailedError):
        log.roll()
    with pytest.raises(PoisonedError):
        log.append(b"y")
    log.close()
    assert fs.second_syncs == []
    with Log(tmp_path / "log") as again:
        assert [record.value for record in again.read()] == [b"x"]


def test_a_flush_that_fails_otherwise_is_made_up_for_by_the_next_one(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        fill(log, 1)
        flushed_to(log, 1)
        fs.faults.append(Fault(at=1, errno=errno.ENOSPC, kinds=WRITES, suffix="kstore.state"))
        fill(log, 1)
        breath = threading.Event()
        while not fs.failures:
            assert not breath.wait(0.001)
        fill(log, 1)
        flushed_to(log, 3)


class BesideFs(WatchedFs):
    """Does something once, after the first sync of a ``.log`` and before the flush continues; notes what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: Callable[[], object] | None = None
        self.synced: list[str] = []

    def perform(self, operation: Operation, action: Any) -> Any:
        result = super().perform(operation, action)
        if operation.kind == "fdatasync":
            self.synced.append(Path(operation.path).name)
            beside, self.beside = self.beside, None
            if beside is not None:
                beside()
        return result


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.usefixtures("unflushed")
def test_what_is_appended_to_a_segment_after_its_sync_is_synced_though_it_is_sealed_since(
    durability: Durability, tmp_path: Path
) -> None:
    fs = BesideFs()
    with Log(tmp_path / "log", durability=durability, flush_ms="1d", fs=fs) as log:
        log.append(b"flushed")

        def append_and_roll() -> None:
            log.append(b"not yet")
            log.roll()

        fs.beside = append_and_roll
        log.flush()
        assert recovery_point(log) == 1
        fs.synced.clear()
        writer_of(log).flush_sealed()
        assert recovery_point(log) == 2
        assert "00000000000000000000.log" in fs.synced


def abort(log: Log) -> None:
    """A transaction that was aborted, and so an entry in the transaction index."""
    log.append_batches(transaction(1, 0), assign_offsets=False)
    log.append_batches(marker(1, 1, commit=False), assign_offsets=False)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EMFILE, "no descriptor left")])
@pytest.mark.usefixtures("unflushed")
def test_a_flush_that_ends_early_leaves_the_transaction_indexes_to_the_next_one(
    error: BaseException, durability: Durability, tmp_path: Path
) -> None:
    fs = BesideFs()

    def fail() -> None:
        raise error

    with Log(tmp_path / "log", durability=durability, flush_ms="1d", fs=fs) as log:
        abort(log)
        fs.beside = fail
        with pytest.raises(type(error)):
            log.flush()
        assert recovery_point(log) == 0
        log.flush()
        assert recovery_point(log) == 2
        assert "00000000000000000000.txnindex" in fs.synced


@pytest.mark.usefixtures("unflushed")
def test_a_flush_also_syncs_the_indexes_that_another_one_has_yet_to_sync(tmp_path: Path) -> None:
    """The first one raises the recovery point, and the indexes below it must be on disk."""
    fs = BesideFs()
    with Log(tmp_path / "log", durability="os", flush_ms="1d", fs=fs) as log:
        abort(log)
        log.roll()
        flush = writer_of(log)._flush
        assert isinstance(flush, TailFlush)
        began, sync_tails = threading.Event(), flush._sync_tails

        def first_is_late(*args: Any) -> None:
            if not began.is_set():
                began.set()
                writer_of(log).flush_sealed()
                assert recovery_point(log) == 2
                assert "00000000000000000000.txnindex" in fs.synced
            sync_tails(*args)

        with mock.patch.object(flush, "_sync_tails", first_is_late):
            log.flush()


@pytest.mark.usefixtures("unflushed")
def test_an_index_that_grows_during_its_flush_is_synced_by_the_next_one(tmp_path: Path) -> None:
    fs = BesideFs()
    with Log(tmp_path / "log", durability="os", flush_ms="1d", fs=fs) as log:
        abort(log)
        log.append_batches(transaction(1, 2, sequence=1), assign_offsets=False)
        flush = writer_of(log)._flush
        assert isinstance(flush, TailFlush)
        sync_tails = flush._sync_tails

        def then_abort(*args: Any) -> None:
            sync_tails(*args)
            log.append_batches(marker(1, 3, commit=False), assign_offsets=False)

        with mock.patch.object(flush, "_sync_tails", then_abort):
            log.flush()
        fs.synced.clear()
        log.flush()
        assert "00000000000000000000.txnindex" in fs.synced
        fs.synced.clear()
        log.flush()
        assert "00000000000000000000.txnindex" not in fs.synced


@pytest.mark.parametrize("how", ["flush", "close"])
@pytest.mark.usefixtures("unflushed")
def test_a_failed_sync_is_not_repeated_though_an_interrupt_has_hidden_its_error(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes while a sync hangs is served after the sync has failed, and replaces its error."""
    log = Log(tmp_path / "log", durability="os", flush_ms="1d")
    log.append(b"x")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(platform, "sync_data", fail)
        patches.setattr(local, "sync_error", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.flush()
    with pytest.raises(SyncFailedError):
        getattr(log, how)()
    with pytest.raises((PoisonedError, ClosedError)):
        log.append(b"y")
    log.close()
    state = read_state(SYSTEM_FS, log.path / "kstore.state")
    assert state is not None
    assert (state.recovery_point, state.durable_end, state.clean) == (0, 0, False)


class Flushed:
    """A substitute for a log."""

    def __init__(self) -> None:
        self.flushes: SimpleQueue[str] = SimpleQueue()

    def flush(self) -> None:
        self.flushes.put("note")

    def flush_sealed(self) -> None:
        self.flushes.put("note_sealed")

    def keep_failure(self, error: KstoreError) -> None:
        """Nothing."""


@pytest.mark.parametrize("what", ["note", "note_sealed"])
def test_a_flush_is_asked_for_again_after_an_interrupt_in_the_asking(what: str) -> None:
    log = Flushed()
    flusher = Flusher(log, 0.0)
    # Only this one's: another log's may be collected meanwhile.
    with mock.patch.object(flusher._wake, "set", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        getattr(flusher, what)()
    getattr(flusher, what)()
    assert log.flushes.get(timeout=LONG) == what
    flusher.stop()


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOSPC, "full"), kstore.StorageError(errno.ENOSPC, "full")]
)
@pytest.mark.parametrize("what", ["note", "note_sealed"])
def test_a_flush_that_fails_in_any_way_is_tried_again_without_another_append(
    what: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Flushed):
        def __init__(self) -> None:
            super().__init__()
            self.failures = [error, error]

        def flush(self) -> None:
            if self.failures:
                raise self.failures.pop()
            super().flush()

        flush_sealed = flush

    monkeypatch.setattr(flusher_module, "RETRY_SECONDS", 0.0)
    log = Failing()
    flusher = Flusher(log, 0.0)
    getattr(flusher, what)()
    assert log.flushes.get(timeout=LONG) == "note"
    flusher.stop()
    assert caplog.text.count("is tried again") == 2


@pytest.mark.parametrize("step", ["wait", "clear", "_seconds_left"])
def test_a_lack_of_memory_between_flushes_does_not_end_them(step: str) -> None:
    log = Flushed()
    flusher = Flusher(log, LONG)
    failures = SimpleQueue[None]()
    # Only this one's: another log's may be collected meanwhile.
    owner = flusher if step == "_seconds_left" else flusher._wake
    real = getattr(owner, step)

    def fail(*arguments: object) -> object:
        if failures.qsize() == 3:
            return real(*arguments)
        failures.put(None)
        raise MemoryError

    with mock.patch.object(owner, step, fail):
        flusher.note()
        deadline = time.monotonic() + LONG
        while failures.qsize() < 3 and time.monotonic() < deadline:
            flusher._wake.set()
    # It is due now; an append would not note that again.
    flusher._due = 0.0
    flusher._wake.set()
    assert log.flushes.get(timeout=LONG) == "note"
    flusher.stop()


def test_a_log_that_cannot_be_flushed_keeps_no_other_from_it_and_is_tried_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"durability": "interval", "flush_ms": "1s", "background": False}
    clock = ManualClock()
    with kstore.Store(tmp_path / "store", clock=clock, **settings) as store:
        store.create_topic("t", 3)
        logs = [store.log("t", number) for number in range(3)]
        for log in logs:
            log.append(b"x")
        clock.advance(2000)
        with mock.patch.object(writer_of(logs[0]), "flush", side_effect=MemoryError), pytest.raises(MemoryError):
            store.run_task("flush")
        assert [recovery_point(log) for log in logs] == [0, 1, 1]
        clock.advance(2000)
        store.run_task("flush")
        assert [recovery_point(log) for log in logs] == [1, 1, 1]


def test_a_store_s_log_asks_again_for_a_flush_after_an_interrupt_in_the_asking(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="interval", flush_ms="1ms") as store:
        store.create_topic("t")
        log = store.log("t", 0)
        with mock.patch.object(Flushes, "note", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            log.append(b"x")
        log.append(b"y")
        flushed_to(log, 2)


def done_by(act: Callable[[], object], fs: RecordingFs) -> list[tuple[str, str]]:
    """What ``act`` changes, in order: each operation with the suffix of its file."""
    before = len(fs.operations)
    act()
    return [(one.kind, Path(one.path).suffix) for one in fs.operations[before:] if one.kind in CHANGES]


def before_the_state(done: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The operations before ``kstore.state`` is on disk."""
    return done[: done.index(("fdatasync", ".state"))]


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_flush_syncs_sealed_segments_and_names_before_it_vouches_for_them(
    durability: Durability, tmp_path: Path
) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", durability=durability, fs=fs) as log:
        for _ in range(3):
            log.append(b"v")
            log.roll()
        log.append(b"v")
        done = before_the_state(done_by(log.flush, fs))
        assert done.count(("fdatasync", ".log")) == 4
        assert ("sync_dir", "") in done


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_flush_syncs_transaction_indexes_before_it_vouches_for_them(durability: Durability, tmp_path: Path) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", durability=durability, fs=fs) as log:
        log.append_batches(transaction(1, 0, 1), assign_offsets=False)
        log.append_batches(marker(1, 2, commit=False), assign_offsets=False)
        assert ("fdatasync", ".txnindex") in before_the_state(done_by(log.flush, fs))


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_close_syncs_the_names_of_indexes_before_it_vouches_for_them(durability: Durability, tmp_path: Path) -> None:
    fs = RecordingFs()
    log = Log(tmp_path / "log", durability=durability, fs=fs)
    log.append(b"v")
    assert ("sync_dir", "") in before_the_state(done_by(log.close, fs))


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_deletion_syncs_the_names_of_what_stays_before_it_removes_a_file(
    durability: Durability, tmp_path: Path
) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", durability=durability, fs=fs) as log:
        for _ in range(3):
            log.append(b"v")
            log.roll()
        done = [kind for kind, _ in done_by(lambda: log.delete_records(2), fs)]
        removed = min(done.index(kind) for kind in ("rename", "unlink") if kind in done)
        assert "sync_dir" in done[:removed]
