"""Compaction's decisions, as functions of values; and the map of keys."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kstore.config import LogConfig
from kstore.errors import CorruptRecordError
from kstore.record._codec import Record
from kstore.record._compact import OffsetMap, siphash128
from kstore.record._runs import Run, walk_run
from kstore.record.batch import RecordBatch, parse_v2
from kstore.record.builder import build_batch
from kstore.rules.compact import (
    BatchVerdict,
    CleanedTransactions,
    Dirt,
    LastRecord,
    SegmentFacts,
    batch_verdict,
    first_uncleanable,
    group_segments,
    is_due,
    keeps_empty,
    measure_dirt,
    start_of_dirt,
)
from kstore.types import OFFSET_MAX, AbortedTransaction
from tests.support.harness.cpu_limit import cpu_limit
from tests.support.lives.log_cases import marker, transaction
from tests.support.lives.log_helpers import TIME
from tests.support.lives.run_helpers import small_batch

if TYPE_CHECKING:
    from kstore.record._compact import BlockBatch

SEGMENTS = [
    SegmentFacts(0, 10, 100, first_timestamp=1000, largest_timestamp=2000),
    SegmentFacts(10, 20, 200, first_timestamp=3000, largest_timestamp=4000),
    SegmentFacts(20, 30, 300, first_timestamp=5000, largest_timestamp=6000),
]


def stops(first_dirty: int = 0, *, stable: int = 40, durable: int = 40, lag_ms: int = 0, now_ms: int = 7000) -> int:
    return first_uncleanable(
        SEGMENTS, first_dirty, stable_offset=stable, durable_offset=durable, min_lag_ms=lag_ms, now_ms=now_ms
    )


# --- when -------------------------------------------------------------------------------------------------------------


def test_the_active_segment_is_where_cleaning_stops() -> None:
    assert stops() == 30


def test_open_transactions_and_what_is_not_on_disk_stop_it_before() -> None:
    assert stops(stable=17) == 17
    assert stops(durable=25) == 25


def test_young_segments_stop_it_and_a_dirty_one_counts_only() -> None:
    assert stops(lag_ms=1000, now_ms=7000) == 30
    assert stops(lag_ms=1001, now_ms=7000) == 20
    assert stops(lag_ms=100_000, now_ms=7000) == 0
    assert stops(10, lag_ms=100_000, now_ms=7000) == 10


def test_nothing_is_uncleanable_below_what_is_clean() -> None:
    assert stops(20, stable=5) == 20


@pytest.mark.parametrize(
    ("remembered", "wanted"),
    [(None, 5), (4, 5), (5, 5), (17, 17), (30, 30), (31, 5)],
    ids=["nothing", "below-the-start", "the-start", "within", "the-end", "behind-the-end"],
)
def test_a_first_dirty_offset_outside_of_the_log_is_not_believed(remembered: int | None, wanted: int) -> None:
    assert start_of_dirt(remembered, start_offset=5, end_offset=30) == wanted


def test_dirt_is_counted_by_whole_segments() -> None:
    assert measure_dirt(SEGMENTS, 10, 30) == Dirt(100, 500, 3000)
    assert measure_dirt(SEGMENTS, 15, 20) == Dirt(100, 200, 3000)
    assert measure_dirt(SEGMENTS, 30, 30) == Dirt(600, 0, -1)
    assert measure_dirt(SEGMENTS, 0, 17) == Dirt(0, 100, 1000)
    assert measure_dirt(SEGMENTS, 17, 17) == Dirt(100, 0, -1)


def test_a_log_is_due_by_its_share_of_dirt_or_by_its_age() -> None:
    config = LogConfig(min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=1000)
    assert not is_due(Dirt(500, 500, -1), config, 10_000)
    assert is_due(Dirt(499, 501, -1), config, 10_000)
    assert not is_due(Dirt(900, 100, 9000), config, 10_000)
    assert is_due(Dirt(900, 100, 8999), config, 10_000)
    assert not is_due(Dirt(900, 100, 20_000), config, 10_000), "from the future"
    assert not is_due(Dirt(0, 0, 1), config, 10_000)
    assert Dirt(0, 0, -1).ratio == 0


# --- groups -----------------------------------------------------------------------------------------------------------


def bases(groups: list[list[SegmentFacts]]) -> list[list[int]]:
    return [[segment.base_offset for segment in group] for group in groups]


def grouped(segments: list[SegmentFacts], segment_bytes: int = 300, index_bytes: int = 1000) -> list[list[int]]:
    return bases(group_segments(segments, segment_bytes=segment_bytes, segment_index_bytes=index_bytes))


def test_segments_join_while_their_files_fit_into_one() -> None:
    assert grouped(SEGMENTS) == [[0, 10], [20]]
    assert grouped(SEGMENTS, 600) == [[0, 10, 20]]
    assert grouped(SEGMENTS, 1) == [[0], [10], [20]]
    assert grouped([]) == []


@pytest.mark.parametrize("index", ["index_size", "time_index_size"])
def test_indexes_bound_a_group_too(index: str) -> None:
    segments = [segment._replace(**{index: 400}) for segment in SEGMENTS]
    assert grouped(segments, 10_000) == [[0, 10], [20]]


def test_a_group_spans_what_an_index_can_hold_and_empty_segments_always_join() -> None:
    far = 2**31
    sparse = [SegmentFacts(0, 10, 100), SegmentFacts(far - 10, far, 100), SegmentFacts(far, far + 10, 100)]
    assert grouped(sparse, 1000) == [[0, far - 10], [far]]
    assert grouped([SegmentFacts(0, 10, 100), SegmentFacts(far, far + 10, 0)], 1000) == [[0, far]]


# --- batches ----------------------------------------------------------------------------------------------------------


def parsed(data: bytes) -> RecordBatch:
    return parse_v2(data)


def verdict(data: bytes, discardable: bool, *, expire: bool = True) -> BatchVerdict:
    return batch_verdict(parsed(data), discardable=discardable, deletes_expire=expire, now_ms=1000)


def expiring_marker(horizon_ms: int | None) -> bytes:
    key, value = b"\0\0\0\0", bytes(6)
    return build_batch(
        [Record(9, TIME, key=key, value=value)],
        producer_id=7,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
        delete_horizon_ms=horizon_ms,
    )


def test_aborted_data_goes_at_once_and_other_data_is_chosen_from() -> None:
    assert verdict(transaction(7, 1), True) == BatchVerdict.DROP
    assert verdict(transaction(7, 1), False) == BatchVerdict.CHOOSE


def test_a_marker_goes_when_its_data_has_and_its_horizon_is_past() -> None:
    assert verdict(expiring_marker(None), True) == BatchVerdict.KEEP
    assert verdict(expiring_marker(1001), True) == BatchVerdict.KEEP
    assert verdict(expiring_marker(1000), True) == BatchVerdict.DROP
    assert verdict(expiring_marker(1000), False) == BatchVerdict.KEEP
    assert verdict(expiring_marker(1000), True, expire=False) == BatchVerdict.KEEP


def test_the_last_batch_of_a_live_producer_or_of_the_pass_stays_empty() -> None:
    data, end = parsed(transaction(7, 4, 5)), parsed(marker(7, 6, commit=True))
    assert keeps_empty(data, {7: LastRecord(5, 0)}, 100)
    assert not keeps_empty(data, {7: LastRecord(9, 0)}, 100)
    assert not keeps_empty(data, {}, 100)
    assert keeps_empty(data, {}, 6)
    assert keeps_empty(end, {7: LastRecord(-1, 0)}, 100)
    assert not keeps_empty(end, {7: LastRecord(-1, 1)}, 100)
    assert not keeps_empty(data, {7: LastRecord(-1, 0)}, 100)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_aborted_data_is_told_from_committed_until_its_marker() -> None:
    aborted = AbortedTransaction(7, 2, 6, 7)
    transactions = CleanedTransactions([aborted])
    seen = [
        transactions.is_discardable(parsed(data))
        for data in (
            transaction(7, 0), marker(7, 1, commit=True), transaction(7, 2), transaction(8, 3), transaction(7, 4),
            marker(8, 5, commit=True), marker(7, 6, commit=False), transaction(7, 7),
        )
    ]  # fmt: skip
    assert seen == [False, False, True, False, True, False, False, False]
    assert transactions.take_kept() == [aborted]
    assert transactions.take_kept() == []


def test_a_marker_without_data_may_go_whatever_it_says() -> None:
    transactions = CleanedTransactions([AbortedTransaction(7, 2, 6, 7)])
    assert transactions.is_discardable(parsed(marker(8, 5, commit=True)))
    assert transactions.is_discardable(parsed(marker(7, 6, commit=False)))
    assert transactions.kept == []


def test_a_copy_goes_its_own_way() -> None:
    transactions = CleanedTransactions([AbortedTransaction(7, 2, 6, 7)])
    before = transactions.copy()
    assert transactions.is_discardable(parsed(transaction(7, 2)))
    assert not transactions.is_discardable(parsed(marker(7, 6, commit=False)))
    assert before.is_discardable(parsed(marker(7, 6, commit=False))), "it has met no data"


def test_the_next_marker_of_a_transaction_that_was_open_before_stays_and_no_later_one() -> None:
    transactions = CleanedTransactions([], frozenset({7, 8}))
    before = transactions.copy()
    ends = [parsed(marker(7, offset, commit=offset == 2)) for offset in (1, 2)]
    assert [transactions.is_discardable(each) for each in ends] == [False, True]
    assert [transactions.copy().is_discardable(each) for each in ends] == [True, True]
    assert [before.is_discardable(each) for each in ends] == [False, True]
    assert not transactions.is_discardable(parsed(marker(8, 3, commit=True)))


def test_many_transactions_that_were_open_before_do_not_make_a_pass_slow() -> None:
    count = 40_000
    transactions = CleanedTransactions([], frozenset(range(count)))
    ends = [parsed(marker(one, one, commit=False)) for one in range(count)]
    with cpu_limit(3):
        assert not any(transactions.is_discardable(each) for each in ends)


# --- the map ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_the_hash_is_siphash_with_128_bits(size: int, wanted: str) -> None:
    """The vectors of the authors' reference implementation."""
    assert siphash128(bytes(range(size)), bytes(range(16))).hex() == wanted


def test_the_map_agrees_with_a_dict_to_the_last_slot(seed: int) -> None:
    generator = random.Random(seed)
    offsets = OffsetMap(24 * 1000)
    known: dict[bytes, int] = {}
    refused = set()
    for offset in range(5000):
        key = generator.randbytes(generator.randrange(40))
        if generator.random() < 0.5 and known:
            key = generator.choice(list(known))
        if offsets.put(key, offset):
            known[key] = offset
        else:
            refused.add(key)
    assert len(offsets) == len(known) == offsets.capacity == 800
    assert all(offsets.get(key) == offset for key, offset in known.items())
    assert {offsets.get(key) for key in refused} == {-1}


def test_a_map_takes_no_more_memory_than_its_keys_need() -> None:
    assert OffsetMap(128 << 20, 10).slot_count == 13
    assert OffsetMap(128 << 20, 10).capacity >= 10
    assert OffsetMap(0).capacity == 1


def test_a_map_grows_with_its_keys_and_keeps_them() -> None:
    offsets = OffsetMap(24 * 300_000)
    keys = [b"%d" % number for number in range(240_001)]
    assert [offsets.put(key, number) for number, key in enumerate(keys)] == [True] * 240_000 + [False]
    assert len(offsets) == offsets.capacity == 240_000
    assert [offsets.get(key) for key in keys] == [*range(240_000), -1]


def test_an_earlier_offset_never_takes_the_place_of_a_later_one() -> None:
    offsets = OffsetMap(1000)
    assert offsets.put(b"a", 7)
    assert offsets.put(b"a", 3)
    assert offsets.get(b"a") == 7


def block_batch(data: bytes, flags: int = 0, **changed: int) -> tuple[memoryview, int, int, int, int, int, int]:
    batch = parsed(data)
    header = batch.header._replace(**changed)
    return (
        batch.data[61:], header.record_count, header.base_offset, header.last_offset_delta, header.base_timestamp,
        header.max_timestamp, flags,
    )  # fmt: skip


def test_nothing_of_a_batch_that_cannot_be_read_gets_into_the_map() -> None:
    records = [Record(at, TIME, key=b"k%d" % at, value=b"v") for at in range(4)]
    data = bytearray(build_batch(records))
    data[-1] = 9  # the last record's header count
    offsets = OffsetMap(10_000)
    sound = build_batch([Record(10, TIME, key=b"k9", value=b"v")])
    assert offsets.put_block([block_batch(bytes(data)), block_batch(sound)], 0) == (-1, [0])
    assert [offsets.get(b"k%d" % at) for at in range(4)] == [-1] * 4
    assert offsets.get(b"k9") == 10
    (broken, kept), _ = offsets.filter_block([block_batch(bytes(data)), block_batch(sound)], 100, 0)
    assert "headers" in broken.damage
    assert (kept.damage, kept.kept_count) == ("", 1)


@pytest.mark.parametrize("count", [-1, 0, 3, 5, 2**31 - 1])
def test_a_count_that_is_not_that_of_the_records_is_damage(count: int) -> None:
    data = build_batch([Record(at, TIME, key=b"k", value=b"v") for at in range(4)])
    (result,), _ = OffsetMap(100).filter_block([block_batch(data, record_count=count)], 100, 0)
    assert result.damage


@pytest.mark.promise("hostile file")
def test_no_bytes_are_read_beyond_those_of_a_batch(seed: int) -> None:
    generator = random.Random(seed)
    sound = build_batch(
        [Record(at, TIME + at, key=b"k%d" % (at % 3), value=b"v" * at, headers=(("h", b"1"),)) for at in range(9)]
    )
    for _ in range(3000):
        data = bytearray(sound)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(61, len(data))] = generator.randrange(256)
        offsets = OffsetMap(1000)
        offsets.put_block([block_batch(bytes(data))], 0)
        (result,), output = offsets.filter_block([block_batch(bytes(data))], 100, TIME)
        assert 0 <= result.start <= result.stop <= len(output)


# --- runs -------------------------------------------------------------------------------------------------------------


def keyed_batches(generator: random.Random) -> bytes:
    """Batches over few keys: some records have no key or no value, some batches a horizon, some offsets are missing."""
    offset, found = 0, b""
    for _ in range(generator.randrange(1, 8)):
        offset += generator.choice((0, 0, 0, 3))
        records = []
        for _ in range(generator.randrange(1, 40)):
            key = generator.choice((None, b"", b"k%d" % generator.randrange(30), b"k%d" % generator.randrange(5000)))
            value = None if generator.random() < 0.05 else b"v"
            records.append(Record(offset, TIME, key=key, value=value))
            offset += 1
        found += build_batch(records, delete_horizon_ms=generator.choice((None, None, TIME - 5, TIME + 5)))
    return found


def run_of(data: bytes) -> Run:
    run = walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, OFFSET_MAX)
    assert (run.stop, run.reason) == (len(data), "end")
    return run


def test_a_run_enters_the_map_as_its_batches_do(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(300):
        run = run_of(keyed_batches(generator))
        batches = [batch for _, batch in run.batches()]
        start, stop = (generator.randrange(run.next_offset + 2) for _ in range(2))
        memory = generator.choice((24 * 20, 24 * 1000))
        one, other = OffsetMap(memory), OffsetMap(memory)
        blocks: list[BlockBatch] = []
        for batch in batches:
            if batch.last_offset >= stop:
                break
            blocks.append(block_batch(bytes(batch.data)))
        refused, _ = other.put_block(blocks, start)
        assert one.put_run(run.data, run.start, run.stop, start, stop) == refused
        keys = {record.key for batch in batches for record in batch.records() if record.key is not None}
        assert {key: one.get(key) for key in keys} == {key: other.get(key) for key in keys}


def test_a_run_is_kept_if_nothing_of_its_batches_changes(seed: int) -> None:
    generator = random.Random(seed)
    outcomes = set()
    for _ in range(600):
        run = run_of(keyed_batches(generator))
        batches = [batch for _, batch in run.batches()]
        offsets = OffsetMap(24 * 1000)
        for batch in batches:
            for record in batch.records():
                if record.key is not None and (generator.random() < 0.5 or record.key == b"k1"):
                    offsets.put(record.key, record.offset if generator.random() < 0.999 else record.offset + 100)
        if generator.random() < 0.5:
            # Without older versions of the keys more runs stay whole.
            records = {record.key: record for batch in batches for record in batch.records() if record.value}
            if not records:
                continue
            kept = sorted(records.values(), key=lambda record: record.offset)
            run = run_of(build_batch(kept, base_offset=0, delete_horizon_ms=None))
            batches = [batch for _, batch in run.batches()]
        last, drops = generator.randrange(-1, run.next_offset + 2), generator.choice((0, 2))
        keyless = generator.choice((0, 32))
        blocks: list[BlockBatch] = []
        for batch in batches:
            horizon = batch.delete_horizon_ms
            flags = keyless | (4 if horizon is not None else 0) | (drops if (horizon or TIME + 1) <= TIME else 0)
            blocks.append(block_batch(bytes(batch.data), flags))
        results, _ = offsets.filter_block(blocks, last, TIME + 50)
        stays = all(result.kept_count == result.record_count and not result.rewritten for result in results)
        expected = sum(result.tombstone_count for result in results) if stays else -1
        assert offsets.keeps_run(run.data, run.start, run.stop, last, TIME, keyless | drops) == expected
        outcomes.add(min(expected, 1))
    assert outcomes == {-1, 0, 1}


def test_a_run_with_markers_is_not_kept_as_it_is_and_its_markers_are_no_keys() -> None:
    data = small_batch(0, 2) + marker(5, 2, commit=True)
    offsets = OffsetMap(1000)
    assert offsets.keeps_run(data, 0, len(data), 100, TIME, 32) == -1
    assert offsets.put_run(data, 0, len(data), 0, 100) == -1
    assert offsets.get(parsed_key(data[len(small_batch(0, 2)) :])) == -1


def parsed_key(data: bytes) -> bytes:
    (record,) = parsed(data).records()
    assert record.key is not None
    return record.key


@pytest.mark.promise("hostile file")
def test_bytes_that_are_no_run_are_refused(seed: int) -> None:
    generator = random.Random(seed)
    sound = keyed_batches(generator) + build_batch([Record(10_000, TIME, key=b"k", value=bytes(50))])
    packed = build_batch([Record(0, TIME, key=b"k", value=bytes(50))], codec="zstd")
    refused = 0
    for number in range(3000):
        data = bytearray(packed if number == 0 else sound)
        for _ in range(generator.randrange(1, 4) if number else 0):
            data[generator.randrange(len(data))] = generator.randrange(256)
        cut = generator.randrange(len(data)) if number % 3 == 1 else len(data)
        try:
            OffsetMap(1000).put_run(bytes(data), 0, cut, 0, OFFSET_MAX)
            OffsetMap(1000).keeps_run(bytes(data), 0, cut, -1, TIME, 34)
        except CorruptRecordError:
            refused += 1
    assert refused > 1000
    for start, stop in ((-1, 3), (3, 2), (0, len(sound) + 1)):
        with pytest.raises(ValueError, match="expected some of"):
            OffsetMap(10).put_run(sound, start, stop, 0, 1)
        with pytest.raises(ValueError, match="expected some of"):
            OffsetMap(10).keeps_run(sound, start, stop, 0, 0, 0)
