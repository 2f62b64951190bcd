"""Building batches (Kafka: MemoryRecordsBuilderTest, MemoryRecordsTest)."""

from __future__ import annotations

import pytest

from kstore.errors import InvalidRecordError, RecordTooLargeError
from kstore.record._codec import BatchBuffer, EncodedBatch, Record, patch_header
from kstore.record.batch import CODEC_NAMES, RecordBatch, parse_v2
from kstore.record.builder import build_batch, build_batches
from kstore.types import TimestampType
from tests.support.oracles.oracle_codec import OracleBatch, OracleRecord, encode
from tests.unit.record.test_batch import COMMIT_MARKER, GOLDEN, RECORDS, T, make

CODECS = pytest.mark.parametrize("codec", CODEC_NAMES)
WORDS = [b"value-%d" % number * 3 for number in range(50)]


def plain(records: tuple[OracleRecord, ...] = RECORDS) -> list[Record]:
    return [
        Record(offset, timestamp, key=key, value=value, headers=headers)
        for offset, timestamp, key, value, headers in records
    ]


def batches_in(buffer: BatchBuffer, built: list[EncodedBatch]) -> list[RecordBatch]:
    """The batches, parsed and checked; asserts that they fill the buffer without gaps."""
    position = built[0].position if built else buffer.size
    parsed = []
    for batch in built:
        assert batch.position == position
        position += batch.size
        parsed.append(parse_v2(buffer, batch.position))
        assert parsed[-1].size == batch.size
        parsed[-1].ensure_valid()
    assert position == buffer.size
    return parsed


# --- build_batch ------------------------------------------------------------------------------------------------------


def test_the_golden_batch_has_these_bytes() -> None:
    assert build_batch([Record(0, T, key=b"k", value=b"hello", headers=(("h", b"\x01"),))]) == GOLDEN


def test_the_golden_commit_marker_has_these_bytes() -> None:
    marker = build_batch(
        [Record(5, T, key=b"\0\0\0\1", value=b"\0\0\0\0\0\x64")],
        leader_epoch=7,
        producer_id=98323,
        producer_epoch=99,
        is_transactional=True,
        is_control=True,
    )
    assert marker == COMMIT_MARKER


def test_records_keep_their_offsets_and_timestamps() -> None:
    assert build_batch(plain()) == make()


def test_every_field_of_the_header_can_be_said() -> None:
    data = build_batch(
        iter(plain()),
        base_offset=10,
        last_offset=40,
        leader_epoch=3,
        producer_id=2**50,
        producer_epoch=5,
        base_sequence=6,
        is_transactional=True,
        delete_horizon_ms=T + 1000,
    )
    assert data == encode(
        OracleBatch(10, RECORDS, 3, 0x50, 30, T + 1000, T + 10, producer_id=2**50, producer_epoch=5, base_sequence=6)
    )


def test_append_time_is_the_batchs_and_leaves_the_records_their_own() -> None:
    assert build_batch(plain(), log_append_time=T + 77) == make(attributes=8, max_timestamp=T + 77)


@CODECS
def test_a_batch_reads_as_it_was_built_with_every_codec(codec: str) -> None:
    records = [
        Record(100 + 2 * i, T + i % 7, key=b"k%d" % i, value=word, leader_epoch=4) for i, word in enumerate(WORDS)
    ]
    batch = parse_v2(build_batch(records, codec=codec, leader_epoch=4))
    batch.ensure_valid()
    assert (batch.codec, batch.record_count, batch.base_offset, batch.last_offset) == (codec, 50, 100, 198)
    assert (batch.base_timestamp, batch.max_timestamp) == (T, T + 6)
    assert list(batch.records()) == records
    assert batch.values() == WORDS
    assert batch.check() == (0, 98, T + 6, 12, T, 0)
    assert list(batch.offsets_and_timestamps()[0]) == [record.offset for record in records]


@CODECS
def test_an_empty_batch_keeps_its_offsets_and_is_never_compressed(codec: str) -> None:
    data = build_batch(
        [],
        base_offset=23,
        last_offset=200,
        codec=codec,
        max_timestamp=T,
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=True,
    )
    assert data == encode(OracleBatch(23, (), -1, 0x10, 177, -1, T, producer_id=9, producer_epoch=1, base_sequence=5))
    assert parse_v2(data).codec == "none"


def test_an_empty_batch_needs_a_base_offset() -> None:
    with pytest.raises(ValueError, match="needs a base_offset"):
        build_batch([])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_transactional": True}, "a transactional batch of producer id -1"),
        ({"is_transactional": True, "is_control": True}, "a transactional batch of producer id -1"),
        ({"producer_id": 5, "base_sequence": 0}, "a producer epoch of -1 for producer id 5"),
        ({"producer_id": 5, "producer_epoch": 0}, "a base sequence of -1 for producer id 5"),
        ({"producer_id": 5, "producer_epoch": 0, "is_transactional": True}, "a base sequence of -1"),
        ({"base_offset": 21}, "offset delta -1"),
        ({"last_offset": 22}, "last offset 22, expected at least the last record's"),
        ({"base_offset": 20 - 2**31}, "offset delta"),
    ],
)
def test_fields_that_cannot_go_together_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_batch(plain(), **fields)  # type: ignore[arg-type]


def test_sequences_without_a_producer_are_written_as_the_group_coordinator_does() -> None:
    assert parse_v2(build_batch(plain(), base_sequence=0)).base_sequence == 0


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="offset delta 0, expected above 0"):
        build_batch([Record(5, T), Record(5, T)])


def test_times_from_a_delete_horizon_may_lie_before_and_after_it() -> None:
    batch = parse_v2(build_batch(plain(), delete_horizon_ms=T))
    assert batch.delete_horizon_ms == T
    assert [record.timestamp for record in batch.records()] == [T, T + 10, T - 5]
    assert batch.max_timestamp == T + 10


# --- build_batches ----------------------------------------------------------------------------------------------------


@CODECS
def test_parallel_sequences_become_a_batch(codec: str) -> None:
    buffer = BatchBuffer()
    keys = [b"k%d" % i for i in range(50)]
    built = build_batches(buffer, WORDS, keys, now_ms=T, size_max=1 << 20, codec=codec)
    (batch,) = batches_in(buffer, built)
    assert (built[0].stop, built[0].record_count, built[0].max_timestamp) == (50, 50, T)
    assert (batch.codec, batch.base_offset, batch.leader_epoch) == (codec, 0, -1)
    assert [(record.offset, record.timestamp, record.key, record.value) for record in batch.records()] == [
        (i, T, keys[i], WORDS[i]) for i in range(50)
    ]
    patch_header(buffer, 0, 1000, 7)
    patched = parse_v2(buffer)
    patched.ensure_valid()
    assert [record.offset for record in patched.records()] == list(range(1000, 1050))


@CODECS
def test_more_than_fits_becomes_several_batches(codec: str) -> None:
    buffer = BatchBuffer()
    buffer.extend(b"before")
    built = build_batches(buffer, WORDS, timestamps=list(range(50)), now_ms=T, size_max=300, codec=codec)
    assert len(built) > 3
    parsed = batches_in(buffer, built)
    assert all(batch.size <= 300 for batch in parsed)
    assert [value for batch in parsed for value in batch.values()] == WORDS
    assert [batch.stop for batch in built] == [
        built[i].record_count + (built[i - 1].stop if i else 0) for i in range(len(built))
    ]
    assert [batch.base_timestamp for batch in built] == [0] + [batch.stop for batch in built[:-1]]
    assert bytes(buffer.view(0, 6)) == b"before"


def test_no_records_are_no_batches() -> None:
    buffer = BatchBuffer()
    assert build_batches(buffer, [], now_ms=T, size_max=1000) == []
    assert buffer.size == 0


@CODECS
def test_append_time_is_the_callers_time(codec: str) -> None:
    buffer = BatchBuffer()
    (built,) = build_batches(
        buffer,
        [b"a", b"b"],
        timestamps=[5, 9],
        timestamp_type="LogAppendTime",
        now_ms=T,
        size_max=1000,
        codec=codec,
    )
    (batch,) = batches_in(buffer, [built])
    assert (built.max_timestamp, built.base_timestamp, batch.max_timestamp) == (T, 5, T)
    assert [(record.timestamp, record.timestamp_type) for record in batch.records()] == [(T, "LogAppendTime")] * 2
    assert batch.check().max_timestamp == 9


def test_create_time_is_the_records_or_the_callers() -> None:
    buffer = BatchBuffer()
    (built,) = build_batches(buffer, [b"a", b"b", b"c"], timestamps=[5, None, 9], now_ms=T, size_max=1000)
    assert (built.max_timestamp, built.max_timestamp_delta_offset) == (T, 1)
    assert [record.timestamp for record in parse_v2(buffer).records()] == [5, T, 9]


@CODECS
def test_a_record_that_no_batch_can_hold_leaves_none_of_the_call(codec: str) -> None:
    buffer = BatchBuffer()
    buffer.extend(b"before")
    with pytest.raises(
        RecordTooLargeError, match="record 30 in a batch of its own, of 577 bytes is over the limit of 300"
    ):
        build_batches(buffer, [*WORDS[:30], bytes(507), *WORDS[30:]], now_ms=T, size_max=300, codec=codec)
    assert bytes(buffer) == b"before"


def test_a_record_that_cannot_be_written_leaves_none_of_the_call() -> None:
    buffer = BatchBuffer()
    timestamps = [*range(40), -9, *range(9)]
    with pytest.raises(InvalidRecordError, match="record 40: a timestamp of -9 ms") as caught:
        build_batches(buffer, WORDS, timestamps=timestamps, now_ms=T, size_max=300)
    assert caught.value.record_errors[0].index == 40
    assert buffer.size == 0


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_a_batch_that_compression_would_make_too_large_stays_uncompressed(codec: str) -> None:
    buffer = BatchBuffer()
    (built,) = build_batches(buffer, [b"a"], now_ms=T, size_max=69, codec=codec)
    (batch,) = batches_in(buffer, [built])
    assert (batch.codec, batch.size) == ("none", 69)
    assert batch.values() == [b"a"]


def test_a_level_reaches_the_codec() -> None:
    sizes = []
    for level in (1, 9):
        buffer = BatchBuffer()
        words = [b"%d" % (number * number) for number in range(3000)]
        (built,) = build_batches(buffer, words, now_ms=T, size_max=1 << 20, codec="gzip", level=level)
        sizes.append(built.size)
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_compression_makes_repetition_small(codec: str) -> None:
    buffer = BatchBuffer()
    (built,) = build_batches(buffer, [b"value" * 20] * 1000, now_ms=T, size_max=1 << 20, codec=codec)
    assert built.size == buffer.size < 20_000


def test_a_batch_has_no_third_timestamp_type() -> None:
    no_type: TimestampType = "NoTimestampType"
    with pytest.raises(ValueError, match="timestamp type 2"):
        build_batches(BatchBuffer(), [b"a"], now_ms=T, size_max=1000, timestamp_type=no_type)


def test_an_unknown_codec_leaves_none_of_the_call() -> None:
    buffer = BatchBuffer()
    with pytest.raises(KeyError):
        build_batches(buffer, [b"a"], now_ms=T, size_max=1000, codec="brotli")
    assert buffer.size == 0
