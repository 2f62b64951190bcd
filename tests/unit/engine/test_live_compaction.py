"""Readers of a directory in which another program compacts: no false damage, no skipped record, no missed damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from kstore.engine.read.reads import MISSING_MAX
from kstore.errors import CorruptBatchError, DivergedError
from kstore.files.fs import File
from kstore.files.paths import KSTORE_STATE, LOG_SUFFIX, segment_name
from kstore.log import Log
from kstore.record.batch import Batch
from kstore.segment import LogSegment
from kstore.upkeep.mirror import mirror
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.log_helpers import TIME
from tests.support.oracles.kafka_cleaner import clean

SEGMENT = 40
COUNT = 4 * SEGMENT
# The segments that are merged; the last ones stay as they are.
MERGED = (0, SEGMENT, 2 * SEGMENT)
STEPS = 18
Read = Callable[[Log, int], Iterable[int]]


def keeps(batch: Batch) -> bool:
    """Every fifth record has a key that no other has."""
    return batch.base_offset % 5 == 0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log, without kstore's own files. Batches have one record and different sizes."""
    path = tmp_path_factory.mktemp("live") / "t-0"
    with Log(path, clock=ManualClock(TIME), durability="os", index_interval_bytes=200) as log:
        for offset in range(COUNT):
            log.append(value_of(offset), key=b"k%d" % offset, timestamp=TIME)
            if offset % SEGMENT == SEGMENT - 1:
                log.roll()
    for name in (KSTORE_STATE, ".lock"):
        (path / name).unlink(missing_ok=True)
    return path


def value_of(offset: int) -> bytes:
    return b"%d|" % offset + b"x" * (offset * 7 % 90)


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "t-0"))


def by_records(log: Log, start: int) -> Iterator[int]:
    for record in log.read(start):
        assert record.value == value_of(record.offset)
        yield record.offset


def skipping(log: Log, start: int) -> Iterator[int]:
    reader = log.read(start, on_corrupt="skip")
    yield from (record.offset for record in reader)
    assert reader.corrupt == []


def following(log: Log, start: int) -> Iterator[int]:
    yield from (record.offset for record in log.read(start, COUNT, follow=True, timeout=0))


def by_columns(log: Log, start: int) -> Iterator[int]:
    for batch in log.to_arrow_batches(start, columns=["offset"], max_records=3):
        yield from batch.column(0).to_pylist()


def by_slices(log: Log, start: int) -> Iterator[int]:
    while start < log.high_watermark:
        found = [record.offset for record in log.fetch(start, 500).records()]
        yield from found
        start = max([*found, start]) + 1


def one_by_one(log: Log, start: int) -> Iterator[int]:
    yield from (offset for offset in range(start, log.high_watermark, 5) if log.get(offset) is not None)


READS = {each.__name__: each for each in (by_records, skipping, following, by_columns, by_slices, one_by_one)}


def holds_all(found: list[int], start: int = 0) -> None:
    assert found == sorted(set(found)), "offsets rise"
    assert set(range(start, COUNT, 5)) <= set(found)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    "open_files_max",
    [pytest.param(1, id="files evicted"), pytest.param(100, id="files kept", marks=pytest.mark.long)],
)
def test_a_reader_meets_every_step_of_a_cleaners_swap(read: Read, open_files_max: int, path: Path) -> None:
    with Log(path, read_only=True, open_files_max=open_files_max) as log:
        under_way = iter(read(log, 0))
        begun = list(islice(under_way, 3))
        for number, step in enumerate(clean(path, MERGED, keeps)):
            holds_all(list(read(log, 0)))
            begun += [each for each in (next(under_way, None),) if each is not None]
            assert number < STEPS, step
        holds_all(begun + list(under_way))
        holds_all(list(read(log, 0)))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("paused_at", [1, 30])
def test_a_reader_goes_on_after_a_whole_compaction(read: Read, paused_at: int, path: Path) -> None:
    with Log(path, read_only=True, open_files_max=1) as log:
        under_way = iter(read(log, 0))
        found = list(islice(under_way, paused_at))
        for _ in clean(path, MERGED, keeps):
            pass
        holds_all(found + list(under_way))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_cleaner_that_is_faster_than_a_reader_for_long_is_no_error(
    read: Read, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted_count = 0
    real = LogSegment.log_file

    def compacted_first(segment: LogSegment) -> File:
        nonlocal compacted_count
        if segment.base_offset == 0 and compacted_count < 3 * MISSING_MAX:
            compacted_count += 1
            for _ in clean(path, [0], keeps):
                pass
        return real(segment)

    with Log(path, read_only=True, open_files_max=1) as log:
        monkeypatch.setattr(LogSegment, "log_file", compacted_first)
        holds_all(list(read(log, 0)))


def test_what_was_learned_of_a_segment_is_not_used_for_the_one_that_replaces_it(path: Path) -> None:
    with Log(path, read_only=True) as log:
        holds_all(list(by_records(log, 0)))
        for base in MERGED:
            for _ in clean(path, [base], keeps):
                pass
        found = list(by_records(log, 0))
        assert found == [*range(0, 3 * SEGMENT, 5), *range(3 * SEGMENT, COUNT)]


@pytest.mark.parametrize("paused_at", [1, 30, 50])
def test_damage_in_a_compacted_segment_is_found(paused_at: int, path: Path) -> None:
    with Log(path, read_only=True) as log:
        holds_all(list(by_records(log, 0)))
        under_way = log.read(0, on_corrupt="skip")
        for _ in range(paused_at):
            next(under_way)
        for _ in clean(path, MERGED, keeps):
            pass
        damage(path / segment_name(0, LOG_SUFFIX), 100)
        with pytest.raises(CorruptBatchError):
            list(log.read(0))
        with pytest.raises(CorruptBatchError):
            list(by_columns(log, 0))
        assert set(range(0, COUNT, 5)) - {100} <= {record.offset for record in log.read(0, on_corrupt="skip")}


def test_damage_is_searched_for_in_the_same_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(path / segment_name(SEGMENT, LOG_SUFFIX), 60)
    walks = 0
    real = LogSegment.runs_from

    def counted(*args: object, **options: object) -> object:
        nonlocal walks
        walks += 1
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LogSegment, "runs_from", counted)
    with Log(path, read_only=True) as log:
        reader = log.read(0, on_corrupt="skip")
        assert [record.offset for record in reader] == [*range(60), *range(61, COUNT)]
        assert [(lost.first, lost.last) for lost in reader.corrupt] == [(60, 60)]
    assert walks == 4, "the first batch is found without a walk, and each segment is walked once"


@pytest.mark.parametrize("segment_count", range(COUNT // SEGMENT))
def test_verify_finds_nothing_in_a_log_that_is_compacted_meanwhile(
    segment_count: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[LogSegment] = []
    real = LogSegment.runs_from

    def compacted_first(segment: LogSegment, *args: object, **options: object) -> object:
        looked_at.append(segment)
        if len(looked_at) == segment_count + 1:
            for _ in clean(path, MERGED, keeps):
                pass
        return real(segment, *args, **options)  # type: ignore[arg-type]

    with Log(path, read_only=True, open_files_max=1) as log:
        monkeypatch.setattr(LogSegment, "runs_from", compacted_first)
        report = log.verify()
    assert report.clean
    assert len(looked_at) > segment_count
    assert report.records_scanned >= (COUNT - SEGMENT) // 5 + SEGMENT


def damage(path: Path, offset: int) -> None:
    """Flips a byte in the value of the record with ``offset``."""
    data = bytearray(path.read_bytes())
    data[data.index(b"%d|" % offset)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("after_bytes", [1, 6000])
def test_a_mirror_copies_no_segment_that_was_replaced_after_it_was_listed(
    after_bytes: int, path: Path, tmp_path: Path
) -> None:
    """It examines the log again, and finds that its copy differs."""
    copied = 0

    def advance(size: int) -> None:
        nonlocal copied
        if copied < after_bytes <= copied + size:
            for base in MERGED:
                for _ in clean(path, [base], keeps):
                    pass
        copied += size

    (result,) = mirror(path, tmp_path / "copy", advance=advance)
    assert result.damage == []
    assert result.error is None or isinstance(result.error, DivergedError)
