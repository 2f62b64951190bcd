"""Batches to Arrow columns: they hold what the records hold, whatever is requested and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.errors import ConfigError, CorruptDataError, CorruptRecordError
from kstore.record._codec import Record
from kstore.record._columns import ColumnBuilder
from kstore.record.batch import MAGIC_V2, Batch
from kstore.record.builder import build_batch
from kstore.record.columns import COLUMNS, ArrowDecoder, ColumnOptions
from kstore.record.parse import parse_batch
from tests.support.harness.evidence import Untyped, Wrong
from tests.support.oracles.oracle_legacy import message, wrapper

Count = Callable[[str, int], None]

TIME = 1_700_000_000_000
TYPE_IDS = {"CreateTime": 0, "LogAppendTime": 1, "NoTimestampType": -1}
ROWS = [
    Record(5, TIME, key=b"k", value=b"one"),
    Record(6, TIME + 1, value=b"two", headers=[("h", b"x"), ("h", None), ("", b"")]),
    Record(9, TIME - 5, key=b"", value=None),
    Record(12, TIME, key=b"key of more than twelve bytes", value=b"v" * 300, headers=[("z\N{SNOWMAN}", b"y" * 20)]),
]

fields = st.one_of(st.none(), st.binary(max_size=20))
header_lists = st.lists(st.tuples(st.text(max_size=5), fields), max_size=3)
some_records = st.lists(
    st.tuples(st.integers(1, 5), st.integers(-1, 2**40), fields, fields, header_lists), min_size=1, max_size=30
)


def rows_of(records: Sequence[Record], columns: Sequence[str] = COLUMNS) -> list[dict[str, Any]]:
    """What columns must contain for ``records``: the oracle. Times as ms."""
    return [
        {
            name: {
                "key": record.key,
                "value": record.value,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "timestampType": TYPE_IDS[record.timestamp_type],
                "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
            }[name]
            for name in columns
        }
        for record in records
    ]


def found_rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        if "timestamp" in batch.schema.names:
            index = batch.schema.names.index("timestamp")
            batch = batch.set_column(index, "timestamp", batch.column("timestamp").cast(pa.int64()))
        rows += batch.to_pylist()
    return rows


def decoded(batches: Sequence[Batch], first: int = 0, stop: int = 2**63 - 1, **options: Any) -> list[pa.RecordBatch]:
    decoder = ArrowDecoder(ColumnOptions(**options))
    chunks = list(chain.from_iterable(decoder.add(batch, first, stop) for batch in batches))
    rest = decoder.flush()
    return chunks if rest is None else [*chunks, rest]


def subsets() -> Iterator[tuple[str, ...]]:
    for count in range(1, len(COLUMNS) + 1):
        yield from combinations(COLUMNS, count)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_projection_is_the_columns_that_were_asked_for(codec: str) -> None:
    batches = [parse_batch(build_batch(ROWS, codec=codec)), parse_batch(build_batch([Record(13, TIME)], codec=codec))]
    written = [*ROWS, Record(13, TIME)]
    for columns in subsets():
        found = decoded(batches, columns=columns)
        assert found[0].schema.names == list(columns)
        assert found_rows(found) == rows_of(written, columns)


def test_what_is_not_asked_for_takes_no_memory() -> None:
    """Unrequested keys of a mebibyte must not be copied or counted."""
    batch = parse_batch(build_batch([Record(number, TIME, key=b"k" * (1 << 20), value=b"v") for number in range(4)]))
    (found,) = decoded([batch], columns=("value",), max_bytes=100)
    assert found.nbytes < 100
    assert found.column("value").to_pylist() == [b"v"] * 4


def test_values_of_all_small_sizes_come_back() -> None:
    records = [Record(size, TIME, key=b"a" * size, value=b"b" * (40 - size)) for size in range(41)]
    assert found_rows(decoded([parse_batch(build_batch(records))])) == rows_of(records)


@given(some_records, st.integers(1, 40), st.integers(1, 400), st.sampled_from(["binary", "large_binary"]), st.data())
def test_columns_are_what_the_records_say(
    given_records: list[Any], max_records: int, max_bytes: int, binary_type: str, data: st.DataObject
) -> None:
    offset, records = 0, []
    for gap, timestamp, key, value, headers in given_records:
        offset += gap
        records.append(Record(offset, timestamp, key=key, value=value, headers=headers))
    cut = data.draw(st.integers(1, len(records)))
    batches = [parse_batch(build_batch(part)) for part in (records[:cut], records[cut:]) if part]
    first, stop = data.draw(st.integers(0, offset + 1)), data.draw(st.integers(0, offset + 2))
    found = decoded(batches, first, stop, max_records=max_records, max_bytes=max_bytes, binary_type=binary_type)
    assert found_rows(found) == rows_of([record for record in records if first <= record.offset < stop])
    assert all(1 <= chunk.num_rows <= max_records for chunk in found)
    for chunk in found:
        # Besides the rows: an offset for each end, and a bitmap.
        assert chunk.num_rows == 1 or chunk.nbytes <= max_bytes + 48 + chunk.num_rows


def test_a_chunk_ends_before_its_limit_within_a_batch() -> None:
    """As at 2 GiB, where offsets of 32 bits end."""
    records = [Record(number, TIME, value=b"v" * 100) for number in range(10)]
    found = decoded([parse_batch(build_batch(records))], columns=("value",), max_bytes=350)
    assert [chunk.num_rows for chunk in found] == [3, 3, 3, 1]
    assert found_rows(found) == rows_of(records, ("value",))
    # A record larger than the limit is alone.
    found = decoded([parse_batch(build_batch(records))], columns=("value",), max_bytes=50)
    assert [chunk.num_rows for chunk in found] == [1] * 10


def test_offsets_of_32_bits_reach_no_further_than_2_gib() -> None:
    with pytest.raises(ConfigError, match="max_bytes"):
        ColumnOptions(max_bytes=2**31)
    assert ColumnOptions(max_bytes=2**31, binary_type="large_binary").is_large
    with pytest.raises(ValueError, match="size_max"):
        ColumnBuilder(value=True, size_max=2**31)
    with pytest.raises(ValueError, match="rows_max"):
        ColumnBuilder(value=True, rows_max=0)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_old_versions_become_columns(magic: int, codec: str) -> None:
    inner = [message(number, b"v%d" % number, key=b"k", magic=magic, timestamp=TIME) for number in range(4)]
    data = b"".join(inner) if codec == "none" else wrapper(inner, offset=3, codec=codec, magic=magic)
    batches, at = [], 0
    while at < len(data):
        batches.append(parse_batch(data, at))
        at += batches[-1].size
    records = [record for batch in batches for record in batch.records()]
    assert len(records) == 4
    for max_records in (1, 3, 10):
        assert found_rows(decoded(batches, max_records=max_records)) == rows_of(records)
    assert found_rows(decoded(batches, 1, 3)) == rows_of(records[1:3])


def test_headers_are_a_map_where_that_is_asked_for() -> None:
    (found,) = decoded([parse_batch(build_batch(ROWS))], columns=("headers",), headers_type="map")
    assert found.schema.field("headers").type == pa.map_(pa.string(), pa.binary())
    assert found.column(0).to_pylist() == [list(record.headers) or None for record in ROWS]


def test_times_are_cut_to_what_64_bits_hold_in_us() -> None:
    times = [2**63 - 1, -(2**63), 5, -1]
    data = bytearray(build_batch([Record(number, 5, value=b"") for number in range(4)]))
    batch = parse_batch(bytes(data))
    decoder = ColumnBuilder(timestamp=True, timestamp_factor=1000)
    for number, time in enumerate(times):
        assert decoder.append_message(number, time, 0, None, None)
    found = memoryview(decoder.finish().timestamp or b"").cast("q").tolist()
    assert found == [2**63 - 1, -(2**63), 5000, -1000]
    assert decoded([batch], timestamp_unit="us")[0].column("timestamp").cast(pa.int64()).to_pylist() == [5000] * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ()}, "one or more"),
        ({"columns": ("key", "key")}, "each once"),
        ({"columns": ("vlaue",)}, "did you mean 'value'"),
        ({"headers_type": "dict"}, "'list', 'map'"),
        ({"binary_type": "string"}, "'large_binary'"),
        ({"timestamp_unit": "ns"}, "'us'"),
        ({"max_records": 0}, "max_records"),
        ({"max_bytes": True}, "max_bytes"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ColumnOptions(**options)


def payload_of(records: Sequence[Record]) -> tuple[bytes, int]:
    data = build_batch(records)
    return data[61:], len(records)


@pytest.mark.promise("hostile file")
@pytest.mark.long
def test_columns_refuse_exactly_what_records_refuse(seed: int, tried: Count) -> None:
    """Any bytes: the columns equal the reader's records, or both refuse; earlier contents stay."""
    rng = random.Random(seed)
    plain, count = payload_of(
        [
            Record(number, TIME + number, "CreateTime", b"k", b"v" * number, [("h", b"x")] * (number % 3))
            for number in range(6)
        ]
    )
    before = parse_batch(build_batch([Record(1, TIME, value=b"before", headers=[("b", b"c")])]))
    variants = []
    for position in range(len(plain)):
        for bit in range(8):
            damaged = bytearray(plain)
            damaged[position] ^= 1 << bit
            variants.append(bytes(damaged))
        variants.append(plain[:position])
    for _ in range(500):
        damaged = bytearray(plain)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        variants.append(bytes(damaged))
    refused = 0
    for number, data in enumerate(variants):
        refused += _same_verdict(data, count, before, subset=number % 63 + 1, max_records=1 + number % 7)
    assert 0 < refused < len(variants)
    tried("fuzz inputs", len(variants))


def _same_verdict(payload: bytes, count: int, before: Batch, subset: int, max_records: int) -> bool:
    """Whether the payload is refused; both must agree."""
    header = bytearray(build_batch([Record(number, TIME) for number in range(count)])[:61])
    header[8:12] = (49 + len(payload)).to_bytes(4, "big")
    batch = parse_batch(bytes(header) + payload)
    assert batch.magic == MAGIC_V2
    columns = tuple(name for index, name in enumerate(COLUMNS) if subset >> index & 1)
    decoder = ArrowDecoder(ColumnOptions(columns=columns, max_records=max_records))
    chunks = list(decoder.add(before))
    expected = rows_of(list(before.records()), columns)
    try:
        expected += rows_of(list(batch.records()), columns)
        is_refused = False
    except CorruptDataError:
        is_refused = True
    try:
        chunks += decoder.add(batch)
    except CorruptRecordError:
        if not is_refused:
            raise Wrong(f"the columns refuse what the records accept: {payload!r}") from None
    except Exception as error:
        raise Untyped(repr(error)) from error
    else:
        if is_refused:
            raise Wrong(f"the columns accept what the records refuse: {payload!r}")
    # In either case the columns are sound for the next batch.
    chunks += decoder.add(before)
    expected += rows_of(list(before.records()), columns)
    rest = decoder.flush()
    found = found_rows(chunks if rest is None else [*chunks, rest])
    if found != expected:
        raise Wrong(f"{found} of {payload!r}, expected {expected}")
    return is_refused


def test_a_batch_is_checked_whole_before_any_of_it_is_given() -> None:
    data = bytearray(build_batch([Record(number, TIME, value=b"v") for number in range(10)]))
    data[-1] = 200
    decoder = ArrowDecoder(ColumnOptions(max_records=2))
    with pytest.raises(CorruptRecordError):
        decoder.add(parse_batch(bytes(data)))
    assert decoder.record_count == 0
    assert decoder.flush() is None


def test_a_buffer_that_changes_between_two_chunks_is_refused() -> None:
    data = bytearray(build_batch([Record(number, TIME, value=b"v") for number in range(10)]))
    decoder = ArrowDecoder(ColumnOptions(max_records=2, columns=("value", "key", "headers")))
    chunks = iter(decoder.add(parse_batch(data)))
    assert next(chunks).num_rows == 2
    data[61:] = b"\xff" * (len(data) - 61)
    with pytest.raises(CorruptRecordError):
        next(chunks)
    assert decoder.flush() is None
    assert found_rows(decoded([parse_batch(build_batch(ROWS))])) == rows_of(ROWS)


def test_a_chunk_that_is_full_must_be_finished_first() -> None:
    builder = ColumnBuilder(value=True, rows_max=1)
    batch = build_batch([Record(0, TIME), Record(1, TIME)])
    arguments = (batch, 61, len(batch), 2, 0, TIME, 1, 0, TIME)
    assert not builder.append(*arguments)
    assert builder.is_within_batch
    with pytest.raises(ValueError, match="finish"):
        builder.append(*arguments)
    assert builder.finish().row_count == 1
    assert builder.resume()
    assert builder.finish().row_count == 1
    assert builder.resume()
    assert builder.finish().row_count == 0


def test_buffers_are_read_only_and_outlive_the_decoder() -> None:
    builder = ColumnBuilder(value=True)
    assert builder.append_message(0, 0, 0, None, b"abc")
    column = builder.finish().value
    assert column is not None
    del builder
    view = memoryview(column.data)
    assert view.readonly
    assert bytes(view) == b"abc"
    assert len(column.data) == column.data.size == 3
