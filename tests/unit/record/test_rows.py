"""Rows of Arrow columns to batches: the same records come back, in Kafka's partitions, whatever the buffers hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kstore.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from kstore.producer.partitioner import partition_for_key
from kstore.record._codec import EncodedBatch, Record
from kstore.record._rows import BytesRows, HeaderRows, NumberRows, RowEncoder, Rows
from kstore.record.parse import parse_batch
from kstore.record.rows import PartitionedEncoder, rows_of
from kstore.rules.validate import split_batches

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class Encoded:
    """The batches of an encoder."""

    def __init__(self, partition_count: int = 1, *, batch_bytes: int = 1 << 16, **settings: Any) -> None:
        self.batches: list[tuple[int, bytes, int]] = []
        settings = {"size_max": 1 << 20, **settings}
        self.encoder = PartitionedEncoder(partition_count, self._done, batch_bytes=batch_bytes, **settings)

    def _done(self, partition: int, data: bytes, batch: EncodedBatch) -> None:
        self.batches.append((partition, data, batch.record_count))

    def take(self, *tables: pa.RecordBatch) -> Encoded:
        for table in tables:
            self.encoder.append(rows_of(table, NOW_MS))
        self.encoder.close()
        return self

    def records(self, partition: int = 0) -> list[Record]:
        found = []
        for number, data, record_count in self.batches:
            if number == partition:
                batch = parse_batch(data, 0)
                batch.ensure_valid()
                records = list(batch.records())
                assert len(records) == record_count
                found += records
        return found


def table(**columns: Any) -> pa.RecordBatch:
    types = {
        "value": pa.binary(),
        "key": pa.binary(),
        "headers": HEADERS,
        "timestamp": pa.timestamp("us", "UTC"),
        "partition": pa.int32(),
    }
    return pa.record_batch({name: pa.array(given, types[name]) for name, given in columns.items()})


def test_every_field_of_a_row_comes_back() -> None:
    given = table(
        value=[b"a", None, b""],
        key=[None, b"k", b""],
        headers=[[("x", b"1"), ("y", None), ("", b"")], None, []],
        timestamp=[1_000_999, None, -1],
    )
    records = Encoded().take(given).records()
    assert [(each.value, each.key) for each in records] == [(b"a", None), (None, b"k"), (b"", b"")]
    assert [each.headers for each in records] == [(("x", b"1"), ("y", None), ("", b"")), (), ()]
    assert [each.timestamp for each in records] == [1000, NOW_MS, -1]


def test_random_rows_come_back_sliced_or_not(seed: int, tried: Callable[[str, int], None]) -> None:
    chance = random.Random(seed)

    def some(size: int) -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(size))

    count = 500
    columns: dict[str, list[Any]] = {
        "value": [some(300) for _ in range(count)],
        "key": [some(20) for _ in range(count)],
        "headers": [
            None if chance.random() < 0.5 else [(chance.choice("äbc"), some(9)) for _ in range(chance.randrange(4))]
            for _ in range(count)
        ],
        "timestamp": [None if chance.random() < 0.2 else chance.randrange(10**15) for _ in range(count)],
    }
    whole = table(**columns)
    for start, stop in [(0, count), (7, 123), (499, 500), (200, 200)]:
        records = Encoded(batch_bytes=4096).take(whole.slice(start, stop - start)).records()
        found = [(each.value, each.key, each.headers, each.timestamp) for each in records]
        assert found == [
            (value, key, tuple(headers or ()), NOW_MS if timestamp is None else timestamp // 1000)
            for value, key, headers, timestamp in zip(*(given[start:stop] for given in columns.values()), strict=True)
        ]
        tried("reads", stop - start)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_texts_and_bytes_of_any_width_are_taken(kind: pa.DataType) -> None:
    values = ["ä", None, "b"] if "string" in str(kind) else ["ä".encode(), None, b"b"]
    given = pa.record_batch({"value": pa.array(values, kind), "key": pa.array(values, kind)})
    found = [(each.key, each.value) for each in Encoded().take(given).records()]
    assert found == [("ä".encode(), "ä".encode()), (None, None), (b"b", b"b")]


def test_a_key_goes_where_kafkas_clients_send_it() -> None:
    keys = [f"key-{number}".encode() for number in range(300)]
    encoded = Encoded(7).take(table(value=keys, key=keys))
    for partition in range(7):
        expected = [key for key in keys if partition_for_key(key, 7) == partition]
        assert [each.key for each in encoded.records(partition)] == expected


def test_a_partition_that_is_named_wins_over_the_key() -> None:
    encoded = Encoded(3).take(table(value=[b"a", b"b", b"c"], key=[b"k", b"k", b"k"], partition=[2, None, 0]))
    named = {b"a": 2, b"b": partition_for_key(b"k", 3), b"c": 0}
    assert {each.value: p for p in range(3) for each in encoded.records(p)} == named


@pytest.mark.parametrize("partition", [-1, 3, 2**31 - 1])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    with pytest.raises(InvalidRecordError, match=rf"row 1: partition {partition}, and the topic has 0 to 2"):
        Encoded(3).take(table(value=[b"a", b"b"], partition=[0, partition]))


def test_rows_without_a_key_fill_one_partition_after_the_other() -> None:
    values = [b"x" * 100 for _ in range(100)]
    encoded = Encoded(3, batch_bytes=1000, first_partition=1).take(table(value=values))
    assert [partition for partition, _, _ in encoded.batches[:5]] == [1, 2, 0, 1, 2]
    assert sum(count for _, _, count in encoded.batches) == 100
    assert all(len(data) <= 1000 for _, data, _ in encoded.batches)


def test_a_row_larger_than_a_batch_has_one_of_its_own_and_too_large_is_refused() -> None:
    encoded = Encoded(batch_bytes=1000, size_max=5000).take(table(value=[b"a", b"b" * 3000, b"c"]))
    assert [count for _, _, count in encoded.batches] == [1, 1, 1]
    with pytest.raises(RecordTooLargeError, match="row 1 in a batch of its own, of 50"):
        Encoded(batch_bytes=1000, size_max=5000).take(table(value=[b"a", b"b" * 4990]))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(codec: str) -> None:
    values = [b"value %d" % number for number in range(2000)]
    encoded = Encoded(codec=codec).take(table(value=values))
    assert [each.value for each in encoded.records()] == values
    assert split_batches(encoded.batches[0][1])[0].codec == codec


def test_a_time_before_the_first_is_refused_and_rounded_down() -> None:
    with pytest.raises(InvalidTimestampError, match="row 0: a timestamp of -2 ms"):
        Encoded().take(table(value=[b""], timestamp=[-1001]))
    assert Encoded().take(table(value=[b""], timestamp=[-1000])).records()[0].timestamp == -1


def test_a_header_without_a_key_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="row 1: a header without a key"):
        Encoded().take(table(value=[b"", b""], headers=[None, [(None, b"")]]))
    with pytest.raises(InvalidRecordError, match="row 0: a header without a key"):
        Encoded().take(table(value=[b""], headers=[[None]]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.array([b"a"])}, "columns key, expected value among them"),
        ({"value": pa.array([1])}, "column 'value' is int64, expected binary or string"),
        ({"value": pa.array([b""]), "headers": pa.array([b""])}, "column 'headers' is binary"),
        ({"value": pa.array([b""]), "timestamp": pa.array(["x"])}, "column 'timestamp' is string"),
        ({"value": pa.array([b""]), "partition": pa.array([0.5])}, "column 'partition' is double"),
    ],
)
def test_other_columns_are_refused(columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        rows_of(pa.record_batch(columns), NOW_MS)


def int32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize(
    "make",
    [
        lambda: BytesRows(2, 0, None, int32(0, 1), b"ab"),
        lambda: BytesRows(2, 0, None, int32(0, 2, 1), b"ab"),
        lambda: BytesRows(2, 0, None, int32(-1, 0, 1), b"ab"),
        lambda: BytesRows(2, 0, None, int32(0, 1, 3), b"ab"),
        lambda: BytesRows(2, 0, None, int32(0, 1, 2), None),
        lambda: BytesRows(9, 0, b"\xff", int32(*range(10)), b"x" * 10),
        lambda: BytesRows(-1, 0, None, int32(0), b""),
        lambda: BytesRows(2**62, 0, None, int32(0), b""),
        lambda: BytesRows(1, 2**62, None, int32(0), b""),
        lambda: NumberRows(2, 0, None, b"1234567", 4),
        lambda: NumberRows(9, 0, b"\xff", bytes(36), 4),
        lambda: HeaderRows(1, 0, None, int32(0, 2), BytesRows(1, 0, None, int32(0, 0), None), empty(2)),
        lambda: Rows(empty(2), empty(1), None, None, None, 1, 0),
    ],
)
def test_buffers_that_contradict_themselves_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRecordError):
        make()


def empty(count: int) -> BytesRows:
    return BytesRows(count, 0, None, int32(*[0] * (count + 1)), None)


def test_an_encoder_says_which_partition_needs_a_batch() -> None:
    encoder = RowEncoder(2, 1 << 16)
    rows = Rows(empty(2), None, None, None, None, 1, 0)
    assert encoder.append(rows, 0) == (0, 0)
    assert encoder.append(rows, 2) == (2, -1)
    with pytest.raises(ValueError, match="row -1"):
        encoder.append(rows, -1)


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize("with_key", [False, True], ids=["values", "keys"])
@pytest.mark.parametrize("found", [[1 << 30, (1 << 30) + 4000], [-(1 << 30), 8], [8, 0]])
def test_offsets_that_change_after_they_were_compared_are_not_read_again(found: list[int], with_key: bool) -> None:
    offsets = bytearray(int32(*range(0, 72, 8)))
    values = pa.Array.from_buffers(pa.binary(), 8, [None, pa.py_buffer(offsets), pa.py_buffer(b"x" * 64)])
    rows = rows_of(pa.record_batch({"value": values} | ({"key": values} if with_key else {})), NOW_MS)
    encoded = Encoded()
    for place in range(0, 32, 4):  # of the first row, of those after it, and of the last one
        offsets[place : place + 8] = int32(*found)
    encoded.encoder.append(rows)
    encoded.encoder.close()
    assert [record.value for record in encoded.records()] == [b"x" * 8] * 8
    assert {record.key for record in encoded.records()} == ({b"x" * 8} if with_key else {None})


@pytest.mark.promise("hostile file")
def test_nulls_and_headers_that_change_after_they_were_compared_are_not_read_again() -> None:
    lists, keys, bits = bytearray(int32(0, 1, 2)), bytearray(int32(0, 1, 2)), bytearray(b"\x01")
    headers = HeaderRows(
        2,
        0,
        None,
        lists,
        BytesRows(2, 0, None, keys, b"kK"),
        BytesRows(2, 0, bits, int32(0, 1, 1001), b"v" * 1001),
    )
    encoded = Encoded()
    rows = Rows(empty(2), None, headers, None, None, 1, NOW_MS)
    lists[4:], keys[4:], bits[:] = int32(1 << 30, 1 << 30), int32(1 << 30, 1 << 30), b"\x03"
    encoded.encoder.append(rows)
    encoded.encoder.close()
    assert [record.headers for record in encoded.records()] == [(("k", b"v"),), (("K", None),)]


def test_a_slice_in_the_middle_of_a_byte_of_nulls_is_taken() -> None:
    values = [None if number % 3 else b"%d" % number for number in range(40)]
    for start in range(20):
        given = table(value=values, key=values, headers=[None if value is None else [] for value in values])
        records = Encoded().take(given.slice(start, 19)).records()
        assert [record.value for record in records] == [record.key for record in records] == values[start : start + 19]
