"""The codec against three others: the tests' plain one, aiokafka's record classes and kafka-python's."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstore.errors import CorruptDataError
from kstore.record._codec import (
    BatchBuffer,
    OpenBatch,
    Record,
    decode_varint,
    decode_varlong,
    encode_batch,
    encode_varint,
    encode_varlong,
)
from kstore.record.batch import CODEC_NAMES, parse_v2
from kstore.record.builder import build_batch, build_batches
from tests.support.harness.selection import tries
from tests.support.oracles.oracle_codec import (
    OracleBatch,
    OracleError,
    OracleRecord,
    crc32c,
    decode,
    encode,
    text_or_bytes,
    varint,
)

with warnings.catch_warnings():
    # When imported, kafka-python reads its schemas with a function that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.codec import has_snappy
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

settings.register_profile(
    "codec", max_examples=tries(60, quick=6), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
CODEC_SETTINGS = settings.get_profile("codec")

INT64 = st.integers(-(2**63), 2**63 - 1)
TIMESTAMPS = st.one_of(st.integers(-1, 2**63 - 1), st.integers(1_700_000_000_000, 1_700_000_001_000))
FIELDS = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=120, max_size=140))
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8))), max_size=3).map(tuple)
ROWS = st.lists(st.tuples(TIMESTAMPS, FIELDS, FIELDS, HEADERS), min_size=1, max_size=8)


@st.composite
def batches(draw: st.DrawFn) -> OracleBatch:
    """A batch with gaps between offsets, before the first and after the last."""
    rows = draw(ROWS)
    base_offset = draw(st.one_of(st.integers(0, 1000), st.integers(2**63 - 2**33, 2**63 - 2**32)))
    offset = base_offset + draw(st.integers(0, 3))
    records = []
    for row in rows:
        records.append(OracleRecord(offset, *row))
        offset += draw(st.one_of(st.just(1), st.integers(1, 200), st.integers(2**20, 2**27)))
    has_producer = draw(st.booleans())
    return OracleBatch(
        base_offset,
        tuple(records),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        attributes=0x10 if has_producer and draw(st.booleans()) else 0,
        last_offset_delta=records[-1].offset - base_offset + draw(st.integers(0, 3)),
        producer_id=draw(st.integers(0, 2**63 - 1)) if has_producer else -1,
        producer_epoch=draw(st.integers(0, 2**15 - 1)) if has_producer else -1,
        base_sequence=draw(st.integers(0, 2**31 - 1)) if has_producer else -1,
    )


def as_records(batch: OracleBatch) -> list[Record]:
    """The batch's records as kstore has them."""
    return [
        Record(offset, timestamp, "CreateTime", key, value, headers, batch.leader_epoch)
        for offset, timestamp, key, value, headers in batch.records
    ]


def built(batch: OracleBatch, codec: str = "none") -> bytes:
    assert batch.last_offset_delta is not None
    return build_batch(
        as_records(batch),
        base_offset=batch.base_offset,
        last_offset=batch.base_offset + batch.last_offset_delta,
        codec=codec,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=bool(batch.attributes & 0x10),
    )


# --- the plain codec --------------------------------------------------------------------------------------------------


@given(batches())
@CODEC_SETTINGS
def test_a_built_batch_has_exactly_the_plain_codecs_bytes(batch: OracleBatch) -> None:
    data = built(batch)
    assert data == encode(batch)
    assert decode(data).records == batch.records


@given(batches())
@CODEC_SETTINGS
def test_the_plain_codecs_batch_reads_as_it_was_written(batch: OracleBatch) -> None:
    data = encode(batch)
    parsed = parse_v2(data)
    parsed.ensure_valid()
    assert list(parsed.records()) == as_records(batch)
    assert parsed.values() == [record.value for record in batch.records]
    offsets, timestamps = parsed.offsets_and_timestamps()
    assert list(offsets) == [record.offset for record in batch.records]
    assert list(timestamps) == [record.timestamp for record in batch.records]
    largest = max(record.timestamp for record in batch.records)
    summary = parsed.check()
    assert (summary.max_timestamp, summary.min_timestamp) == (largest, min(r.timestamp for r in batch.records))
    first = next(record for record in batch.records if record.timestamp == largest)
    assert summary.max_timestamp_offset_delta == first.offset - batch.base_offset
    assert summary.null_key_count == sum(record.key is None for record in batch.records)


@given(batches(), st.integers(-5, 700), st.integers(-5, 700))
@CODEC_SETTINGS
def test_a_window_is_a_filter(batch: OracleBatch, first: int, stop: int) -> None:
    first, stop = batch.base_offset + first, batch.base_offset + stop
    parsed = parse_v2(encode(batch))
    wanted = [record for record in as_records(batch) if first <= record.offset < stop]
    assert list(parsed.records(first, stop)) == wanted
    assert parsed.values(first, stop) == [record.value for record in wanted]
    assert list(parsed.offsets_and_timestamps(first, stop)[0]) == [record.offset for record in wanted]


@given(ROWS, st.sampled_from(["values", "keys", "timestamps", "headers"]), st.integers(61, 400))
@CODEC_SETTINGS
def test_parallel_sequences_and_one_by_one_make_the_same_bytes(
    rows: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]], given: str, size_max: int
) -> None:
    columns: dict[str, list[Any]] = {
        "values": [value for _, _, value, _ in rows],
        "keys": [key for _, key, _, _ in rows],
        "timestamps": [timestamp for timestamp, _, _, _ in rows],
        "headers": [headers for _, _, _, headers in rows],
    }
    taken = {name: columns[name] if name in ("values", given) else None for name in columns}
    values, keys, timestamps, headers = taken.values()
    assert values is not None
    parallel = BatchBuffer()
    batch = encode_batch(parallel, values, keys, timestamps, headers, 0, 1234, size_max)
    single = BatchBuffer()
    open_batch = OpenBatch(single, size_max)
    for number, value in enumerate(values):
        fields = {name: column[number] if column else None for name, column in taken.items()}
        timestamp = 1234 if fields["timestamps"] is None else fields["timestamps"]
        if not open_batch.append(value, fields["keys"], fields["headers"], timestamp):
            break
    assert batch.record_count == open_batch.record_count
    if open_batch.record_count:
        assert open_batch.close()[1:] == batch[1:]
        assert bytes(parallel) == bytes(single)


@given(st.integers(-(2**31), 2**31 - 1), INT64)
@CODEC_SETTINGS
def test_varints_have_the_plain_codecs_bytes(small: int, large: int) -> None:
    assert encode_varint(small) == varint(small)
    assert encode_varlong(large) == varint(large)
    assert decode_varint(varint(small)) == (small, len(varint(small)))
    assert decode_varlong(varint(large)) == (large, len(varint(large)))


# --- other people's record classes ------------------------------------------------------------------------------------

KAFKA_PYTHON_CODECS = [name for name in CODEC_NAMES if name != "snappy" or has_snappy()]
# What the others' classes can hold: they do not use -1 for "no timestamp".
THEIR_ROWS = st.lists(
    st.tuples(st.integers(0, 2**60), FIELDS, FIELDS, HEADERS.map(list)),
    min_size=1,
    max_size=8,
)
OTHERS: list[tuple[str, Any, Any, str]] = [
    *[("aiokafka", AiokafkaBatch, AiokafkaBuilder, codec) for codec in CODEC_NAMES],
    *[("kafka-python", KafkaPythonBatch, KafkaPythonBuilder, codec) for codec in KAFKA_PYTHON_CODECS],
]
WITH_OTHERS = pytest.mark.parametrize(
    ("reader", "builder", "codec"), [row[1:] for row in OTHERS], ids=[f"{row[0]}-{row[3]}" for row in OTHERS]
)


@WITH_OTHERS
@given(rows=THEIR_ROWS, base_offset=st.integers(0, 2**40))
@settings(CODEC_SETTINGS, max_examples=tries(25, quick=6))
def test_others_read_what_kstore_built(
    reader: Callable[[bytes], Any], builder: object, codec: str, rows: list[tuple[Any, ...]], base_offset: int
) -> None:
    records = [
        Record(base_offset + number, timestamp, key=key, value=value, headers=headers)
        for number, (timestamp, key, value, headers) in enumerate(rows)
    ]
    data = build_batch(records, codec=codec, producer_id=5, producer_epoch=6, base_sequence=7, is_transactional=True)
    batch = reader(data)
    assert batch.validate_crc()
    assert (batch.magic, batch.base_offset, batch.is_transactional) == (2, base_offset, True)
    assert batch.is_control_batch is False
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 6, 7)
    assert batch.max_timestamp == max(record.timestamp for record in records)
    found = [(record.offset, record.timestamp, record.key, record.value, list(record.headers)) for record in batch]
    assert found == [(base_offset + number, *row) for number, row in enumerate(rows)]


@WITH_OTHERS
@given(rows=THEIR_ROWS)
@settings(CODEC_SETTINGS, max_examples=tries(25, quick=6))
def test_kstore_reads_what_others_built(
    reader: object, builder: Callable[..., Any], codec: str, rows: list[tuple[Any, ...]]
) -> None:
    theirs = builder(
        magic=2,
        compression_type=CODEC_NAMES.index(codec),
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        assert theirs.append(offset, timestamp=timestamp, key=key, value=value, headers=headers) is not None
    batch = parse_v2(bytes(theirs.build()))
    batch.ensure_valid()
    # They do not compress a payload that would not shrink.
    assert batch.codec in (codec, "none")
    found = [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers)) for record in batch.records()
    ]
    assert found == [(offset, *row) for offset, row in enumerate(rows)]


@WITH_OTHERS
def test_others_read_a_large_batch_of_kstores(reader: Callable[[bytes], Any], builder: object, codec: str) -> None:
    values = [b"value %d " % number * 20 for number in range(2000)]
    buffer = BatchBuffer()
    (written,) = build_batches(buffer, values, now_ms=5, size_max=1 << 20, codec=codec)
    batch = reader(bytes(buffer))
    assert batch.validate_crc()
    assert written.record_count == 2000
    assert [record.value for record in batch] == values


# --- hostile bytes ----------------------------------------------------------------------------------------------------


def read_by_all(data: bytes) -> list[OracleRecord] | None:
    """The records of a batch with a good CRC, or None if refused: all ways of reading agree."""
    try:
        batch = parse_v2(data)
    except CorruptDataError:
        return None
    batch.ensure_valid()
    results: list[Any] = []
    for read in (lambda: list(batch.records()), batch.values, batch.offsets_and_timestamps, batch.check):
        try:
            results.append(read())
        except CorruptDataError:
            results.append(None)
    if None in results:
        assert results == [None] * 4
        return None
    records, values, (offsets, timestamps), _ = results
    assert values == [record.value for record in records]
    assert list(offsets) == [record.offset for record in records]
    assert list(timestamps) == [record.timestamp for record in records]
    return [
        OracleRecord(
            r.offset,
            r.timestamp,
            r.key,
            r.value,
            tuple([(text_or_bytes(key), value) for key, value in r.header_bytes]),
        )
        for r in records
    ]


def mutated(data: bytes, changes: list[tuple[int, bytes]], cut: int) -> bytes:
    """``data`` with bytes overwritten and cut off, and size and CRC corrected."""
    changed = bytearray(data)
    for position, patch in changes:
        position = 21 + position % (len(data) - 21)
        changed[position : position + len(patch)] = patch
    del changed[max(61, len(data) - cut) :]
    changed[21:23] = b"\0\0"
    changed[8:12] = struct.pack(">i", len(changed) - 12)
    changed[17:21] = struct.pack(">I", crc32c(bytes(changed[21:])))
    return bytes(changed)


EDGES = st.sampled_from([varint(n) for n in (-1, 0, 1, 63, 64, 2**31 - 1, -(2**31))] + [b"\x80" * 6, b"\xff" * 10])
CHANGES = st.lists(st.tuples(st.integers(0, 2000), st.one_of(st.binary(min_size=1, max_size=3), EDGES)), max_size=3)


@given(batches(), CHANGES, st.one_of(st.just(0), st.integers(0, 50)))
@settings(CODEC_SETTINGS, max_examples=tries(300, quick=30))
def test_what_is_read_of_damaged_bytes_is_what_the_plain_codec_reads(
    batch: OracleBatch, changes: list[tuple[int, bytes]], cut: int
) -> None:
    data = mutated(encode(batch), changes, cut)
    found = read_by_all(data)
    try:
        wanted: list[OracleRecord] | None = list(decode(data).records)
    except OracleError:
        wanted = None
    if found is not None:
        assert found == wanted
    elif wanted is not None:
        # The plain codec does not check the order and the range of offsets.
        offsets = [record.offset for record in wanted]
        base_offset, last_offset_delta = struct.unpack_from(">q15xi", data)
        in_order = offsets == sorted(set(offsets))
        in_range = all(base_offset <= offset <= base_offset + last_offset_delta for offset in offsets)
        assert not (in_order and in_range and base_offset + last_offset_delta < 2**63 - 1 and last_offset_delta >= 0)


@given(st.binary(max_size=200), st.integers(0, 40))
@CODEC_SETTINGS
def test_any_bytes_are_read_or_refused(records: bytes, count: int) -> None:
    header = struct.pack(">hiqqqhii", 0, 100, 0, 0, -1, -1, -1, count)
    data = mutated(bytes(8) + struct.pack(">iibI", 0, -1, 2, 0) + header + records, [], 0)
    found = read_by_all(data)
    if found is not None:
        assert found == list(decode(data).records)
