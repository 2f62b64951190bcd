"""What is logged, at which level, and that no log message or exception contains any bytes of records."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.errors import KstoreError
from kstore.files.local import SYSTEM_FS
from kstore.record.builder import build_batch
from kstore.upkeep.explain import explain_offset
from kstore.upkeep.recover import plan_recovery
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_fs import FailingFs, Fault

# Long enough that no message, even a shortened one, holds it by chance; as text, since it may be shown like this.
LETTERS = "bcdfghjklmnpqrstvwxz"
PIECE = 8


def telling(seed: int, name: str) -> bytes:
    rng = random.Random(f"{seed}:{name}")
    return "".join(rng.choice(LETTERS) for _ in range(64)).encode()


class Ear:
    """Collects all texts: log messages with their tracebacks, exceptions with their causes."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._said: list[str] = []
        self.error_count = 0

    def refused(self, action: Callable[[], object], *expected: type[BaseException]) -> None:
        """Runs an action that must fail, and keeps the texts of its exception."""
        with pytest.raises(expected or (KstoreError,)) as caught:
            action()
        self._keep(caught.value)

    def may_fail(self, action: Callable[[], object]) -> None:
        """Runs an action that may fail because of data or a disk."""
        try:
            self.hears(action())
        except KstoreError as error:
            self._keep(error)

    def _keep(self, caught: BaseException) -> None:
        self.error_count += 1
        error: BaseException | None = caught
        while error is not None:
            self._said += [str(error), repr(error), repr(error.args), repr(vars(error))]
            self._said += traceback.format_exception_only(error)
            error = error.__cause__ or error.__context__

    def hears(self, *values: object) -> None:
        """Keeps a report, or a finding."""
        self._said += [repr(value) for value in values]

    def all(self) -> list[str]:
        formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
        return self._said + [formatter.format(record) for record in self._caplog.records]


@pytest.fixture
def ear(caplog: pytest.LogCaptureFixture) -> Ear:
    caplog.set_level(logging.DEBUG, "kstore")
    return Ear(caplog)


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# --- what is logged ---------------------------------------------------------------------------------------------------


def test_an_open_and_a_roll_show_at_debug_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kstore")
    with kstore.Log(tmp_path / "log", durability="os") as log:
        log.append(b"x")
        log.roll()
    path = tmp_path / "log"
    assert messages(caplog, logging.DEBUG) == [
        f"{path}: open, durability os, next offset 0",
        f"{path}: segment 1 begins",
    ]
    assert messages(caplog, logging.INFO) == messages(caplog, logging.WARNING) == []


def test_a_recovery_is_reported_and_one_that_lost_something_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kstore")
    with kstore.Log(tmp_path / "log") as log:
        log.append(b"x")
    (tmp_path / "log" / "kstore.state").unlink()
    with kstore.Log(tmp_path / "log"):
        pass
    [told] = messages(caplog, logging.INFO)
    assert told.endswith("bytes were checked, nothing was lost")
    (tmp_path / "log" / "kstore.state").unlink()
    with (tmp_path / "log" / f"{0:020d}.log").open("ab") as file:
        file.write(b"garbage")
    with kstore.Log(tmp_path / "log"):
        pass
    [warned] = messages(caplog, logging.WARNING)
    assert "recovery: 7 bytes were cut" in warned


def test_retention_and_compaction_say_what_they_did(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kstore")
    with kstore.Log(tmp_path / "log", retention_bytes=1, durability="os") as log:
        log.append(b"a")
        log.roll()
        log.append(b"b")
        log.append_many([b"1", b"2"], keys=[b"k", b"k"])
        log.roll()
        log.compact()
    deleted, compacted = messages(caplog, logging.INFO)
    assert "retention deleted 1 segments" in deleted
    assert deleted.endswith("the log begins at offset 1")
    assert "compacted up to offset 4: " in compacted


def test_a_poisoned_log_and_a_failed_task_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fs = FailingFs(SYSTEM_FS)
    with kstore.Store(tmp_path, background=False, fs=fs) as store:
        store.create_topic("a")
        log = store.log("a")
        log.append(b"x")
        fs.faults.append(Fault(1, kinds=frozenset({"write_and_sync"}), written=None))
        with pytest.raises(kstore.SyncFailedError):
            log.append(b"y")
        fs.faults.clear()
        assert any("poisoned" in message for message in messages(caplog, logging.ERROR))
        fs.faults.append(Fault(1, kinds=frozenset({"open", "rename"}), sticky=True))
        with pytest.raises(kstore.StorageError):
            store.run_task("checkpoints")
        fs.faults.clear()
    assert any("the task 'checkpoints' failed" in message for message in messages(caplog, logging.WARNING))


def test_loggers_are_named_by_module_and_have_no_handlers_of_their_own() -> None:
    loggers = [name for name in logging.Logger.manager.loggerDict if name.split(".")[0] == "kstore"]
    assert "kstore.engine.writer" in loggers
    for name in loggers:
        assert not logging.getLogger(name).handlers, name


# --- no bytes of records ----------------------------------------------------------------------------------------------


def test_no_message_and_no_exception_holds_anything_of_a_record(tmp_path: Path, ear: Ear, seed: int) -> None:
    key, value, header = (telling(seed, name) for name in ("key", "value", "header"))
    life = Life(tmp_path, ear, key, value, header)
    life.refused_appends()
    life.refused_batches()
    life.work()
    life.damage()
    life.a_torn_end()
    life.faults()
    assert ear.error_count > 25
    said = ear.all()
    assert len(said) > 100
    for payload in (key, value, header):
        assert not telling_texts(payload, said)


def test_a_part_of_a_payload_would_be_seen(seed: int) -> None:
    payload = telling(seed, "key")
    said = ["nothing", repr(payload[20:40]), f"at {payload[:9].hex()}", f"{payload.decode()!r:.20}"]
    assert telling_texts(payload, said) == said[1:]


def telling_texts(payload: bytes, said: list[str]) -> list[str]:
    """The texts that contain bytes of ``payload``, as text or as hex digits."""
    forms = (payload.decode(), payload.hex(), payload.hex().upper())
    pieces = {form[at : at + PIECE] for form in forms for at in range(len(form) - PIECE + 1)}
    return [text for text in said if any(piece in text for piece in pieces)]


class Life:
    """All kinds of work on logs whose records hold ``key``, ``value`` and ``header``."""

    def __init__(self, path: Path, ear: Ear, key: bytes, value: bytes, header: bytes) -> None:
        self._path = path
        self._ear = ear
        self._key, self._value = key, value
        self._headers = [("h", header)]

    def _fill(self, log: kstore.Log, count: int = 4) -> None:
        for _ in range(count):
            log.append(self._value, key=self._key, headers=self._headers)

    def _record(self, offset: int = 0) -> kstore.Record:
        return kstore.Record(offset, 1_700_000_000_000, key=self._key, value=self._value, headers=self._headers)

    def refused_appends(self) -> None:
        refused, key, value = self._ear.refused, self._key, self._value
        with kstore.Log(self._path / "refused", max_message_bytes=200, durability="os") as log:
            refused(lambda: log.append(value * 10, key=key, headers=self._headers), kstore.RecordTooLargeError)
            refused(lambda: log.append(value.decode(), key=key), TypeError)  # type: ignore[arg-type]
            refused(lambda: log.append(value, key=key.decode()), TypeError)  # type: ignore[arg-type]
            refused(lambda: log.append(value, headers=[("h", self._value.decode())]), TypeError)  # type: ignore[list-item]
            refused(lambda: log.append(value, headers=[(1, value)]), TypeError)  # type: ignore[list-item]
            refused(lambda: log.append(value, headers=[("h", value, key)]), TypeError, ValueError)  # type: ignore[list-item]
            refused(lambda: log.append(value, headers=[value]), TypeError, ValueError)  # type: ignore[list-item]
            refused(lambda: log.append(value, timestamp=value), TypeError)  # type: ignore[arg-type]
            refused(lambda: log.append(value, timestamp=-(2**70)), ValueError, OverflowError, kstore.KstoreError)
            refused(lambda: log.append_many([value], keys=[key, key]), ValueError)
            refused(lambda: log.append_many([[value]]), TypeError)  # type: ignore[list-item]
        with kstore.Log(self._path / "compacted", cleanup_policy="compact", durability="os") as log:
            refused(lambda: log.append(value), kstore.InvalidRecordError)
            refused(lambda: log.append_batches(build_batch([kstore.Record(0, 0, value=value)])))

    def refused_batches(self) -> None:
        may_fail = self._ear.may_fail
        whole = bytes(build_batch([self._record()]))
        with kstore.Log(self._path / "batches", max_message_bytes=400, durability="os") as log:
            may_fail(lambda: log.append_batches(self._value * 3))
            for at in (8, 16, 17, 22, 57, 62, 70, len(whole) - 3):
                damaged = bytearray(whole)
                damaged[at] ^= 0x55
                may_fail(lambda: log.append_batches(damaged))  # noqa: B023  # called at once
            may_fail(lambda: list(kstore.parse_batches(whole[:61] + self._value + whole[125:])))
            for codec in ("gzip", "lz4", "snappy", "zstd"):
                packed = bytearray(build_batch([self._record(number) for number in range(8)], codec=codec))
                packed[80] ^= 0xFF
                may_fail(lambda: log.append_batches(packed))  # noqa: B023
            for sequence, epoch in ((5, 0), (0, 3), (9, 3), (0, 1)):
                batch = build_batch([self._record()], producer_id=9, producer_epoch=epoch, base_sequence=sequence)
                may_fail(lambda: log.append_batches(batch))  # noqa: B023

    def work(self) -> None:
        with kstore.Store(self._path / "store", background=False) as store:
            store.create_topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
            log = store.log("t")
            self._fill(log)
            log.roll()
            self._fill(log)
            for task in store.status().tasks:
                store.run_task(task.name)
            self._ear.hears(log.compact(), log.metrics(), store.metrics(), store.status(), log.recovery, log, store)
            self._ear.refused(lambda: list(log.read(1_000)))
            self._ear.refused(lambda: store.log(self._value.decode()[:1]))
            log.truncate_to(6)
            log.delete_records(5)
        self._ear.refused(lambda: log.append(self._value, key=self._key), kstore.ClosedError)

    def damage(self) -> None:
        directory = self._path / "damaged"
        with kstore.Log(directory, durability="os", index_interval_bytes=0) as log:
            self._fill(log, 12)
            log.roll()
            self._fill(log, 3)
        size = (directory / f"{0:020d}.log").stat().st_size // 12
        for number, at in ((1, 62), (3, 70), (5, 22), (7, 9), (9, size - 5)):
            self._flip(directory, number * size + at)
        for index in directory.glob("*.*index"):
            index.write_bytes(self._value)
        self._ear.hears(verify_log(directory), log_stats(directory, deep=True))
        with kstore.Log(directory, read_only=True) as log:
            self._ear.hears(explain_offset(log, 3).steps)
            self._ear.refused(lambda: list(log.read()), kstore.CorruptBatchError)
            self._ear.may_fail(lambda: len(list(log.fetch(1).records())))
            self._ear.hears(log.verify())
        (directory / "kstore.state").unlink()
        with kstore.Log(directory) as log:
            self._ear.hears(log.recovery, log.compact())

    def _flip(self, directory: Path, at: int) -> None:
        path = directory / f"{0:020d}.log"
        content = bytearray(path.read_bytes())
        content[at] ^= 0xFF
        path.write_bytes(content)

    def a_torn_end(self) -> None:
        directory = self._path / "torn"
        with kstore.Log(directory, durability="os") as log:
            self._fill(log)
        path = directory / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-7])
        (directory / "kstore.state").unlink()
        (directory / f"{99:020d}.snapshot").write_bytes(self._value)
        self._ear.hears(verify_log(directory), plan_recovery(directory))
        with kstore.Log(directory) as log:
            self._ear.hears(log.recovery)

    def faults(self) -> None:
        for kind in ("pwrite", "write_and_sync", "write_all", "map", "fdatasync", "truncate", "sync_dir"):
            for durability in ("sync", "os"):
                self._fault(kind, durability)

    def _fault(self, kind: str, durability: str) -> None:
        fs = FailingFs(SYSTEM_FS)
        directory = self._path / f"fault-{kind}-{durability}"
        log = kstore.Log(directory, fs=fs, durability=durability, index_interval_bytes=0)  # type: ignore[arg-type]
        self._fill(log, 1)
        fs.faults.append(Fault(1, kinds=frozenset({kind}), sticky=True))
        for action in (lambda: self._fill(log, 1), log.flush, log.roll, lambda: log.truncate_to(0), log.close):
            self._ear.may_fail(action)
        fs.faults.clear()
        log.close()
