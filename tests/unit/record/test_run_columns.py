"""A run gives the same columns and counts as its batches one by one."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from kstore.engine.read.reader import Aborted
from kstore.errors import CorruptRecordError
from kstore.record._columns import ColumnBuilder
from kstore.record._runs import walk_run
from kstore.record.batch import ATTRIBUTE_LOG_APPEND_TIME, parse_v2
from kstore.record.columns import ArrowDecoder, ColumnOptions
from kstore.types import OFFSET_MAX, AbortedTransaction
from tests.support.harness.selection import tries
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.run_helpers import small_batch, tally

pa = pytest.importorskip("pyarrow")

RUNS = tries(400, quick=60)


def written(generator: random.Random) -> tuple[bytes, int]:
    parts, offset = [], 0
    for _ in range(generator.randrange(1, 25)):
        count = generator.choice([1, 1, 2, 9])
        offset += generator.choice([0, 0, 0, 4])
        producer = generator.choice([-1, 3, 4])
        owned: dict[str, Any] = {}
        if producer >= 0:
            owned = {"producer_id": producer, "producer_epoch": 0, "is_transactional": generator.random() < 0.8}
            if generator.random() < 0.2:
                owned |= {"is_control": True, "is_transactional": True}
            else:
                owned["base_sequence"] = 0
        batch = small_batch(offset, count, size=generator.choice([0, 3, 200]), **owned)
        if generator.random() < 0.3:
            attributes = parse_v2(batch).header.attributes | ATTRIBUTE_LOG_APPEND_TIME
            batch = tampered(batch, attributes=attributes, max_timestamp=generator.randrange(2**40))
        parts.append(batch)
        offset += count
    return b"".join(parts), offset


def test_a_run_becomes_the_columns_of_its_batches(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(RUNS):
        data, end = written(generator)
        start = generator.randrange(end)
        stop = generator.choice([end, OFFSET_MAX, generator.randrange(start + 1, end + 1)])
        run = walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, stop)
        aborted = None
        if generator.random() < 0.5:
            found = [AbortedTransaction(generator.choice([3, 4]), first, first + 6, 0) for first in range(0, end, 11)]
            aborted = Aborted(found)
        options = ColumnOptions(
            max_records=generator.choice([1, 3, 1000]), max_bytes=generator.choice([100, 1000, 1 << 20])
        )
        by_run, by_batch = ArrowDecoder(options), ArrowDecoder(options)
        counts, expected_counts = tally(), tally()
        batches = list(by_run.add_run(run, start, stop, counts, aborted.rows if aborted else None))
        expected: list[Any] = []
        for _, batch in run.batches():
            if batch.last_offset < start or batch.is_control or (aborted and aborted.holds(batch)):
                continue
            if batch.base_offset < stop:
                expected += by_batch.add(batch, start, stop)
        list(run.records(start, stop, expected_counts, aborted.rows if aborted else None))
        assert [*batches, by_run.flush()] == [*expected, by_batch.flush()]
        assert counts == expected_counts


def builder() -> ColumnBuilder:
    return ColumnBuilder(value=True)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (0, 1000), (9, 8)])
def test_a_range_outside_of_the_bytes_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to"):
        builder().append_run(small_batch(0), start, stop, 0, OFFSET_MAX, tally())


@pytest.mark.parametrize("counts", [array("q", [0]), array("i", [0, 0, 0])])
def test_a_tally_of_another_shape_is_refused(counts: array[int]) -> None:
    data = small_batch(0)
    with pytest.raises(ValueError, match="tally"):
        builder().append_run(data, 0, len(data), 0, OFFSET_MAX, counts)


def test_bytes_that_are_no_run_are_refused_and_leave_nothing(seed: int) -> None:
    generator = random.Random(seed)
    data = small_batch(0) + small_batch(2)
    for _ in range(300):
        changed = bytearray(data)
        changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        stop = generator.randrange(len(data) + 1)
        columns = builder()
        try:
            columns.append_run(bytes(changed), 0, stop, 0, OFFSET_MAX, tally())
        except CorruptRecordError:
            assert not columns.is_within_batch
        assert columns.finish().row_count <= 4
