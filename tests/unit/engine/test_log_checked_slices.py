"""Slices that are sent to receivers which check nothing: what is damaged is never part of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore import Log
from kstore.errors import CorruptBatchError
from kstore.record.batch import BATCH_HEADER_BYTES
from kstore.record.scan import parse_batches
from kstore.segments.places import NO_SPANS
from tests.support.lives.log_cases import flip

BATCH_COUNT = 6
# Every field of a header but the leader epoch, which no checksum covers and no reader of records needs.
HEADER_POSITIONS = [0, 7, 8, 11, *range(16, BATCH_HEADER_BYTES)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log", durability="os") as opened:
        for number in range(BATCH_COUNT):
            opened.append_many([b"%d-%d" % (number, each) for each in range(3)])
        yield opened


def file_of(log: Log) -> Path:
    return next(log.path.glob("*.log"))


def served(log: Log, start: int = 0, max_bytes: int = 1 << 20) -> bytes:
    """What a client gets that asks for more until an error or the end."""
    found = b""
    offset = start
    while True:
        try:
            part = log.fetch(offset, max_bytes, checked=True)
        except CorruptBatchError:
            return found
        data = part.read()
        if not data:
            return found
        batches = list(parse_batches(data))
        found += data[: sum(batch.size for batch in batches)]
        offset = batches[-1].last_offset + 1


def forget(log: Log) -> None:
    for segment in log._source.segments:
        segment.checked = NO_SPANS


def checked_stop(log: Log) -> int:
    [segment] = log._source.segments
    return max((span.stop for span in segment.checked.spans if segment.checked.contents is segment.contents), default=0)


@pytest.mark.parametrize("max_bytes", [1, 150, 1 << 20])
@pytest.mark.parametrize("codec", ["producer", "gzip"])
def test_a_whole_log_is_served_byte_for_byte(tmp_path: Path, codec: str, max_bytes: int) -> None:
    with Log(tmp_path / "log", durability="os", compression_type=codec) as log:  # type: ignore[arg-type]
        for number in range(BATCH_COUNT):
            log.append_many([b"%d-%d" % (number, each) for each in range(3)])
        assert served(log, max_bytes=max_bytes) == file_of(log).read_bytes()


@pytest.mark.parametrize("number", range(BATCH_COUNT))
def test_a_flipped_bit_ends_every_slice_before_its_batch(log: Log, number: int) -> None:
    path = file_of(log)
    whole = path.read_bytes()
    size = len(whole) // BATCH_COUNT
    position = number * size
    for at in (*HEADER_POSITIONS, BATCH_HEADER_BYTES, size - 1):
        flip(path, position + at)
        forget(log)
        assert served(log) == whole[:position], at
        with pytest.raises(CorruptBatchError) as raised:
            log.fetch(3 * number, checked=True)
        assert (raised.value.path, raised.value.first_offset) == (str(path), 3 * number), at
        assert served(log, 3 * number + 3) == whole[position + size :], at
        flip(path, position + at)


def test_bytes_are_checked_once(log: Log) -> None:
    whole = served(log)
    assert checked_stop(log) == len(whole)
    flip(file_of(log), len(whole) // 2 + 100)
    assert log.fetch(0, checked=True).size == len(whole), "what was checked is not read again"
    assert log.fetch(0, len(whole), checked=True).size == len(whole)


def test_only_what_was_appended_since_is_checked(log: Log) -> None:
    before = len(served(log))
    log.append_many([b"new"] * 3)
    flip(file_of(log), before + 70)
    assert log.fetch(0, checked=True).size == before
    with pytest.raises(CorruptBatchError):
        log.fetch(3 * BATCH_COUNT, checked=True)


def test_ranges_that_meet_become_one(log: Log) -> None:
    [segment] = log._source.segments
    size = file_of(log).stat().st_size // BATCH_COUNT
    for offset in (9, 3, 15):
        assert log.fetch(offset, 1, checked=True).size == size
    assert {(span.start // size, span.stop // size) for span in segment.checked.spans} == {(3, 4), (1, 2), (5, 6)}
    assert log.fetch(0, checked=True).size == BATCH_COUNT * size
    [span] = segment.checked.spans
    assert span == (0, BATCH_COUNT * size, 0, 3 * BATCH_COUNT)


@pytest.mark.parametrize("batches", [1, 2, 2.5])
def test_a_consumer_that_reads_on_leaves_one_range(log: Log, batches: float) -> None:
    """However little it reads at a time; else a long log had more ranges than are kept, and was checked each time."""
    [segment] = log._source.segments
    whole = served(log, max_bytes=int(batches * file_of(log).stat().st_size / BATCH_COUNT))
    assert segment.checked.spans == ((0, len(whole), 0, 3 * BATCH_COUNT),)
    flip(file_of(log), len(whole) - 1)
    assert log.fetch(0, checked=True).size == len(whole), "what was checked is not read again"


def test_the_batch_that_was_looked_up_is_read_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    [segment] = log._source.segments
    size = file_of(log).stat().st_size // BATCH_COUNT
    monkeypatch.setattr(type(segment), "runs_from", None)
    assert log.fetch(3, size, checked=True).size == size
    assert segment.checked.spans == ((size, 2 * size, 3, 6),)


def test_a_truncation_forgets_what_was_checked(log: Log) -> None:
    whole = served(log)
    size = len(whole) // BATCH_COUNT
    log.truncate_to(6)
    log.append_many([b"%d-%d" % (number, each) for number in range(5, 9) for each in range(3)])
    flip(file_of(log), 2 * size + 70)
    assert served(log) == whole[: 2 * size]


def test_a_compaction_forgets_what_was_checked(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", cleanup_policy="compact", segment_bytes=1024) as log:
        for number in range(12):
            log.append_many([b"v%d" % number * 40] * 2, keys=[b"a", b"%d" % number])
        log.roll()
        list(parse_batches(served(log)))
        log.compact()
        first = log._source.segments.first
        assert first.checked.spans == () or first.checked.contents is not first.contents
        path = first.log_file().path
        size = Path(path).stat().st_size
        flip(Path(path), size - 1)
        start = log.fetch(0, checked=True).read()
        assert len(start) < size
        assert all(batch.is_valid() for batch in parse_batches(start))


def test_another_process_truncation_is_seen_by_a_view(log: Log) -> None:
    """The truncated log is written again, as long as before, and damaged where the view had checked it."""
    whole = served(log)
    size = len(whole) // BATCH_COUNT
    with Log(log.path, read_only=True) as view:
        assert served(view) == whole
        log.truncate_to(6)
        for number in range(4):
            log.append_many([b"%d+%d" % (number, each) for each in range(3)])
        assert file_of(log).stat().st_size == len(whole)
        flip(file_of(log), 2 * size + 70)
        assert served(view) == whole[: 2 * size]


def test_a_slice_at_the_end_is_empty(log: Log) -> None:
    assert log.fetch(3 * BATCH_COUNT, checked=True).size == 0


def test_consumers_at_many_places_keep_a_bounded_number_of_ranges(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for _ in range(60):
            log.append(b"one")
        for offset in range(0, 60, 2):
            log.fetch(offset, 1, checked=True)
        [segment] = log._source.segments
        assert len(segment.checked.spans) == 16
        assert served(log) == file_of(log).read_bytes()


def test_what_was_lost_by_accident_is_skipped_once_it_is_accepted(log: Log) -> None:
    whole = served(log)
    size = len(whole) // BATCH_COUNT
    log.truncate_to(9)
    log.append_many([b"3+0"] * 3)
    flip(file_of(log), size + 70)
    forget(log)
    with pytest.raises(CorruptBatchError):
        log.fetch(3, checked=True)
    log.accept_loss(3, 5)
    assert log.fetch(3, checked=True).read() == file_of(log).read_bytes()[2 * size :]
    assert log.fetch(0, checked=True).size == size
