"""Runs: what a compiled run holds, why it ends, and its records."""

from __future__ import annotations

import random
import threading
from array import array
from typing import Any

import crc32c
import pytest

from kstore.engine.read.reader import Aborted
from kstore.record._runs import Run, checksum, walk_run
from kstore.record.batch import ATTRIBUTE_LOG_APPEND_TIME
from kstore.types import OFFSET_MAX, AbortedTransaction
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.run_helpers import small_batch, tally
from tests.support.oracles.oracle_legacy import message

SIZE_MAX = 1 << 40


def run_of(data: bytes, start: int = 0, **given: int) -> Run:
    asked = {"next_offset": 0, "offset_stop": OFFSET_MAX, "base_stop": OFFSET_MAX, "known_end": 0, "size_max": SIZE_MAX}
    asked |= given
    return walk_run(
        data,
        start,
        asked.get("size_left", len(data) - start),
        asked.get("position", 0),
        asked["next_offset"],
        asked["size_max"],
        asked["offset_stop"],
        asked["known_end"],
        asked["base_stop"],
        bool(asked.get("with_compressed", False)),
    )


# --- what a run is ----------------------------------------------------------------------------------------------------


def test_a_run_holds_whole_batches_in_order() -> None:
    data = small_batch(0, 3) + small_batch(3, 1) + small_batch(4, 2)
    run = run_of(data)
    assert (run.base_offset, run.next_offset, run.batch_count, run.stop) == (0, 6, 3, len(data))
    assert (run.reason, run.has_gap, run.record_count) == ("end", False, 6)


def test_a_run_tells_its_batches_with_their_positions() -> None:
    first, second = small_batch(0, 3), small_batch(3, 1)
    run = run_of(first + second, position=100)
    assert [(position, one.base_offset) for position, one in run.batches()] == [(100, 0), (100 + len(first), 3)]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (small_batch(2)[:-1], "cut"),
        (small_batch(2)[:60], "cut"),
        (small_batch(2, codec="gzip"), "codec"),
        (message(2, b"x" * 40, magic=1), "format"),
        (small_batch(1), "offsets"),
        (tampered(small_batch(2), base_offset=9), "stop"),
        (tampered(small_batch(2), base_offset=-1), "header"),
        (tampered(small_batch(2), record_count=9), "header"),
        (small_batch(2)[:-1] + b"!", "crc"),
        (small_batch(2, 30, 200)[:-1] + b"!", "crc"),
        (tampered(small_batch(2), record_count=1), "records"),
        (tampered(small_batch(2, is_control=True, producer_id=1, producer_epoch=0), record_count=1), "records"),
        (b"\0" * 100, "format"),
    ],
    ids=[
        "a cut batch", "a cut header", "compressed", "old", "a lower offset", "the stop", "a negative offset",
        "too many records", "a wrong crc", "a wrong crc of a large batch", "records that do not fit",
        "a damaged marker", "zeros",
    ],
)  # fmt: skip
def test_a_run_ends_before_what_needs_a_decision(last: bytes, reason: str) -> None:
    first = small_batch(0)
    run = run_of(first + last, base_stop=9)
    assert (run.reason, run.stop, run.next_offset, run.batch_count) == (reason, len(first), 2, 1)


def test_a_run_ends_with_the_batch_that_reaches_its_size() -> None:
    one = small_batch(0)
    run = run_of(one + small_batch(2) + small_batch(4), size_max=len(one) + 1)
    assert (run.reason, run.batch_count) == ("limit", 2)


def test_a_gap_is_part_of_a_run_where_the_next_batch_agrees() -> None:
    run = run_of(small_batch(0) + small_batch(7) + small_batch(20))
    assert (run.batch_count, run.next_offset, run.has_gap) == (3, 22, True)


def test_a_batch_after_a_gap_that_its_successor_denies_is_left_to_the_walk() -> None:
    first = small_batch(0)
    run = run_of(first + tampered(small_batch(2), base_offset=10) + small_batch(4))
    assert (run.reason, run.stop) == ("offsets", len(first))


@pytest.mark.parametrize("asked", [{"known_end": 5}, {}], ids=["across a known end", "beyond a segment"])
def test_a_gap_that_only_another_batch_confirms_is_left_to_the_walk(asked: dict[str, int]) -> None:
    first = small_batch(0)
    run = run_of(first + small_batch(4 if asked else 2**31 + 2) + small_batch(2**32), **asked)
    assert (run.reason, run.stop) == ("gap", len(first))


def test_a_gap_at_the_end_of_the_data_is_left_to_the_walk() -> None:
    first, second = small_batch(0), small_batch(5)
    assert run_of(first + second, size_left=1000).reason == "gap"
    assert run_of(first + second).reason == "end"


@pytest.mark.parametrize("size", [3, 6000])
def test_a_run_of_compressed_batches_holds_no_others(size: int) -> None:
    compressed = small_batch(0, 30, size, codec="lz4") + small_batch(30, 2, size, codec="gzip")
    plain = small_batch(32, 2, 3) + small_batch(34)
    data = compressed + plain + small_batch(36, 2, codec="zstd")
    first = run_of(data, with_compressed=True)
    assert (first.is_compressed, first.batch_count, first.stop, first.reason) == (True, 2, len(compressed), "codec")
    second = run_of(data, first.stop, next_offset=32, with_compressed=True)
    assert (second.is_compressed, second.batch_count, second.reason) == (False, 2, "codec")
    assert run_of(data).batch_count == 0
    damaged = bytearray(data)
    damaged[len(compressed) - 1] ^= 1
    assert (run_of(bytes(damaged), with_compressed=True).batch_count) == 1


def test_a_run_of_compressed_batches_has_no_records_of_its_own() -> None:
    run = run_of(small_batch(0, 5, codec="lz4"), with_compressed=True)
    for decode in (run.records, run.values):
        with pytest.raises(ValueError, match="compressed"):
            decode(0, 5, tally())
    assert [record.offset for _, batch in run.batches() for record in batch.records()] == list(range(5))


def test_an_end_in_the_middle_of_a_batch_is_no_part_of_a_run() -> None:
    run = run_of(small_batch(0) + small_batch(2), offset_stop=3)
    assert (run.reason, run.next_offset) == ("offsets", 2)


def test_large_runs_of_large_batches_are_checked_without_the_interpreters_lock() -> None:
    many = [small_batch(number * 200, 200, 100) for number in range(64)]
    data = b"".join(many)
    assert len(data) > 1 << 20
    assert run_of(data).batch_count == 64
    damaged = bytearray(data)
    damaged[sum(map(len, many[:40])) + 300] ^= 1
    run = run_of(bytes(damaged))
    assert (run.reason, run.batch_count, run.next_offset) == ("crc", 40, 8000)


def test_a_run_of_more_large_batches_than_are_noted_goes_on_in_another_run() -> None:
    data = b"".join(small_batch(number * 40, 40, 120) for number in range(70))
    run = run_of(data)
    assert (run.reason, run.batch_count) == ("limit", 64)
    assert run_of(data, run.stop, next_offset=run.next_offset).batch_count == 6


@pytest.mark.parametrize("start", [-1, 1000])
def test_a_start_outside_the_data_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match="start"):
        run_of(small_batch(0), start)


def test_only_bytes_are_walked() -> None:
    with pytest.raises(TypeError):
        walk_run(bytearray(small_batch(0)), 0, 100, 0, 0, 100, OFFSET_MAX, 0, OFFSET_MAX)  # type: ignore[arg-type]


# --- the checksum -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_table", [False, True])
def test_the_checksum_is_that_of_the_package(by_table: bool, seed: int) -> None:
    generator = random.Random(seed)
    # Lanes of 64, 320, 1,344 and 5,120 bytes, three at a time.
    lanes = [3 * each + more for each in (64, 320, 1344, 5120) for more in range(-9, 10)]
    for size in [*range(80), *lanes, *range(950, 1_170), 4095, 4096, 15_360 + 4_032 + 960 + 192 + 9, 100_001]:
        data = generator.randbytes(size + 3)
        for start in range(3):
            view = memoryview(data)[start : start + size]
            assert checksum(view, by_table) == crc32c.crc32c(view)


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_window_of_offsets() -> None:
    data = small_batch(0, 3) + small_batch(3, 1) + small_batch(6, 4)
    run = run_of(data)
    for first in range(12):
        for stop in range(12):
            expected = [one for _, each in run.batches() for one in each.records() if first <= one.offset < stop]
            assert list(run.records(first, stop, tally())) == expected
            assert list(run.values(first, stop, tally())) == [one.value for one in expected]


def test_the_next_offset_is_known_after_each_record() -> None:
    run = run_of(small_batch(0, 2) + small_batch(5, 2))
    for cursor in (run.records(1, 6, tally()), run.values(1, 6, tally())):
        assert (cursor.next_offset, cursor.has_more) == (1, True)
        assert [cursor.next_offset for _ in cursor] == [2, 6]
        assert (cursor.next_offset, cursor.has_more) == (6, False)


def test_a_cursor_that_was_ended_gives_nothing_more() -> None:
    cursor = run_of(small_batch(0, 5)).records(0, 5, tally())
    next(cursor)
    cursor.end()
    assert (list(cursor), cursor.next_offset, cursor.has_more) == ([], 1, False)


def test_batches_are_counted_as_they_are_reached() -> None:
    data = [small_batch(0, 3), small_batch(3, 2), small_batch(5, 2)]
    counts = tally()
    cursor = run_of(b"".join(data)).records(1, 6, counts)
    assert list(counts) == [0, 0, 0]
    for expected in (1, 1, 2, 2, 3):
        next(cursor)
        assert counts[0] == expected
    assert list(counts) == [3, 5, sum(map(len, data))]


def test_control_batches_are_passed_over() -> None:
    data = (
        small_batch(0)
        + small_batch(2, 1, is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
        + small_batch(3)
    )
    run = run_of(data)
    assert run.batch_count == 3
    assert [one.offset for one in run.records(0, 9, tally())] == [0, 1, 3, 4]


def test_batches_of_aborted_transactions_are_left_out(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(100):
        data, offset = b"", 0
        for _ in range(12):
            producer = generator.choice([-1, 3, 4, 5])
            owned: dict[str, Any] = (
                {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0} if producer >= 0 else {}
            )
            data += small_batch(offset, 2, is_transactional=producer >= 0 and generator.random() < 0.8, **owned)
            offset += 2
        aborted = Aborted(
            [
                AbortedTransaction(generator.choice([3, 4, 9]), first, first + generator.randrange(8), 0)
                for first in generator.choices(range(offset), k=generator.randrange(6))
            ]
        )
        run = run_of(data)
        expected = [one for _, each in run.batches() if not aborted.holds(each) for one in each.records()]
        assert list(run.records(0, offset, tally(), aborted.rows)) == expected


@pytest.mark.parametrize("counts", [array("q", [0]), array("i", [0, 0, 0])])
def test_a_tally_of_another_shape_is_refused(counts: array[int]) -> None:
    with pytest.raises(ValueError, match="tally"):
        run_of(small_batch(0)).records(0, 9, counts)


def test_timestamps_and_epochs_are_those_of_the_small_batch() -> None:
    changed = tampered(small_batch(0, 2), leader_epoch=7, attributes=ATTRIBUTE_LOG_APPEND_TIME, max_timestamp=5)
    found = list(run_of(changed).records(0, 9, tally()))
    assert [(one.timestamp, one.timestamp_type, one.leader_epoch) for one in found] == [(5, "LogAppendTime", 7)] * 2


def test_walks_in_many_threads() -> None:
    data = b"".join(small_batch(number * 3, 3) for number in range(12_000))
    assert len(data) > 1 << 20
    found: list[Run] = []
    threads = [threading.Thread(target=lambda: found.append(run_of(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.next_offset for run in found] == [36_000] * 4
