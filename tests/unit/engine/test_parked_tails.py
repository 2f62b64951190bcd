"""Tails that are closed for others, and continue where they were."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.engine import files as log_files
from kstore.errors import PoisonedError, StorageError, SyncFailedError
from kstore.files import descriptors
from kstore.files.descriptors import OpenTails
from kstore.log import Log, writer_of
from kstore.store import parts_of
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, SYNCS, FailingFs, Fault, RecordingFs
from tests.support.lives.log_cases import park, transaction

# A deadlock lasts forever; a busy machine may be slow.
LONG = 60.0

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> OpenTails:
    """The tails of a process with at most eight descriptors, so four tails."""
    made = OpenTails(lambda: 8)
    monkeypatch.setattr(log_files, "OPEN_TAILS", made)
    return made


def is_parked(log: Log) -> bool:
    tail = writer_of(log).segments.last.tail
    return tail is not None and tail.open_file is None


def changes(fs: RecordingFs) -> list[str]:
    return [
        f"{operation.kind} {Path(operation.path).suffix or Path(operation.path).name}"
        for operation in fs.operations
        if operation.kind in CHANGES | SYNCS | {"open", "store", "write_and_sync"}
    ]


# --- the bound --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_of_many_logs_a_few_are_open(tmp_path: Path, tails: OpenTails, durability: Durability) -> None:
    with kstore.open(tmp_path / "s", durability=durability, background=False) as store:
        store.create_topic("t", 10)
        for value in (b"a", b"b", b"c"):
            for number in range(10):
                store.log("t", number).append(value)
                assert sum(not is_parked(log) for _, log in parts_of(store).topics.logs.open_now()) <= 4
        for number in range(10):
            log = store.log("t", number)
            assert [record.value for record in log.read()] == [b"a", b"b", b"c"]
            log.check()
    assert len(tails) == 0
    with kstore.open(tmp_path / "s") as store:
        assert all(store.log("t", number).recovery.clean for number in range(10))


def test_what_was_used_lately_stays_open(tmp_path: Path, tails: OpenTails) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", 8)
        for number in range(1, 8):
            store.log("t", 0).append(b"x")
            store.log("t", number).append(b"x")
        assert not is_parked(store.log("t", 0))


def test_a_log_at_work_is_passed_over(tmp_path: Path, tails: OpenTails) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", 8)
        logs = [store.log("t", number) for number in range(8)]
        logs[0].append(b"x")
        with writer_of(logs[0]).turn.lock:
            for log in logs[1:]:
                log.append(b"x")
        assert not is_parked(logs[0])


def test_those_that_are_all_at_work_do_not_keep_one_more_out(tmp_path: Path, tails: OpenTails) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", 5)
        logs = [store.log("t", number) for number in range(5)]
        for log in logs[:4]:
            log.append(b"x")
            writer_of(log).turn.lock.__enter__()
        logs[4].append(b"x")
        for log in logs[:4]:
            writer_of(log).turn.lock.__exit__(None, None, None)
        assert not any(map(is_parked, logs))


def test_a_log_that_was_dropped_without_a_close_makes_room(tmp_path: Path, tails: OpenTails) -> None:
    class Dropped:
        last_use = None

        def park(self) -> bool:
            raise AssertionError("it is gone")

    for _ in range(9):
        tails.admit(Dropped())
    assert len(tails) <= 4


class Reopened:
    """A tail that another thread opens again as soon as it is parked."""

    def __init__(self, tails: OpenTails) -> None:
        self._tails = tails

    @property
    def last_use(self) -> object:
        return None

    def park(self) -> bool:
        self._tails.admit(self)
        return True


def test_a_tail_that_is_opened_again_as_soon_as_it_is_parked_counts(tails: OpenTails) -> None:
    reopened = [Reopened(tails) for _ in range(4)]
    for tail in reopened:
        tails.admit(tail)
    tails.relieve()
    assert len(tails) == 4


def test_a_child_leaves_its_parents_tails_alone(tmp_path: Path, tails: OpenTails) -> None:
    log = Log(tmp_path / "log")
    log.append(b"x")
    tails._forget_all()
    assert len(tails) == 0
    log.close()


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_flush_that_finds_no_descriptor_leaves_its_own_log_open(
    tmp_path: Path, tails: OpenTails, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock that a park of its own log would wait for."""
    monkeypatch.setattr(descriptors, "_relievers", [tails.relieve])
    real_open = os.open
    failed: list[Any] = []

    def fail_once(path: Any, flags: int, *arguments: Any) -> int:
        if flags & os.O_DIRECTORY and not failed:
            failed.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_open(path, flags, *arguments)

    with Log(tmp_path / "other", durability="os") as other, Log(tmp_path / "log", durability=durability) as log:
        other.append(b"x")
        log.append(b"x")
        monkeypatch.setattr(os, "open", fail_once)
        thread = threading.Thread(target=log.flush, daemon=True)
        thread.start()
        thread.join(LONG)
        assert not thread.is_alive(), "it waits for itself"
        monkeypatch.setattr(os, "open", real_open)
        assert failed == [tmp_path / "log"]
        assert is_parked(other)
        assert not is_parked(log)
        assert writer_of(log).offsets.recovery_point == 1, "tried once more, and succeeded"


# --- a park, and what comes after it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_parked_tail_goes_on_without_a_scan(tmp_path: Path, durability: Durability) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", fs=fs, durability=durability, flush_ms=10**9) as log:
        log.append(b"x")
        fs.operations.clear()
        assert writer_of(log).files.park()
        assert writer_of(log).files.park()
        assert is_parked(log)
        assert [record.value for record in log.read()] == [b"x"]
        synced = [] if durability == "sync" else ["fdatasync .log"]
        assert [done for done in changes(fs) if not done.startswith("open")] == [*synced, "truncate .log"]
        fs.operations.clear()
        log.append(b"y")
        written = ["write_and_sync .log", "store .state"] if durability == "sync" else ["write_all .log"]
        assert changes(fs) == ["open .log", *written]
        fs.operations.clear()
        assert writer_of(log).files.park()
        assert "truncate .log" not in changes(fs), "it had no blocks ahead"


def test_a_failed_sync_poisons_the_log_that_is_parked_and_no_other(tmp_path: Path, tails: OpenTails) -> None:
    fs = FailingFs()
    with kstore.open(tmp_path / "s", fs=fs, durability="os", background=False) as store:
        store.create_topic("t", 5)
        logs = [store.log("t", number) for number in range(5)]
        for log in logs[:4]:
            log.append(b"x")
        fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"}), suffix=".log"))
        logs[4].append(b"x")
        assert fs.failures
        poisoned = [log for log in logs if log.metrics()["poisoned"]]
        assert len(poisoned) == 1
        with pytest.raises(PoisonedError):
            poisoned[0].append(b"y")
        assert is_parked(poisoned[0])
        assert logs[4].append(b"y") == 1
        assert fs.second_syncs == []


def test_a_close_says_that_the_sync_of_a_parked_log_has_failed(tmp_path: Path) -> None:
    fs = FailingFs()
    log = Log(tmp_path / "log", fs=fs, durability="os")
    log.append(b"x")
    fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"}), suffix=".log"))
    writer_of(log).files.park()
    with pytest.raises(SyncFailedError, match="in the background"):
        log.close()
    log.close()
    assert fs.second_syncs == []


@pytest.mark.parametrize("kind", ["truncate", "open"])
def test_a_park_or_its_end_that_fails_loses_nothing(tmp_path: Path, kind: str) -> None:
    fs = FailingFs()
    with Log(tmp_path / "log", fs=fs, durability="os") as log:
        log.append(b"x")
        fs.faults.append(Fault(1, kinds=frozenset({kind}), suffix=".log"))
        assert writer_of(log).files.park() == (kind == "open")
        if kind == "open":
            with pytest.raises(StorageError):
                log.append(b"y")
        assert log.append(b"y") == 1
        assert [record.value for record in log.read()] == [b"x", b"y"]


@pytest.mark.parametrize("change", ["longer", "another file"])
def test_a_log_that_was_changed_while_it_was_closed_takes_no_appends(tmp_path: Path, change: str) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"x")
        assert writer_of(log).files.park()
        path = tmp_path / "log" / f"{0:020d}.log"
        data = path.read_bytes()
        if change == "longer":
            path.write_bytes(data + b"?")
        else:
            path.rename(tmp_path / "kept")
            path.write_bytes(data)
        for _ in range(2):
            with pytest.raises(StorageError, match="another program changed it"):
                log.append(b"y")
        path.unlink()
        if change == "longer":
            path.write_bytes(data)
            return
        (tmp_path / "kept").rename(path)
        assert log.append(b"y") == 1


def the_life(log: Log, after_each: Callable[[], object]) -> None:
    """Some of every operation of a log."""
    values = [b"v%d" % number for number in range(3)]
    steps: list[Callable[[], object]] = [
        lambda: log.append(b"one"),
        lambda: log.append_many(values),
        lambda: log.append_many(values, keys=values),
        log.flush,
        lambda: log.append_many([b"w" * 300] * 3),
        log.roll,
        lambda: log.append_many(values),
        lambda: log.truncate_to(log.end_offset - 2),
        lambda: log.append_batches(transaction(7, 0, 1)),
        lambda: log.end_transaction(7, 0, commit=False),
        lambda: log.append_many([b"w" * 300] * 3),
        lambda: log.delete_records(5),
        log.apply_retention,
        lambda: log.append_many(values),
        log.compact,
        lambda: log.truncate_to(log.end_offset - 1),
        lambda: log.append_many(values),
    ]
    for step in steps:
        step()
        after_each()


def test_parking_changes_nothing_of_what_is_written(tmp_path: Path) -> None:
    found = []
    for name in ("parked", "open"):
        directory = tmp_path / name / "log"
        settings: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "retention_bytes": 4000}
        with Log(directory, durability="os", clock=ManualClock(), flush_ms=10**9, **settings) as log:

            def look(log: Log = log, name: str = name) -> None:
                if name == "parked":
                    park(log)
                log.check()

            the_life(log, look)
            records = [(record.offset, record.value) for record in log.read()]
        files = {
            path.name: path.read_bytes()
            for path in sorted(directory.iterdir())
            if path.name not in ("kstore.state", ".lock")
        }
        found.append((records, files))
    assert found[0] == found[1]


def test_what_was_parked_when_the_process_died_is_recovered(tmp_path: Path) -> None:
    program = (
        "import os, sys, kstore\n"
        "from kstore.log import writer_of\n"
        "log = kstore.Log(sys.argv[1], durability='os', index_interval_bytes=1)\n"
        "for number in range(5):\n"
        "    log.append(b'%d' % number); assert writer_of(log).files.park()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], check=True, timeout=300)
    with Log(tmp_path / "log") as log:
        assert [record.value for record in log.read()] == [b"0", b"1", b"2", b"3", b"4"]
        log.check()


# --- a process with few descriptors -----------------------------------------------------------------------------------

FEW = """
import os, resource, sys
import kstore
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with kstore.open(sys.argv[1], durability=sys.argv[2]) as store:
    store.create_topic("t", 300)
    with store.producer(acks="1") as producer:
        deliveries = [producer.send("t", b"%d" % turn, partition=at) for turn in range(2) for at in range(300)]
        producer.flush(timeout=120)
    assert all(delivery.exception(0) is None for delivery in deliveries)
    for at in range(300):
        store.log("t", at).append(b"2")
    with store.consumer("t", group="g") as consumer:
        for number, record in enumerate(consumer, start=1):
            if number == 900:
                break
        consumer.commit()
    assert len(os.listdir("/proc/self/fd")) < 230
with kstore.open(sys.argv[1]) as store:
    assert [[record.value for record in store.log("t", at).read()] for at in range(300)] == [[b"0", b"1", b"2"]] * 300
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts them in /proc")
@pytest.mark.parametrize("durability", ["os", "sync"])
@pytest.mark.sampled(1)
def test_a_store_of_300_partitions_works_with_256_descriptors(tmp_path: Path, durability: str) -> None:
    subprocess.run([sys.executable, "-c", FEW, str(tmp_path / "s"), durability], check=True, timeout=120)


NONE_LEFT = """
import errno, os, resource, sys, time
import kstore
from kstore.log import writer_of
with kstore.open(sys.argv[1], durability="os") as store:
    store.create_topic("t", 20)
    with store.producer(acks="1", delivery_timeout_ms=600_000) as producer:
        for at in range(10):
            producer.send("t", b"x", partition=at).result(300)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
        # Ten tails can be closed for others, so there is room for some more.
        producer.send("t", b"x", partition=10).result(300)
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
        assert [store.log("t", at).append(b"y") for at in range(11)] == [1] * 11
        for log in [store.log("t", at) for at in range(11)]:
            assert writer_of(log).files.park()
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
        begun = time.monotonic()
        failure = producer.send("t", b"x", partition=11).exception(60)
        assert failure.errno == errno.EMFILE, failure
        for fd in taken:
            os.close(fd)
        assert producer.send("t", b"x", partition=11).result(300).offset == 0
"""


def test_a_process_without_descriptors_hears_of_it_in_the_delivery(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", NONE_LEFT, str(tmp_path / "s")], check=True, timeout=120)


def test_only_the_command_line_raises_the_soft_limit(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))\n"
        "import kstore\n"
        "kstore.open(sys.argv[1]).close()\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200\n"
        "from kstore.cli.main import main\n"
        "assert main(['topics', sys.argv[1]]) == 0\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 1 << 16)\n"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 200:
        pytest.skip("the hard limit leaves no room")
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], check=True, timeout=300)
