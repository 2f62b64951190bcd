"""Compaction: what it keeps, what it leaves alone, and what goes on beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.compaction.cleaner import compact, dirt_of
from kstore.errors import ClosedError, ReadOnlyError
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.batch import ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER, BatchHeader
from kstore.record.builder import build_batch
from kstore.types import RELATIVE_OFFSET_MAX, CorruptRange
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.cleaner_parts import DAY_MS, filled, latest, opened, pairs, put
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.log_cases import edit, marker, segment_bases, transaction
from tests.support.lives.log_helpers import TIME
from tests.support.oracles import oracle_legacy
from tests.support.oracles.compaction_model import CODECS, Oracle, batches_in, random_batches

# --- against the oracle -----------------------------------------------------------------------------------------------


def compare(path: Path, seed: int, passes: int) -> int:
    """Compacts a growing random log ``passes`` times and compares each with the oracle; returns ``passes``."""
    generator = random.Random(seed)
    clock = ManualClock(TIME + DAY_MS)
    data = random_batches(
        seed, generator.randrange(5, 120), generator.randrange(1, 30), leave_open=generator.random() < 0.3
    )
    retention_ms = generator.choice((0, 1000, 10**9))
    cuts = [*sorted(generator.randrange(len(data) + 1) for _ in range(passes - 1)), len(data)]
    segment_bytes = generator.choice((1024, 2048, 8192))
    first_dirty = at = 0
    with opened(path, clock=clock, segment_bytes=segment_bytes, delete_retention_ms=retention_ms) as log:
        for cut in cuts:
            for batch in data[at:cut]:
                log.append_batches(batch, assign_offsets=False)
            at = cut
            if generator.random() < 0.7:
                log.roll()
            clock.advance(generator.choice((0, 500, 2000)))
            start = writer_of(log).cleanable(with_producers=True)
            stop = max(min(start.stop_offset, start.stable_offset), first_dirty)
            before, values = batches_in(path), latest(log)
            oracle = Oracle(
                before, first_dirty=first_dirty, stop=stop, now_ms=clock.now_ms(), retention_ms=retention_ms
            )
            log.compact(keep_keyless=False)
            wanted = oracle.after({key: last.last_offset for key, last in start.last_records.items()})
            after = batches_in(path)
            if after != (wanted if stop > first_dirty else before):
                raise Wrong(f"seed {seed}, from {first_dirty} to {stop}: {after}, expected {wanted}")
            if latest(log) != values:
                raise Lost(f"seed {seed}, from {first_dirty} to {stop}")
            first_dirty = stop
            log.check()
            assert log.verify().clean
    with opened(path) as log:
        assert log.recovery.clean
        assert batches_in(path) == after
    return passes


@pytest.mark.parametrize("part", range(4))
@pytest.mark.sampled(1)
def test_what_is_kept_is_what_a_plain_second_opinion_keeps(
    part: int, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    for number in range(tries(10, quick=4)):
        tried("states", compare(tmp_path / str(number), seed + 10 * part + number, 4))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_what_is_kept_is_what_a_plain_second_opinion_keeps_many_times(
    part: int, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    for number in range(100):
        tried("states", compare(tmp_path / str(number), seed + 1000 + 100 * part + number, 5))


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_last_record_of_each_key_stays_with_its_offset(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        put(log, ("a", "1"), ("b", "1"), ("a", "2"))
        put(log, ("c", "1"), ("a", "3"))
        log.roll()
        report = log.compact()
        assert pairs(log) == [(1, "b", "1"), (3, "c", "1"), (4, "a", "3")]
        assert (report.records_read, report.records_kept, report.keys, report.stop_offset) == (5, 3, 3, 5)
        assert log.end_offset == 5
        assert report.bytes_after < report.bytes_before


def test_the_active_segment_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        put(log, ("a", "1"))
        log.roll()
        put(log, ("a", "2"), ("a", "3"))
        log.compact()
        assert pairs(log) == [(0, "a", "1"), (1, "a", "2"), (2, "a", "3")]


def test_records_without_a_key_go_where_the_policy_takes_none(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.append_many([b"1", b"2", b"3"], keys=[b"a", None, b"b"])
        log.roll()
        assert log.compact().keyless_dropped == 0
        assert [offset for offset, _, _ in pairs(log)] == [0, 1, 2]
    with opened(tmp_path / "log", cleanup_policy="compact") as log:
        assert log.compact(whole=True).keyless_dropped == 1
        assert [offset for offset, _, _ in pairs(log)] == [0, 2]


def test_a_tombstone_stays_until_its_horizon(tmp_path: Path) -> None:
    clock = ManualClock(TIME + DAY_MS)
    with opened(tmp_path / "log", clock=clock, delete_retention_ms=1000) as log:
        put(log, ("a", "1"), ("a", None), ("b", "1"))
        log.roll()
        assert log.compact().tombstones_kept == 1
        assert pairs(log) == [(1, "a", None), (2, "b", "1")]
        (batch, *_) = batches_in(tmp_path / "log")
        assert batch.delete_horizon_ms == clock.now_ms() + 1000
        assert [record[1] for record in batch.records] == [TIME, TIME]
        clock.advance(999)
        log.compact(whole=True)
        assert pairs(log) == [(1, "a", None), (2, "b", "1")]
        clock.advance(1)
        log.compact(whole=True)
        assert pairs(log) == [(2, "b", "1")]


def test_aborted_data_goes_and_its_marker_when_the_horizon_is_past(tmp_path: Path) -> None:
    clock = ManualClock(TIME + DAY_MS)
    path = tmp_path / "log"
    with opened(path, clock=clock, delete_retention_ms=1000) as log:
        put(log, ("a", "1"))
        log.append_batches(
            build_batch(
                [Record(1, TIME, key=b"a", value=b"aborted")],
                producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True,
            ),
            assign_offsets=False,
        )  # fmt: skip
        log.append_batches(marker(7, 2, commit=False), assign_offsets=False)
        put(log, ("b", "1"))
        log.roll()
        log.compact()
        assert pairs(log) == pairs(log, isolation_level="read_committed") == [(0, "a", "1"), (3, "b", "1")]
        # The producer's last data stays as an empty batch, for its sequence, so the marker must stay too.
        assert shape(path) == [(0, 1), (1, 0), (2, 1), (3, 1)]
        log.append_batches(
            build_batch([Record(4, TIME, key=b"c", value=b"1")], producer_id=7, producer_epoch=0, base_sequence=1),
            assign_offsets=False,
        )
        log.roll()
        log.compact()
        assert shape(path) == [(0, 1), (2, 1), (3, 1), (4, 1)]
        for passed_ms in (0, 999, 1):
            assert shape(path) == [(0, 1), (2, 1), (3, 1), (4, 1)]
            clock.advance(passed_ms)
            log.compact(whole=True)
        assert shape(path) == [(0, 1), (3, 1), (4, 1)]
        assert not list(path.glob("*.txnindex"))


def shape(path: Path) -> list[tuple[int, int]]:
    """The batches in the files: base offset and number of records."""
    return [(batch.base_offset, len(batch.records)) for batch in batches_in(path)]


def test_nothing_after_an_open_transaction_is_compacted(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        put(log, ("a", "1"), ("a", "2"))
        log.append_batches(transaction(7, 2), assign_offsets=False)
        put(log, ("a", "3"), ("a", "4"))
        log.roll()
        assert log.compact().stop_offset == 2
        assert [offset for offset, _, _ in pairs(log)] == [1, 2, 3, 4]


def test_a_segment_in_which_a_transaction_is_open_makes_no_log_due(tmp_path: Path) -> None:
    with opened(tmp_path / "log", min_cleanable_dirty_ratio=0) as log:
        put(log, ("a", "1"), ("a", "2"))
        log.append_batches(transaction(7, 2), assign_offsets=False)
        log.roll()
        assert not dirt_of(writer_of(log))[1]
        log.append_batches(marker(7, 3, commit=True), assign_offsets=False)
        assert dirt_of(writer_of(log))[1]


def test_young_records_wait(tmp_path: Path) -> None:
    clock = ManualClock(TIME + 100)
    with opened(tmp_path / "log", clock=clock, min_compaction_lag_ms=1000) as log:
        put(log, ("a", "1"), ("a", "2"))
        log.roll()
        log.compact()
        assert len(pairs(log)) == 2
        clock.advance(1000)
        log.compact()
        assert pairs(log) == [(1, "a", "2")]


@pytest.mark.parametrize("codec", CODECS)
def test_a_rewritten_batch_keeps_its_codec_and_what_the_header_says(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "log"
    records = [Record(at, TIME + at, key=b"k%d" % (at % 3), value=b"%d" % at * 50) for at in range(9)]
    with opened(path) as log:
        log.append_batches(
            build_batch(
                records, codec=codec, producer_id=3, producer_epoch=1, base_sequence=5, leader_epoch=4, last_offset=11
            ),
            assign_offsets=False,
        )
        log.roll()
        log.compact()
        (batch,) = list(log.fetch(0).batches())
        assert (batch.codec, batch.base_offset, batch.last_offset, batch.leader_epoch) == (codec, 0, 11, 4)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (3, 1, 5)
        assert [(one.offset, one.timestamp, one.key, one.value) for one in batch.records()] == [
            (one.offset, one.timestamp, one.key, one.value) for one in records[6:]
        ]
        assert batch.max_timestamp == TIME + 8


def test_a_batch_that_loses_nothing_is_copied_as_it_is(tmp_path: Path) -> None:
    data = build_batch([Record(at, TIME + at, key=b"%d" % at, value=b"x" * 100) for at in range(9)], codec="gzip")
    with opened(tmp_path / "log") as log:
        log.append_batches(data, assign_offsets=False)
        put(log, ("a", "1"), ("a", "2"))
        log.roll()
        log.compact()
        assert bytes(next(iter(log.fetch(0).batches())).data) == data


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_what_the_map_does_not_hold_waits_for_the_next_pass(tmp_path: Path) -> None:
    with opened(tmp_path / "log", segment_bytes=1024) as log:
        for number in range(40):
            put(log, *((f"key-{(number * 7 + at) % 50}", f"{number}") for at in range(5)))
        log.roll()
        values = latest(log)
        report = log.compact(map_bytes=24 * 20)
        assert report.map_full
        assert 0 < report.stop_offset < log.end_offset
        assert latest(log) == values
        for _ in range(40):
            last = log.compact(map_bytes=24 * 20)
            assert latest(log) == values
            if not last.map_full:
                break
        assert last.stop_offset == log.end_offset
        assert log.compact(whole=True, map_bytes=10**30).stop_offset == log.end_offset  # more than any memory
        assert len(pairs(log)) < 200


def test_what_lies_beyond_a_full_map_in_its_last_segment_stays_for_the_next_pass(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        for number in range(40):
            log.append_many([b"1", b"2"], keys=[b"%d" % number, None])
        log.roll()
        report = log.compact(keep_keyless=False, map_bytes=24 * 20)
        assert report.map_full
        kept = [record.offset for record in log.read() if record.key is None]
        assert kept == [offset for offset in range(1, 80, 2) if offset >= report.stop_offset]
        assert 0 < len(kept) < 40


def test_small_segments_become_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened(path, segment_bytes=2048) as log:
        for number in range(60):
            put(log, (f"key-{number % 4}", "v" * 30))
        before = len(segment_bases(path))
        log.roll()
        log.compact()  # joins segments that fit into one before they shrink
        report = log.compact(whole=True)
        assert before > 3
        assert segment_bases(path)[:-1] == [0]
        assert (report.segments_before, report.segments_after) == (before + 1, 2)
        assert log.offset_for_time(TIME) == pairs(log)[0][0]
        log.check()


def test_a_log_without_news_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        put(log, ("a", "1"))
        log.roll()
        log.compact()
        inode = (tmp_path / "log" / f"{0:020d}.log").stat().st_ino
        report = log.compact()
        assert report.first_dirty == report.stop_offset == 1
        assert (tmp_path / "log" / f"{0:020d}.log").stat().st_ino == inode


def test_how_far_it_got_is_remembered_and_lowered_by_a_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        put(log, ("a", "1"), ("b", "1"))
        put(log, ("c", "1"), ("d", "1"))
        log.roll()
        log.compact()
    with opened(path) as log:
        assert log.compact().first_dirty == 4
        log.truncate_to(2)
        put(log, ("a", "2"))
        put(log, ("a", "3"))
        log.roll()
        assert log.compact().first_dirty == 2
        assert pairs(log) == [(1, "b", "1"), (3, "a", "3")]


def test_it_is_done_when_due(tmp_path: Path) -> None:
    with opened(tmp_path / "log", min_cleanable_dirty_ratio=0.9) as log:
        put(log, ("a", "1"), ("a", "2"))
        log.roll()
        assert compact(writer_of(log), if_due=True).stop_offset == 2
        put(log, ("b", "1"))
        log.roll()
        report = compact(writer_of(log), if_due=True)
        assert report.first_dirty == report.stop_offset == 2


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_segment_with_damage_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        for number in range(3):
            put(log, ("a", f"{number}"), ("b", f"{number}"))
            put(log, (f"only-{number}", "1"))
            log.roll()
    edit(path / f"{3:020d}.log", lambda content: content.__setitem__(70, content[70] ^ 1))
    damaged = (path / f"{3:020d}.log").read_bytes()
    with opened(path) as log:
        report = log.compact()
        assert report.left == [3]
        assert [(lost.first, lost.last) for lost in report.corrupt] == [(3, 4)]
        assert isinstance(report.corrupt[0], CorruptRange)
        assert (path / f"{3:020d}.log").read_bytes() == damaged
        assert [offset for offset, _, _ in pairs(log, on_corrupt="skip")] == [2, 5, 6, 7, 8]


def test_no_tombstone_goes_after_a_segment_with_damage(tmp_path: Path) -> None:
    path = tmp_path / "log"
    clock = ManualClock(TIME + DAY_MS)
    with opened(path, clock=clock, delete_retention_ms=0) as log:
        put(log, ("a", "hidden"))
        put(log, ("b", "1"))
        log.roll()
        put(log, ("a", None))
        log.roll()
    edit(path / f"{0:020d}.log", lambda content: content.__setitem__(-1, content[-1] ^ 1))
    with opened(path, clock=clock, delete_retention_ms=0) as log:
        for _ in range(3):
            log.compact(whole=True)
            clock.advance(10)
        assert pairs(log, on_corrupt="skip") == [(0, "a", "hidden"), (2, "a", None)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("last_offset", "timestamp"),
    [pytest.param(RELATIVE_OFFSET_MAX + 1, TIME, id="far apart"), pytest.param(2, -7, id="before 1970")],
)
def test_messages_that_no_batch_of_version_2_can_hold_stay_with_all_that_hides_them(
    last_offset: int, timestamp: int, magic: int, tmp_path: Path
) -> None:
    kept = last_offset > 2 or (magic == 1 and timestamp < 0)
    messages = [
        oracle_legacy.message(offset, b"old", key, magic=magic, timestamp=timestamp)
        for offset, key in ((0, b"first"), (1, b"hidden"), (last_offset, b"last"))
    ]
    data = oracle_legacy.wrapper(messages, offset=last_offset, codec="gzip", magic=magic, timestamp=timestamp)
    path = tmp_path / "log"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(data)
    clock = ManualClock(TIME + DAY_MS)
    with opened(path, clock=clock, delete_retention_ms=0) as log:
        log.roll()
        put(log, ("hidden", None))
        put(log, ("hidden too", "1"), ("hidden too", "2"))
        log.roll()
        for _ in range(3):
            report = log.compact(whole=True)
            assert report.left == ([0] if kept else [])
            clock.advance(10)
        assert ((path / f"{0:020d}.log").read_bytes() == data) == kept
        found = {(key, value) for _, key, value in pairs(log)}
        assert found >= {("first", "old"), ("last", "old"), ("hidden too", "2")}
        assert (("hidden", None) in found) == (("hidden", "old") in found) == kept
        assert ("hidden too", "1") not in found


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"producer_id": 5}, id="no epoch"),
        pytest.param({"producer_id": 5, "producer_epoch": 3}, id="no sequence"),
        pytest.param({"attributes": ATTRIBUTE_TRANSACTIONAL}, id="no producer"),
    ],
)
def test_a_batch_with_fields_that_no_writer_sets_can_lose_all_of_its_records(
    fields: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.mkdir()
    data = tampered(build_batch([Record(0, TIME, value=b"without a key")]), **fields)
    (path / f"{0:020d}.log").write_bytes(data)
    with opened(path) as log:
        log.roll()
        put(log, ("a", "1"))
        report = log.compact(whole=True, keep_keyless=False)
        assert (report.stopped, report.left, report.corrupt, report.keyless_dropped) == ("", [], [], 1)
        assert pairs(log) == [(1, "a", "1")]
    first = (path / f"{0:020d}.log").read_bytes()
    # All but the size, the CRC and the times.
    kept = BatchHeader._make(BATCH_HEADER.unpack(first))._replace(batch_length=0, crc=0, base_timestamp=0)
    before = BatchHeader._make(BATCH_HEADER.unpack_from(data))._replace(batch_length=0, crc=0, base_timestamp=0)
    assert kept == before._replace(record_count=0)


# --- beside it --------------------------------------------------------------------------------------------------------


def between(log: Log, action: Callable[[], object]) -> None:
    """Does ``action`` once, during the next compaction, just before a swap."""
    writer = writer_of(log)
    swap = writer.swap

    def swapping(*arguments: Any) -> str:
        writer.swap = swap  # type: ignore[method-assign]
        action()
        return swap(*arguments)

    writer.swap = swapping  # type: ignore[assignment, method-assign]


def test_appends_go_on_meanwhile(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        between(log, lambda: put(log, ("key-1", "new")))
        assert not log.compact().stopped
        assert pairs(log)[-1] == (120, "key-1", "new")
        assert log.end_offset == 121


@pytest.mark.parametrize("at", [0, 3, 119], ids=["all", "most", "the-end"])
def test_a_truncation_ends_it(tmp_path: Path, at: int) -> None:
    path = tmp_path / "log"
    with filled(path) as log:
        between(log, lambda: log.truncate_to(at))
        report = log.compact()
        assert report.stopped == "segments were truncated or deleted" or at == 119
        assert log.end_offset == at
        assert not [name for name in path.iterdir() if name.suffix in (".cleaned", ".swap")]
        log.check()
        put(log, ("a", "1"))
        assert log.read(at).__next__().key == b"a"


@pytest.mark.parametrize("at", [1, 60, 120], ids=["nothing", "half", "all"])
def test_a_deletion_is_passed_over(tmp_path: Path, at: int) -> None:
    path = tmp_path / "log"
    with filled(path) as log:
        values = {record.key: record.value for record in log.read(at)}
        between(log, lambda: log.delete_records(at))
        report = log.compact()
        assert (report.stopped, report.stop_offset) == ("", 120)
        assert log.start_offset == at
        assert {record.key: record.value for record in log.read(at)} == values
        assert not [name for name in path.iterdir() if name.suffix in (".cleaned", ".swap")]
        log.check()
        assert log.verify().clean
        assert log.compact().stop_offset == 120


def test_a_deletion_while_the_keys_are_read_is_passed_over(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        writer = writer_of(log)
        cleanable = writer.cleanable

        def deleting(**options: Any) -> Any:
            start = cleanable(**options)
            writer.cleanable = cleanable  # type: ignore[method-assign]
            log.delete_records(60)
            return start

        writer.cleanable = deleting  # type: ignore[method-assign]
        report = log.compact()
        assert (report.stopped, report.stop_offset) == ("", 120)
        log.check()


def test_a_segment_is_rewritten_though_an_empty_batch_that_stays_follows_what_goes(tmp_path: Path) -> None:
    """An empty batch that stays does not show whether earlier ones were removed."""
    path = tmp_path / "log"
    # Each segment is its own group: segments that join are always rewritten.
    with opened(path, segment_bytes=1024) as log:
        filler = "." * 600
        put(log, ("a", "1"), ("kept", filler))
        put(log, ("b", "1"))
        records = [Record(3, TIME, key=b"b", value=b"2")]
        batch = build_batch(records, producer_id=1, producer_epoch=0, base_sequence=0)
        log.append_batches(batch, assign_offsets=False)
        log.roll()
        put(log, ("b", "3"), ("kept too", filler))
        log.roll()
        log.compact()
        assert shape(path) == [(0, 2), (3, 0), (4, 2)]
        put(log, ("a", "2"), ("kept", filler))
        log.roll()
        log.compact()
        assert segment_bases(path) == [0, 4, 6, 8]
        assert shape(path) == [(3, 0), (4, 2), (6, 2)]


def test_readers_go_on_with_what_they_read(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        reader = log.read()
        first = [next(reader).offset for _ in range(5)]
        log.compact()
        rest = [record.offset for record in reader]
        assert first == list(range(5))
        # What it had not reached by then may be compacted, but not lost.
        assert rest == sorted(set(rest))
        assert set(rest) >= {offset for offset, _, _ in pairs(log)}


def test_a_read_only_or_closed_log_cannot_compact(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        pass
    with pytest.raises(ClosedError):
        log.compact()
    with Log(tmp_path / "log", read_only=True) as view, pytest.raises(ReadOnlyError):
        view.compact()
