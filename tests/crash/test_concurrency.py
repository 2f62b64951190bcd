"""One log, many threads: readers of every kind beside a writer that rolls, cuts, deletes and closes; many writers."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.engine.change.flush import TailFlush
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import KSTORE_STATE
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.log_state import read_state
from kstore.types import Durability
from tests.crash.strict_reads import TIME, Lives, StrictReads
from tests.support.fakes.general_path import GeneralPath
from tests.support.fakes.without_flusher import log_without_flusher
from tests.support.harness.evidence import Hung, Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.telling_values import telling_value
from tests.support.lives.watching_reader import ReadingProcess, watched_by_threads

READERS = 8
STEPS = tries(60, quick=20)
STEPS_LONG = 500
CLOSES = 12
CLOSES_LONG = 100
# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
SETTINGS: dict[str, Any] = {"segment_bytes": 4096, "index_interval_bytes": 0}

Tried = Callable[[str, int], None]


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    """Threads switch at every opportunity, not every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def reader() -> Iterator[ReadingProcess]:
    process = ReadingProcess()
    yield process
    process.close()


class Writer:
    """A log's only writer: its records hold their offset, and how many cuts came before them."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.lives = Lives()
        self.generator = random.Random(seed)
        self._serial = 0
        self._starts: list[int] = []

    def append(self) -> None:
        first, count = self.log.end_offset, self.generator.randint(1, 5)
        self.log.append_many(
            [self._value(first + number) for number in range(count)],
            timestamps=[TIME + first + number for number in range(count)],
        )
        self._starts.append(first)

    def append_batches(self, count: int) -> None:
        first, data = self.log.end_offset, bytearray()
        for offset in range(first, first + count):
            data += build_batch([Record(0, TIME + offset, value=telling_value(offset, self._serial))])
            self._starts.append(offset)
        self.log.append_batches(data)

    def _value(self, offset: int) -> bytes:
        return telling_value(offset, self._serial, self.generator.choice([0, 40, 200]))

    def truncate(self) -> None:
        kept = [first for first in self._starts if first >= self.log.start_offset]
        offset = self.generator.choice(kept[-20:]) if kept else self.log.start_offset
        self.log.truncate_to(offset)
        self._cut_from(offset, offset)

    def start_over(self) -> None:
        # Never above the end: that would leave a gap, which a read passes over.
        offset = max(self.log.end_offset + self.generator.randint(-30, 0), 0)
        writer_of(self.log).truncate_fully_and_start_at(offset)
        self._cut_from(0, offset)

    def _cut_from(self, offset: int, end: int) -> None:
        self._starts = [first for first in self._starts if first < offset]
        self._serial += 1
        self.lives.began(offset, self._serial)
        if self.log.end_offset != end:
            raise Wrong(f"the log ends at {self.log.end_offset}, expected {end}")

    def delete(self, keep: int) -> None:
        self.log.delete_records(max(self.log.start_offset, self.log.end_offset - keep))

    def step(self, change: str, number: int) -> None:
        """One append, and what ``change`` does."""
        self.append()
        match change:
            case "rolls":
                if number % 3 == 0:
                    self.log.roll()
            case "truncations":
                if number % 4 == 3:
                    self.truncate()
            case "fresh-starts":
                if number % 6 == 5:
                    self.start_over()
            case "deletions":
                self.log.roll()
                self.delete(keep=40)
            case "index-growth":
                # With entries of 8 and 12 bytes the mappings grow by pages, several times a segment.
                self.append_batches(100)
            case "evictions":
                self.log.roll()
                self.delete(keep=150)
            case _:
                match self.generator.randrange(8):
                    case 0:
                        self.truncate()
                    case 1:
                        self.log.roll()
                    case 2:
                        self.delete(keep=50)
                    case 3:
                        self.append_batches(30)
                    case 4 if self.generator.random() < 0.2:
                        self.start_over()
                    case 5:
                        self.log.flush()


CHANGES = ["rolls", "truncations", "fresh-starts", "deletions", "index-growth", "evictions", "everything"]


def _beside_readers(
    change: str, durability: Durability, steps: int, path: Path, reader: ReadingProcess, tried: Tried, seed: int
) -> None:
    settings = dict(SETTINGS)
    if change == "index-growth":
        settings["segment_bytes"] = 1 << 20
    if change == "evictions":
        settings["open_files_max"] = 2
    with Log(path, durability=durability, **settings) as log:
        writer = Writer(log, seed)
        if change == "evictions":
            for _ in range(50):
                writer.append()
                log.roll()
        reads = StrictReads(writer.lives)
        reader.watch(path, read=StrictReads())
        with watched_by_threads(log, READERS, read=reads) as counts:
            elsewhere, deadline = 0, time.monotonic() + SECONDS_MAX
            for number in itertools.count():
                writer.step(change, number)
                if number + 1 >= steps:
                    elsewhere += reader.watch(path, read=StrictReads())
                    # A busy machine may not have given every reader its turn.
                    if all(counts) and elsewhere:
                        break
                    if time.monotonic() > deadline:
                        raise Hung(f"a reader read nothing: {counts}, {elsewhere}")
        elsewhere += reader.watch(None)
        log.check()
    tried("reads", sum(counts) + elsewhere)


@pytest.mark.promise("high watermark", "bytes")
@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.sampled(2)
def test_reads_beside_a_writer_begin_go_on_and_end_where_they_must(
    change: str, durability: Durability, tmp_path: Path, reader: ReadingProcess, tried: Tried, seed: int
) -> None:
    _beside_readers(change, durability, STEPS, tmp_path / "log", reader, tried, seed)


@pytest.mark.soak
@pytest.mark.promise("high watermark", "bytes")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("change", CHANGES)
def test_reads_beside_a_writer_for_long(
    change: str, durability: Durability, tmp_path: Path, reader: ReadingProcess, tried: Tried, seed: int
) -> None:
    _beside_readers(change, durability, STEPS_LONG, tmp_path / "log", reader, tried, seed + 1)


@pytest.mark.promise("high watermark", "returns: sync", "returns: os")
@pytest.mark.parametrize("rolls", [False, True], ids=["no-roll", "roll"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_no_reader_sees_a_batch_in_the_file_before_it_is_committed(
    durability: Durability, rolls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Tried
) -> None:
    written, commit = threading.Event(), threading.Event()

    def wait() -> None:
        written.set()
        commit.wait(SECONDS_MAX)

    with (
        Log(
            tmp_path / "log", durability=durability, segment_bytes=1024 if rolls else 4096, index_interval_bytes=1
        ) as log,
        Log(tmp_path / "log", read_only=True) as view,
    ):
        log.append_many([b"a" * 400, b"b" * 400])
        appends = writer_of(log).appends
        monkeypatch.setattr(appends, "path", GeneralPath(appends.path, wait))
        appending = threading.Thread(target=log.append_many, args=([b"c" * 400],))
        appending.start()
        assert written.wait(SECONDS_MAX)
        # Without syncs a reader in another process cannot know: it sees all whole batches in the file.
        logs = [log, view] if durability == "sync" else [log]
        for each in logs:
            assert (each.high_watermark, each.offset_for_time("latest")) == (2, 2)
            assert [record.offset for record in each.read(0, follow=True, timeout=0.01)] == [0, 1]
            assert [record.offset for record in each.read(0, on_corrupt="yield")] == [0, 1]
            assert len(list(each.read_values(0))) == 2
            assert [record.offset for record in each.fetch(1).records()] == [1]
            assert list(each.fetch(2).records()) == []
            assert each.offset_for_time("max_timestamp") in (0, 1)
        commit.set()
        appending.join(SECONDS_MAX)
        for each in (log, view):
            assert [record.offset for record in each.read(0, 3)] == ([0, 1, 2] if each.high_watermark == 3 else [])
    tried("reads", 6 * len(logs))


# --- close ------------------------------------------------------------------------------------------------------------


def _close_beside_readers(closes: int, path: Path, reader: ReadingProcess, tried: Tried, seed: int) -> None:
    lives, read_count = Lives(), 0
    reader.watch(path, read=StrictReads())
    for number in range(closes):
        log = Log(path, durability=DURABILITIES[number % 3], **SETTINGS)
        writer = Writer(log, seed + number)
        writer.lives = lives
        with watched_by_threads(log, READERS, read=StrictReads(lives)) as counts:
            for _ in range(5):
                writer.append()
            log.close()
        read_count += sum(counts)
        with Log(path, **SETTINGS) as again:
            if not again.recovery.clean:
                raise Wrong(f"not clean after a close beside readers: {again.recovery}")
    tried("reads", read_count + reader.watch(None))


@pytest.mark.promise("bytes")
def test_a_log_is_closed_while_it_is_read(tmp_path: Path, reader: ReadingProcess, tried: Tried, seed: int) -> None:
    _close_beside_readers(CLOSES, tmp_path / "log", reader, tried, seed)


@pytest.mark.soak
@pytest.mark.promise("bytes")
def test_a_log_is_closed_while_it_is_read_for_long(
    tmp_path: Path, reader: ReadingProcess, tried: Tried, seed: int
) -> None:
    _close_beside_readers(CLOSES_LONG, tmp_path / "log", reader, tried, seed + 1)


# --- many writers -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("returns: sync", "returns: interval", "returns: os")
@pytest.mark.parametrize("durability", DURABILITIES)
def test_threads_that_append_get_offsets_of_their_own_in_their_order(
    durability: Durability, tmp_path: Path, tried: Tried, seed: int
) -> None:
    threads_count, appends = 6, 40
    given: list[dict[int, bytes]] = [{} for _ in range(threads_count)]
    errors: list[BaseException] = []

    def work(log: Log, thread: int) -> None:
        generator = random.Random(seed + thread)
        last = -1
        try:
            for number in range(appends):
                values = [b"%d:%d:%d" % (thread, number, at) for at in range(generator.randint(1, 4))]
                info = log.append_many(values)
                if info.first_offset <= last or info.last_offset - info.first_offset + 1 != len(values):
                    raise Wrong(f"{info} for {len(values)} records, after offset {last}")
                last = info.last_offset
                given[thread].update(enumerate(values, info.first_offset))
                if (read := next(iter(log.read(info.first_offset)))).value != values[0]:
                    raise Wrong(f"{read} where {values[0]!r} was appended")
                if number % 10 == thread:
                    log.roll()
        except BaseException as error:
            errors.append(error)

    with Log(tmp_path / "log", durability=durability, **SETTINGS) as log:
        threads = [threading.Thread(target=work, args=(log, number), daemon=True) for number in range(threads_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
        if any(thread.is_alive() for thread in threads):
            raise Hung("an append did not return")
        assert errors == []
        there = {record.offset: record.value for record in log.read()}
    expected = {offset: value for values in given for offset, value in values.items()}
    if len(expected) != sum(map(len, given)):
        raise Wrong("an offset was assigned twice")
    if lost := expected.keys() - there.keys():
        raise Lost(f"offsets {sorted(lost)}")
    if there != expected or sorted(there) != list(range(len(there))):
        raise Wrong("not the records that were appended")
    tried("reads", len(there))


# --- flush beside a truncation ----------------------------------------------------------------------------------------


@pytest.mark.promise("power cut: os", "power cut: interval")
def test_a_flush_does_not_vouch_for_what_was_cut_and_written_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Tried
) -> None:
    synced, go_on = threading.Event(), threading.Event()
    sync_tails = TailFlush._sync_tails

    def sync_and_wait(flush: TailFlush, *arguments: Any) -> None:
        sync_tails(flush, *arguments)
        synced.set()
        go_on.wait(SECONDS_MAX)

    with log_without_flusher(tmp_path / "log", durability="os") as log:
        for _ in range(20):
            log.append(b"old")
        with monkeypatch.context() as patched:
            patched.setattr(TailFlush, "_sync_tails", sync_and_wait)
            flushing = threading.Thread(target=log.flush)
            flushing.start()
            assert synced.wait(SECONDS_MAX)
        log.truncate_to(10)
        for _ in range(20):
            log.append(b"new, and not synced")
        go_on.set()
        flushing.join(SECONDS_MAX)
        state = read_state(SYSTEM_FS, log.path / KSTORE_STATE)
        assert state is not None
        assert max(state.durable_end, state.recovery_point) <= 10
        log.flush()
        state = read_state(SYSTEM_FS, log.path / KSTORE_STATE)
        assert state is not None
        assert state.durable_end == state.recovery_point == 30
    tried("states", 2)
