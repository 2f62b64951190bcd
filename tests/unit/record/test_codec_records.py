"""The compiled codec: records written and read, and the hostile bytes that it refuses (Kafka: DefaultRecordTest)."""

import gc
import sys
from array import array
from collections.abc import Callable, Iterator

import pytest

from kstore.errors import CorruptRecordError
from kstore.record._codec import (
    BatchBuffer,
    OpenBatch,
    Record,
    RecordCursor,
    check_records,
    decode_offsets_timestamps,
    decode_values,
)
from tests.decoded import texts
from tests.support.oracles.oracle_codec import OracleRecord, encode_record, varint

T = 1_700_000_000_000
CREATE_TIME, LOG_APPEND_TIME = 0, 1


def payload(*records: OracleRecord) -> bytes:
    """The bytes of records with base offset 0 and base timestamp T."""
    return b"".join([encode_record(record, 0, T) for record in records])


def read(data: bytes, count: int = 1, last_offset_delta: int = 9) -> list[Record]:
    return list(RecordCursor(data, 0, len(data), count, 0, T, last_offset_delta, CREATE_TIME, -1, -1))


def body(*parts: bytes) -> bytes:
    """A record whose body is ``parts``, with the right length."""
    joined = b"".join(parts)
    return varint(len(joined)) + joined


def refused(data: bytes, message: str, count: int = 1) -> None:
    """Every way of reading refuses ``data`` with the same error."""
    ways: list[Callable[[], object]] = [
        lambda: check_records(data, 0, len(data), count, 9),
        lambda: read(data, count),
        lambda: decode_values(data, 0, len(data), count, 0, 9),
        lambda: decode_offsets_timestamps(data, 0, len(data), count, 0, T, 9, CREATE_TIME, -1),
    ]
    for way in ways:
        with pytest.raises(CorruptRecordError, match=message):
            way()


# --- round trips ------------------------------------------------------------------------------------------------------

ROUND_TRIPS = {
    "empty": OracleRecord(0, T, b"", b""),
    "nulls": OracleRecord(0, T, None, None),
    "key-and-value": OracleRecord(0, T, b"hi", b"there"),
    "null-key": OracleRecord(0, T, None, b"there"),
    "tombstone": OracleRecord(0, T, b"hi", None),
    "headers": OracleRecord(
        0, T, b"k", b"v", (("foo", b"value"), ("bar", None), ("", b""), ("Aä€😀", b"\x00"), ("foo", b""))
    ),
    "long": OracleRecord(0, T, b"k" * 200, b"v" * 20_000, (("h" * 300, b"x" * 9000),)),
    "later-offset-and-time": OracleRecord(9, T + 2**40, b"k", b"v"),
    "earlier-time": OracleRecord(3, T - 86_400_000, b"k", b"v"),
    "no-time": OracleRecord(3, -1, b"k", b"v"),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_record_is_read_as_it_was_written(name: str) -> None:
    wanted = ROUND_TRIPS[name]
    (found,) = read(payload(wanted))
    assert (found.offset, found.timestamp, found.key, found.value, found.headers) == wanted
    assert (found.timestamp_type, found.leader_epoch) == ("CreateTime", -1)


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_an_open_batch_writes_the_bytes_of_the_format(name: str) -> None:
    record = ROUND_TRIPS[name]
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, 1 << 20, T)
    assert batch.append(record.value, record.key, record.headers, record.timestamp, record.offset)
    batch.close()
    assert bytes(buffer.view(61)) == payload(record)


def test_records_have_the_batchs_epoch_and_append_time() -> None:
    data = payload(OracleRecord(0, T, b"k", b"v"), OracleRecord(1, T + 5, None, None))
    found = list(RecordCursor(data, 0, len(data), 2, 100, T, 1, LOG_APPEND_TIME, T + 99, 7))
    assert [(record.offset, record.timestamp, record.timestamp_type, record.leader_epoch) for record in found] == [
        (100, T + 99, "LogAppendTime", 7),
        (101, T + 99, "LogAppendTime", 7),
    ]


def test_any_negative_key_or_value_size_reads_as_null() -> None:
    (found,) = read(body(b"\0", varint(0), varint(0), varint(-2), varint(-(2**31)), varint(0)))
    assert (found.key, found.value) == (None, None)
    (found,) = read(body(b"\0", varint(0), varint(0), varint(-1), varint(-1), varint(1), varint(1), b"h", varint(-3)))
    assert found.headers == (("h", None),)


def test_the_attributes_byte_of_a_record_means_nothing_yet() -> None:
    (found,) = read(body(b"\xff", varint(0), varint(0), varint(-1), varint(0), varint(0)))
    assert found.value == b""


# --- what is refused --------------------------------------------------------------------------------------------------

START = (b"\0", varint(0), varint(0))  # attributes, timestamp delta, offset delta
HOSTILE: dict[str, tuple[bytes, str]] = {
    "header-count-too-high": (
        body(*START, varint(-1), varint(-1), varint(2), varint(1), b"h", varint(2), b"vw"),
        "varint is longer",
    ),
    "header-count-too-low": (
        body(*START, varint(-1), varint(-1), varint(1), varint(1), b"h", varint(-1), varint(1), b"i", varint(-1)),
        "fields leave 3 bytes",
    ),
    "header-count-negative": (body(*START, varint(-1), varint(-1), varint(-1)), "-1 headers"),
    "header-count-huge": (body(*START, varint(-1), varint(-1), varint(2**31 - 1), b"\0" * 9), "2147483647 headers"),
    "key-size": (body(*START, varint(105), b"short", varint(-1), varint(0)), "a field of 105 bytes"),
    "key-size-huge": (body(*START, varint(2**31 - 1), b"short", varint(-1), varint(0)), "a field of 2147483647 bytes"),
    "value-size": (body(*START, varint(-1), varint(105), b"short", varint(0)), "a field of 105 bytes"),
    "value-size-one-too-large": (body(*START, varint(-1), varint(5), b"abc", varint(0)), "a field of 5 bytes"),
    "header-count-one-too-large": (
        body(*START, varint(-1), varint(-1), varint(2), varint(1), b"h", varint(-1)),
        "2 headers",
    ),
    "value-takes-the-header-count": (body(*START, varint(-1), varint(4), b"abc", varint(0)), "varint is longer"),
    "header-key-size": (
        body(*START, varint(-1), varint(-1), varint(1), varint(105), b"k", varint(0)),
        "header key of 105",
    ),
    "header-key-null": (body(*START, varint(-1), varint(-1), varint(1), varint(-1), varint(0)), "header key of -1"),
    "header-value-size": (
        body(*START, varint(-1), varint(-1), varint(1), varint(1), b"k", varint(105), b"v"),
        "a field of 105 bytes",
    ),
    "no-fields": (body() + b"\0" * 9, "record size 0, expected 6"),
    "five-bytes": (body(*START, varint(-1), varint(-1)) + b"\0", "record size 5, expected 6"),
    "ends-in-the-timestamp": (body(b"\0", b"\x80" * 7), "varint is longer"),
    "timestamp-of-eleven-bytes": (
        body(b"\0", b"\x80" * 10 + b"\x01", varint(0), varint(-1), varint(-1), varint(0)),
        "varint is longer",
    ),
    "offset-of-six-bytes": (
        body(b"\0", varint(0), b"\x80" * 5 + b"\x01", varint(-1), varint(-1), varint(0)),
        "varint is longer",
    ),
    "ends-in-the-key-size": (body(*START, b"\x80\x80\x80"), "varint is longer"),
    "size-of-six-bytes": (b"\x80" * 5 + b"\x01" + b"\0" * 20, "varint is longer"),
    "size-negative": (varint(-3) + b"\0" * 20, "record size -3"),
    "size-beyond-the-payload": (varint(200) + b"\0" * 20, "record size 200, expected 6 to the 20 bytes"),
    "size-huge": (varint(2**31 - 1) + b"\0" * 20, "record size 2147483647"),
    "body-larger-than-its-fields": (body(*START, varint(-1), varint(-1), varint(0), b"\0"), "fields leave 1 bytes"),
    "offset-negative": (body(b"\0", varint(0), varint(-1), varint(-1), varint(-1), varint(0)), "offset delta -1"),
    "offset-beyond-the-last": (
        body(b"\0", varint(0), varint(10), varint(-1), varint(-1), varint(0)),
        "offset delta 10",
    ),
    "nothing": (b"", "a record count of 1, expected at most what 0 bytes"),
    "bytes-left": (payload(OracleRecord(0, T, None, b"v")) + b"\0", "1 bytes left behind 1 records"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_that_cannot_be_is_refused(name: str) -> None:
    refused(*HOSTILE[name])


def test_offsets_that_do_not_rise_are_refused() -> None:
    for second in (0, 1):
        data = payload(OracleRecord(1, T, None, b"a"), OracleRecord(second, T, None, b"b"))
        refused(data, f"record 1: offset delta {second}, expected more", count=2)


@pytest.mark.parametrize(
    ("count", "message"), [(0, "left behind 0"), (1, "left behind 1"), (3, "varint"), (-1, "of -1")]
)
def test_another_count_than_that_of_the_records_is_refused(count: int, message: str) -> None:
    refused(payload(OracleRecord(0, T, b"k", b"v" * 20), OracleRecord(1, T, b"k", b"v")), message, count)


def test_a_count_that_the_bytes_cannot_hold_allocates_nothing() -> None:
    data = payload(OracleRecord(0, T, b"k", b"v"))
    for way in (check_records, decode_values):
        with pytest.raises(CorruptRecordError, match="expected at most what 9 bytes can hold"):
            way(data, 0, len(data), 2**31 - 1, *((2**31 - 1,) if way is check_records else (0, 2**31 - 1)))


def test_an_error_says_which_record_and_which_byte() -> None:
    good = payload(OracleRecord(0, T, b"k", b"v"))
    bad = body(b"\0", varint(0), varint(1), varint(50), b"short")
    with pytest.raises(CorruptRecordError) as caught:
        check_records(b"xx" + good + bad, 2, 2 + len(good) + len(bad), 2, 9)
    assert caught.value.position == 2 + len(good) + 4
    assert str(caught.value) == (
        "record 1: a field of 50 bytes, expected at most the 5 that remain of the record at position 15"
    )


@pytest.mark.parametrize(("position", "stop"), [(-1, 5), (0, 10), (6, 5), (0, 2**40)])
def test_a_payload_outside_the_data_is_refused(position: int, stop: int) -> None:
    data = payload(OracleRecord(0, T, b"k", b"v"))
    assert len(data) == 9
    with pytest.raises(CorruptRecordError, match="expected at most 9"):
        check_records(data, position, stop, 1, 0)


def test_offsets_that_would_overflow_are_refused() -> None:
    data = payload(OracleRecord(0, T, None, b"v"))
    for base_offset in (-1, 2**63 - 10, 2**63 - 1):
        with pytest.raises(CorruptRecordError, match="base offset"):
            RecordCursor(data, 0, len(data), 1, base_offset, T, 9, CREATE_TIME, -1, -1)
        with pytest.raises(CorruptRecordError, match="base offset"):
            decode_values(data, 0, len(data), 1, base_offset, 9)
    (found,) = RecordCursor(data, 0, len(data), 1, 2**63 - 11, T, 9, CREATE_TIME, -1, -1)
    assert found.offset == 2**63 - 11


def test_timestamps_beyond_64_bits_wrap_as_javas_do() -> None:
    data = payload(OracleRecord(0, T + 10, None, b"v"))
    (found,) = RecordCursor(data, 0, len(data), 1, 0, 2**63 - 1, 0, CREATE_TIME, -1, -1)
    assert found.timestamp == -(2**63) + 9


def test_header_keys_are_the_text_that_java_makes_of_their_bytes() -> None:
    keys = texts()
    headers = tuple([(data, b"%d" % number) for number, (data, _) in enumerate(keys)])
    (found,) = read(payload(OracleRecord(0, T, None, None, headers)))
    assert found.headers == tuple([(text, value) for (_, text), (_, value) in zip(keys, headers, strict=True)])
    assert found.header_bytes == headers


UTF8_EDGES = "\0\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"


@pytest.mark.parametrize("key", ["", *UTF8_EDGES, UTF8_EDGES], ids=ascii)
def test_header_keys_of_every_utf8_length_are_read(key: str) -> None:
    (found,) = read(payload(OracleRecord(0, T, None, None, ((key, b""),))))
    assert found.headers == ((key, b""),)


# --- what a check tells -----------------------------------------------------------------------------------------------


def test_a_check_sums_up_the_records() -> None:
    data = payload(
        OracleRecord(2, T, b"k", b"a"),
        OracleRecord(4, T + 7, None, b"b"),
        OracleRecord(5, T - 3, None, None),
        OracleRecord(8, T + 7, b"k", b"d"),
    )
    summary = check_records(data, 0, len(data), 4, 9, T)
    assert summary == (2, 8, T + 7, 4, T - 3, 2)
    assert summary.max_timestamp_offset_delta == 4
    assert check_records(data, 0, len(data), 4, 9).max_timestamp == 7


def test_a_check_of_an_empty_batch_finds_nothing() -> None:
    assert check_records(b"", 0, 0, 0, 5, T) == (-1, -1, -1, -1, -1, 0)


# --- windows ----------------------------------------------------------------------------------------------------------

OFFSETS = [10, 12, 13, 17]
WINDOWS = {
    "all": ((-(2**63), 2**63 - 1), OFFSETS),
    "exactly": ((10, 18), OFFSETS),
    "from-a-record": ((12, 2**63 - 1), [12, 13, 17]),
    "from-a-gap": ((14, 2**63 - 1), [17]),
    "up-to-a-record": ((0, 13), [10, 12]),
    "one": ((12, 13), [12]),
    "in-a-gap": ((14, 17), []),
    "before": ((0, 10), []),
    "behind": ((18, 100), []),
    "backwards": ((17, 10), []),
    "far-before": ((-(2**63), -(2**63)), []),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_gives_the_records_whose_offsets_are_in_it(name: str) -> None:
    (first, stop), wanted = WINDOWS[name]
    data = b"".join(
        [encode_record(OracleRecord(offset, T + offset, None, b"%d" % offset), 10, T) for offset in OFFSETS]
    )
    cursor = RecordCursor(data, 0, len(data), 4, 10, T, 7, CREATE_TIME, -1, -1, first, stop)
    assert [record.offset for record in cursor] == wanted
    assert decode_values(data, 0, len(data), 4, 10, 7, first, stop) == [b"%d" % offset for offset in wanted]
    offsets, timestamps = decode_offsets_timestamps(data, 0, len(data), 4, 10, T, 7, CREATE_TIME, -1, first, stop)
    assert offsets == array("q", wanted)
    assert timestamps == array("q", [T + offset for offset in wanted])


def test_a_window_does_not_hide_damage_outside_it() -> None:
    data = payload(OracleRecord(0, T, None, b"v")) + body(b"\0", varint(0), varint(1), varint(50), b"short")
    with pytest.raises(CorruptRecordError):
        RecordCursor(data, 0, len(data), 2, 0, T, 9, CREATE_TIME, -1, -1, 0, 1)
    with pytest.raises(CorruptRecordError):
        decode_values(data, 0, len(data), 2, 0, 9, 0, 1)


def test_append_time_is_every_timestamp_of_a_column() -> None:
    data = payload(OracleRecord(0, T, None, b"v"), OracleRecord(1, T + 1, None, b"v"))
    _, timestamps = decode_offsets_timestamps(data, 0, len(data), 2, 0, T, 1, LOG_APPEND_TIME, 55)
    assert timestamps == array("q", [55, 55])


# --- the cursor -------------------------------------------------------------------------------------------------------


def test_the_whole_payload_is_checked_before_the_first_record_is_given() -> None:
    data = payload(OracleRecord(0, T, None, b"v")) + b"\xff"
    with pytest.raises(CorruptRecordError):
        RecordCursor(data, 0, len(data), 1, 0, T, 9, CREATE_TIME, -1, -1)


def test_a_cursor_that_is_exhausted_stays_so_and_lets_its_buffer_go() -> None:
    data = bytearray(payload(OracleRecord(0, T, None, b"v")))
    cursor = RecordCursor(data, 0, len(data), 1, 0, T, 9, CREATE_TIME, -1, -1)
    with pytest.raises(BufferError):
        data.clear()
    assert len(list(cursor)) == 1
    assert list(cursor) == []
    data.clear()


def test_a_buffer_that_changes_after_the_check_cannot_lead_a_cursor_astray() -> None:
    records = [OracleRecord(offset, T, b"key", b"value", (("h", b"1"),)) for offset in range(3)]
    original = payload(*records)
    for position in range(len(original)):
        data = bytearray(original)
        cursor = RecordCursor(data, 0, len(data), 3, 0, T, 9, CREATE_TIME, -1, -1)
        data[position:] = b"\xfe" * (len(data) - position)
        try:
            assert len(list(cursor)) <= 3
        except CorruptRecordError:
            data.clear()


def test_code_that_the_garbage_collector_runs_cannot_pull_the_buffer_from_under_a_cursor() -> None:
    data = payload(*[OracleRecord(offset, T, b"k", b"v", (("h", b"1"),) * 50) for offset in range(40)])
    cursor: Iterator[Record] | None = None
    seen: list[object] = []

    class Meddler:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                seen.append(sum(1 for _ in cursor or ()))
            except RuntimeError:
                seen.append(RuntimeError)

    threshold = gc.get_threshold()
    try:
        for count in range(1, 20):
            cursor = RecordCursor(bytearray(data), 0, len(data), 40, 0, T, 99, CREATE_TIME, -1, -1)
            Meddler()
            gc.set_threshold(count, 1, 1)
            try:
                for record in cursor:
                    assert record.headers == (("h", b"1"),) * 50
            except RuntimeError:
                pass
            gc.set_threshold(*threshold)
    finally:
        gc.set_threshold(*threshold)
    # Later versions of Python collect only between byte codes, so never within the codec.
    assert seen if sys.version_info >= (3, 12) else RuntimeError in seen
