"""``Log.get``: the record with an offset, in at most two reads, and what takes the general path."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ClosedError, CorruptBatchError, CorruptDataError, OffsetOutOfRangeError
from kstore.files.local import OsFile
from kstore.log import Log
from kstore.record._codec import Record
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.golden_data import golden_root
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import FIRST, data, fenced, lost_in_the_middle, marker, segment_bases, transaction
from tests.support.lives.log_helpers import TIME

FLIPS = tries(2000, quick=100)


def filled(path: Path, count: int, batch_count: int, size: int = 100, **settings: Any) -> Log:
    """A log of ``count`` records in batches of ``batch_count``; some segments are sealed if ``settings`` say so."""
    log = Log(path, durability="os", clock=ManualClock(TIME), **settings)
    for first in range(0, count, batch_count):
        numbers = range(first, min(first + batch_count, count))
        log.append_many([b"%d" % number + b"." * size for number in numbers], keys=[b"k"] * len(numbers))
    return log


def found(log: Log, offset: int) -> object:
    """The record, None, or the error's text."""
    try:
        return log.get(offset)
    except (CorruptDataError, OffsetOutOfRangeError) as error:
        return type(error), str(error)


def read(log: Log, offset: int) -> object:
    """The same by a read on the general path."""
    try:
        return next(log.read(offset, offset + 1, isolation_level="read_committed"), None)
    except (CorruptDataError, OffsetOutOfRangeError) as error:
        return type(error), str(error)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Size and position of each read of a ``.log``."""
    noted: list[tuple[int, int]] = []
    pread = OsFile.pread

    def note(self: OsFile, size: int, position: int) -> bytes:
        if self.path.endswith(".log"):
            noted.append((size, position))
        return pread(self, size, position)

    monkeypatch.setattr(OsFile, "pread", note)
    return noted


# --- what it returns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_count", [1, 3, 10, 40, 150, 1000])
@pytest.mark.parametrize("interval", [0, 500, 4096, 1 << 16])
@pytest.mark.sampled(8)
def test_every_record_is_found_in_at_most_two_reads(
    batch_count: int, interval: int, tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    settings = {"segment_bytes": 150_000, "index_interval_bytes": interval}
    with filled(tmp_path / "log", 3000, batch_count, **settings) as log, Log(log.path, read_only=True) as view:
        expected = list(log.read())
        assert [one.offset for one in expected] == list(range(3000))
        assert len(segment_bases(log.path)) >= 2
        for reader in (log, view):
            for offset in range(0, 3000, 7):
                reads.clear()
                assert reader.get(offset) == expected[offset]
                assert len(reads) <= 2 or (interval > 4096 and batch_count < 1000), (offset, reads)


@pytest.mark.parametrize(("batch_count", "step"), [(1, 70), (10, 70), (150, 70), (1000, 1000)])
def test_most_records_take_one_read(batch_count: int, step: int, tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    with filled(tmp_path / "log", 10_000, batch_count) as log:
        log.get(1)
        reads.clear()
        # A large batch is read whole once.
        for offset in range(2000, 9000, step):
            assert log.get(offset) is not None
        assert len(reads) == 7000 // step
        # The record's batch, or small batches around it.
        assert max(size for size, _ in reads) <= max(1 << 14, 140 * batch_count)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_record_of_a_compressed_batch_is_found(codec: str, tmp_path: Path) -> None:
    with filled(tmp_path / "log", 300, 20, compression_type=codec) as log:
        expected = list(log.read())
        assert [log.get(offset) for offset in range(300)] == expected


def test_records_of_old_formats_are_found() -> None:
    tried = 0
    for path in sorted(golden_root().joinpath("old").iterdir())[:: tries(1, quick=4)]:
        if path.is_dir() and segment_bases(path):
            with Log(path, read_only=True) as log:
                for record in log.read():
                    assert log.get(record.offset) == record
                    tried += 1
    assert tried


def test_all_fields_of_a_record_are_found(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", message_timestamp_type="LogAppendTime") as log:
        log.append(None, key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=5)
        log.append(b"v", timestamp=7)
        assert [log.get(0), log.get(1)] == list(log.read())


def test_a_record_may_be_the_last_of_a_batch_that_is_read_in_part(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 100, 10) as log:
        log.append_many([b"x" * 3000] * 40)
        log.append(b"last")
        log.roll()
        log.append(b"next")
        assert [log.get(offset) for offset in range(142)] == list(log.read())


# --- where there is no record -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_an_offset_outside_the_log_is_refused(read_only: bool, tmp_path: Path) -> None:
    with filled(tmp_path / "log", 20, 5) as log:
        log.delete_records(7)
        with Log(log.path, read_only=True) as view:
            reader = view if read_only else log
            for offset in (-1, 0, 6, 20, 21, 1 << 62, 1 << 70):
                with pytest.raises(OffsetOutOfRangeError, match=r"holds 7 to 2[01]"):
                    reader.get(offset)
            assert [record.offset for offset in range(7, 20) if (record := reader.get(offset))] == list(range(7, 20))


def test_a_view_finds_what_was_appended_since(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 5, 1) as log, Log(log.path, read_only=True) as view:
        log.append(b"new")
        record = view.get(5)
        assert record is not None
        assert record.value == b"new"


def test_a_closed_log_has_no_records(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 5, 1)
    log.close()
    with pytest.raises(ClosedError):
        log.get(0)


def test_a_removed_record_and_a_marker_are_none(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for batch in (
            transaction(7, 0, 1), marker(7, 2, commit=False), data(3, 5), data(9), data(10, 11), data(20),
        ):  # fmt: skip
            log.append_batches(batch, assign_offsets=False)
        held = {record.offset: record for record in log.read()}
        assert list(held) == [0, 1, 3, 5, 9, 10, 11, 20]
        assert [log.get(offset) for offset in range(21)] == [held.get(offset) for offset in range(21)]


def test_what_compaction_removed_is_none(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 2000, 10, cleanup_policy="compact") as log:
        for number in range(0, 2000, 3):
            log.append(b"kept", key=b"%d" % number)
        log.roll()
        log.append(b"last", key=b"k")
        log.compact()
        held = {record.offset: record for record in log.read()}
        assert len(held) < 1000
        for offset in range(log.start_offset, log.end_offset):
            assert log.get(offset) == held.get(offset)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("damage below")
def test_a_damaged_batch_is_never_served(tmp_path: Path) -> None:
    with Log(fenced(tmp_path / "log")) as log:
        assert [found(log, offset) for offset in range(10)] == [read(log, offset) for offset in range(10)]
        with pytest.raises(CorruptBatchError) as caught:
            log.get(4)
        assert (caught.value.first_offset, caught.value.last_offset) == (4, 4)
        log.accept_loss(4, 4)
        assert log.get(4) is None


@pytest.mark.promise("damage below")
def test_a_lost_record_is_an_error_until_its_loss_is_accepted(tmp_path: Path) -> None:
    with Log(lost_in_the_middle(tmp_path / "log")) as log:
        for offset in (9, 10):
            with pytest.raises(CorruptBatchError):
                log.get(offset)
        log.accept_loss(9, 10)
        assert [log.get(offset) for offset in (9, 10)] == [None, None]


@pytest.mark.promise("damage below")
def test_a_damaged_log_gives_what_a_read_gives(tmp_path: Path, seed: int) -> None:
    """Any flipped bit, in the log or its index."""
    generator = random.Random(seed)
    with filled(tmp_path / "log", 60, 3, index_interval_bytes=300):
        pass
    paths = [tmp_path / "log" / name for name in (FIRST, FIRST.replace(".log", ".index"))]
    sound = [path.read_bytes() for path in paths]
    for _ in range(FLIPS):
        number = generator.randrange(2)
        changed = bytearray(sound[number])
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        paths[number].write_bytes(changed)
        with Log(tmp_path / "log", read_only=True) as log:
            for offset in generator.sample(range(60), 6):
                assert found(log, offset) == read(log, offset)
        paths[number].write_bytes(sound[number])


def test_an_index_that_leads_astray_is_no_harm(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    with filled(tmp_path / "log", 400, 2, index_interval_bytes=500) as log:
        expected = list(log.read())
    path = tmp_path / "log" / FIRST.replace(".log", ".index")
    sound = path.read_bytes()
    for _ in range(tries(300, quick=40)):
        first, second = sorted(generator.sample(range(len(sound) // 8), 2))
        changed = generator.choice([
            sound[: 8 * first] + sound[8 * second :], sound[8 * first : 8 * second], bytes(len(sound)),
            sound[: 8 * first], generator.randbytes(len(sound)), sound[:8] * 9 + sound,
        ])  # fmt: skip
        path.write_bytes(changed)
        with Log(tmp_path / "log", read_only=True) as log:
            for offset in generator.sample(range(400), 20):
                assert log.get(offset) == expected[offset]


def test_a_segment_that_is_removed_is_no_error_of_its_own(tmp_path: Path) -> None:
    with (
        filled(tmp_path / "log", 3000, 10, segment_bytes=20_000, open_files_max=1) as log,
        Log(log.path, read_only=True, open_files_max=1) as view,
    ):
        base = segment_bases(log.path)[3]
        log.delete_records(base)
        log.apply_retention()
        with pytest.raises(OffsetOutOfRangeError):
            view.get(5)
        assert view.get(base) == log.get(base)


def test_a_lookup_is_counted_as_one_read(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 100, 10) as log:
        before: dict[str, Any] = dict(log.metrics())
        record = log.get(55)
        assert record is not None
        after: dict[str, Any] = dict(log.metrics())
        grown = {name: value - before[name] for name, value in after.items() if value != before[name]}
        assert grown == {"reads": 1, "read_batches": 1, "read_records": 1, "read_bytes": grown["read_bytes"]}


def test_the_golden_logs_give_what_a_read_gives(tmp_path: Path) -> None:
    for path in sorted(golden_root().joinpath("clean").iterdir())[:: tries(1, quick=6)]:
        if path.is_dir() and segment_bases(path):
            with Log(path, read_only=True) as log:
                offsets = range(log.start_offset, log.high_watermark)
                assert [found(log, offset) for offset in offsets] == [_uncommitted(log, offset) for offset in offsets]


def _uncommitted(log: Log, offset: int) -> Record | None:
    return next((one for one in log.read(offset, offset + 1)), None)
