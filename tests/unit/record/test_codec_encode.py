"""The compiled codec: records written, as parallel sequences or one by one, and difficult callers."""

import struct
from collections.abc import Callable, Iterator

import pytest

from kstore.errors import InvalidRecordError, InvalidTimestampError
from kstore.record._codec import (
    BatchBuffer,
    EncodedBatch,
    OpenBatch,
    check_records,
    decode_values,
    encode_batch,
    patch_crc,
    patch_header,
    patch_producer,
)
from tests.support.oracles.oracle_codec import OracleRecord, encode_record

T = 1_700_000_000_000
CREATE_TIME, LOG_APPEND_TIME = 0, 1


def payload(*records: OracleRecord) -> bytes:
    """The bytes of records with base offset 0 and base timestamp T."""
    return b"".join([encode_record(record, 0, T) for record in records])


# --- parallel sequences -----------------------------------------------------------------------------------------------


def encoded(
    values: object, keys: object = None, timestamps: object = None, headers: object = None, **options: int
) -> bytes:
    """The records, without the header, that ``encode_batch`` encodes."""
    buffer = BatchBuffer()
    encode(buffer, values, keys, timestamps, headers, **options)
    return bytes(buffer.view(61))


def encode(
    buffer: BatchBuffer,
    values: object,
    keys: object = None,
    timestamps: object = None,
    headers: object = None,
    *,
    start: int = 0,
    size_max: int = 1 << 20,
    timestamp_type: int = CREATE_TIME,
) -> EncodedBatch:
    return encode_batch(buffer, values, keys, timestamps, headers, start, T, size_max, timestamp_type)  # type: ignore[arg-type]


def test_values_alone_get_the_callers_time_and_rising_offsets() -> None:
    buffer = BatchBuffer()
    batch = encode(buffer, [b"a", None, b"", b"v" * 300])
    assert batch == EncodedBatch(4, 0, buffer.size, 4, T, T, 0)
    assert bytes(buffer.view(61)) == payload(
        OracleRecord(0, T, None, b"a"),
        OracleRecord(1, T, None, None),
        OracleRecord(2, T, None, b""),
        OracleRecord(3, T, None, b"v" * 300),
    )


def test_keys_timestamps_and_headers_are_taken_record_by_record() -> None:
    buffer = BatchBuffer()
    headers = [None, (), [("h", b"1")], (("h", None), ("i", b""))]
    batch = encode(buffer, (b"a", b"b", b"c", None), [b"k", None, b"", b"x"], [T + 5, None, T + 9, T + 9], headers)
    assert batch == EncodedBatch(4, 0, buffer.size, 4, T + 5, T + 9, 2)
    assert bytes(buffer.view(61)) == b"".join(
        [
            encode_record(OracleRecord(0, T + 5, b"k", b"a"), 0, T + 5),
            encode_record(OracleRecord(1, T, None, b"b"), 0, T + 5),
            encode_record(OracleRecord(2, T + 9, b"", b"c", (("h", b"1"),)), 0, T + 5),
            encode_record(OracleRecord(3, T + 9, b"x", None, (("h", None), ("i", b""))), 0, T + 5),
        ]
    )


def test_other_bytes_like_objects_and_iterables_take_the_slow_way_to_the_same_bytes() -> None:
    plain = encoded([b"a", b"bb"], [b"k", b"l"], [T, T + 1], [[("h", b"1")], []])
    other = encoded(
        [bytearray(b"a"), memoryview(b"xbbx")[1:3]],
        [memoryview(b"k"), bytearray(b"l")],
        [T, Number(T + 1)],
        [iter([["h", bytearray(b"1")]]), None],
    )
    assert plain == other
    assert encoded([bytearray(b"a"), b"b"]) == encoded([b"a", b"b"])


class Number:
    """An integer by its ``__index__``."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def test_the_header_of_an_encoded_batch_lacks_only_what_the_log_knows() -> None:
    buffer = BatchBuffer()
    encode(buffer, [b"a", b"b"], None, [T + 1, T])
    fields = struct.unpack(">qiibIhiqqqhii", buffer.view(0, 61))
    assert fields == (0, buffer.size - 12, -1, 2, 0, 0, 1, T + 1, T + 1, -1, -1, -1, 2)
    patch_header(buffer, 0, 2**62, 9)
    patch_producer(buffer, 0, 2**40, 7, 2**31 - 1)
    patch_crc(buffer, 0, 0xFFFFFFFE)
    fields = struct.unpack(">qiibIhiqqqhii", buffer.view(0, 61))
    assert fields == (2**62, buffer.size - 12, 9, 2, 0xFFFFFFFE, 0, 1, T + 1, T + 1, 2**40, 7, 2**31 - 1, 2)


@pytest.mark.parametrize("position", [-1, 1, 2**62])
def test_a_header_outside_the_buffer_is_not_patched(position: int) -> None:
    buffer = BatchBuffer()
    encode(buffer, [b""])
    buffer.truncate(61)
    patches: list[Callable[[], None]] = [
        lambda: patch_header(buffer, position, 0, 0),
        lambda: patch_producer(buffer, position, 0, 0, 0),
        lambda: patch_crc(buffer, position, 0),
    ]
    for patch in patches:
        with pytest.raises(ValueError, match="expected a batch in the 61 bytes"):
            patch()


def test_append_time_is_the_batchs_and_leaves_the_records_their_own() -> None:
    buffer = BatchBuffer()
    batch = encode(buffer, [b"a", b"b"], None, [T - 9, T - 5], timestamp_type=LOG_APPEND_TIME)
    assert (batch.base_timestamp, batch.max_timestamp, batch.max_timestamp_delta_offset) == (T - 9, T, 0)
    assert struct.unpack_from(">h", buffer, 21) == (8,)
    assert check_records(buffer, 61, buffer.size, 2, 1, T - 9).max_timestamp == T - 5


def test_a_batch_takes_as_many_records_as_fit() -> None:
    values = [b"v" * 100] * 10
    one = len(encoded(values[:1]))
    buffer = BatchBuffer()
    for size_max, taken in ((61 + 3 * one, 3), (61 + 3 * one - 1, 2), (61 + one, 1)):
        buffer.clear()
        batch = encode(buffer, values, start=4, size_max=size_max)
        assert (batch.stop, batch.record_count, buffer.size) == (4 + taken, taken, 61 + taken * one)


@pytest.mark.parametrize("keys", [None, [None] * 3], ids=["values-alone", "with-keys"])
def test_a_first_record_that_does_not_fit_writes_nothing_and_tells_its_size(keys: list[None] | None) -> None:
    buffer = BatchBuffer()
    buffer.extend(b"before")
    values = [b"a", b"v" * 5000, b"b"]
    needed = 61 + len(encoded([values[1]]))
    batch = encode(buffer, values, keys, start=1, size_max=needed - 1)
    assert (batch.stop, batch.size, batch.record_count) == (1, needed, 0)
    assert bytes(buffer) == b"before"
    assert encode(buffer, values, keys, start=1, size_max=needed).stop == 2


def test_batches_follow_each_other_in_the_buffer() -> None:
    buffer = BatchBuffer()
    first = encode(buffer, [b"a", b"b", b"c"], start=1)
    second = encode(buffer, [b"d"])
    assert (first.position, second.position) == (0, first.size)
    assert buffer.size == first.size + second.size


def test_a_batch_larger_than_the_buffer_makes_it_grow() -> None:
    values = [bytes([i]) * 1000 for i in range(100)]
    buffer = BatchBuffer()
    encode(buffer, values)
    assert decode_values(buffer, 61, buffer.size, 100, 0, 99) == values


BAD_ARGUMENTS = {
    "str-value": (([b"a", "text"],), TypeError, "record 1: value must be bytes or None, not str"),
    "int-value": (([b"a", 5],), TypeError, "record 1: value must be bytes or None, not int"),
    "str-key": (([b"a", b"b"], [b"k", "text"]), TypeError, "record 1: key must be bytes or None, not str"),
    "str-timestamp": (([b"a"], None, ["now"]), TypeError, "record 0: "),
    "float-timestamp": (([b"a"], None, [1.5]), TypeError, "record 0: "),
    "negative-timestamp": (([b"a", b"b"], None, [1, -2]), InvalidTimestampError, "record 1: a timestamp of -2 ms"),
    "huge-timestamp": (([b"a"], None, [2**63]), InvalidTimestampError, "record 0: a timestamp of 9223372036854775808"),
    "str-headers": (([b"a"], None, None, ["text"]), TypeError, "record 0: headers must be"),
    "header-key": (([b"a"], None, None, [[(1, b"1")]]), TypeError, "record 0: a header's key must be str or bytes"),
    "surrogate": (([b"a"], None, None, [[("\udfff", b"1")]]), InvalidRecordError, "record 0: .* UTF-8"),
    "fewer-keys": (([b"a", b"b"], [b"k"]), ValueError, "1 keys, expected one for each of the 2 values"),
    "more-headers": (([b"a"], None, None, [None, None]), ValueError, "2 headers, expected one for each of the 1"),
    "iterator": ((iter([b"a"]),), TypeError, "values must be a list or a tuple"),
    "bytes": ((b"abc",), TypeError, "values must be a list or a tuple, not bytes"),
    "keys-iterator": (([b"a"], iter([b"k"])), TypeError, "keys must be a list or a tuple"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_a_bad_argument_leaves_the_buffer_as_it_was(name: str) -> None:
    arguments, error, message = BAD_ARGUMENTS[name]
    buffer = BatchBuffer()
    buffer.extend(b"before")
    with pytest.raises(error, match=message):
        encode(buffer, *arguments)
    buffer.extend(b"+")
    assert bytes(buffer) == b"before+"


def test_a_refused_record_is_named_by_its_index() -> None:
    with pytest.raises(InvalidTimestampError) as caught:
        encoded([b"a", b"b"], None, [0, -5])
    assert [error.index for error in caught.value.record_errors] == [1]


@pytest.mark.parametrize(("start", "size_max"), [(-1, 100), (2, 100), (0, 60)])
def test_a_start_or_limit_that_cannot_be_is_refused(start: int, size_max: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        encode(BatchBuffer(), [b"a"], start=start, size_max=size_max)


def test_a_batch_has_no_third_timestamp_type() -> None:
    with pytest.raises(ValueError, match="timestamp type 2"):
        encode(BatchBuffer(), [b"a"], timestamp_type=2)


# --- callers that change what is being encoded ------------------------------------------------------------------------


class Saboteur:
    """Headers that run ``act`` when they are iterated."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.act()
        return iter([("h", b"1")])


@pytest.mark.parametrize("victim", ["values", "keys", "timestamps", "headers"])
def test_a_sequence_that_loses_items_while_it_is_encoded_is_an_error(victim: str) -> None:
    arguments: dict[str, list[object]] = {
        "values": [bytes([i]) * 50 for i in range(100)],
        "keys": [bytes([i]) * 50 for i in range(100)],
        "timestamps": [T + i for i in range(100)],
        "headers": [None] * 100,
    }
    arguments["headers"][3] = Saboteur(arguments[victim].clear)
    buffer = BatchBuffer()
    with pytest.raises(RuntimeError, match=f"{victim} changed their size"):
        encode(buffer, *arguments.values())
    assert buffer.size == 0


def test_a_buffer_cannot_be_used_by_the_code_that_its_own_batch_runs() -> None:
    buffer = BatchBuffer()
    for act in (buffer.clear, lambda: encode(buffer, [b"x"]), lambda: buffer.extend(b"x")):
        with pytest.raises(BufferError):
            encode(buffer, [b"a", b"b"], None, None, [None, Saboteur(act)])
        assert buffer.size == 0


def test_a_view_taken_while_encoding_stops_growth_but_nothing_else() -> None:
    buffer = BatchBuffer()
    views: list[memoryview] = []
    with pytest.raises(BufferError, match="cannot grow"):
        encode(buffer, [b"a", bytes(100_000)], None, None, [Saboteur(lambda: views.append(buffer.view())), None])
    views.clear()
    assert encode(buffer, [b"a"]).record_count == 1


def test_an_interrupt_while_encoding_leaves_the_buffer_as_it_was() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    buffer = BatchBuffer()
    with pytest.raises(KeyboardInterrupt):
        encode(buffer, [b"a", b"b"], None, None, [None, Saboteur(interrupt)])
    assert encode(buffer, [b"a"]).position == 0


# --- one by one -------------------------------------------------------------------------------------------------------


def test_an_open_batch_grows_record_by_record_and_appears_when_it_is_closed() -> None:
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, 1000)
    assert (batch.size, batch.record_count, batch.is_open) == (61, 0, True)
    assert batch.append(b"a", b"k", [("h", None)], T)
    assert batch.append(None, timestamp=T + 3)
    assert (batch.record_count, batch.last_offset_delta, buffer.size) == (2, 1, 0)
    closed = batch.close()
    assert closed == EncodedBatch(-1, 0, buffer.size, 2, T, T + 3, 1)
    assert not batch.is_open
    assert bytes(buffer.view(61)) == payload(
        OracleRecord(0, T, b"k", b"a", (("h", None),)), OracleRecord(1, T + 3, None, None)
    )


def test_a_record_that_finds_no_room_leaves_the_batch_as_it_was() -> None:
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, 61 + 9 + 3 + 9)
    assert batch.append(b"v", b"k")
    assert not batch.append(b"value that is too long", b"k")
    assert not batch.append(b"v", b"k", [("head", b"er")])
    assert batch.append(b"v", b"k", [("h", b"")])
    assert batch.size == batch.size_max == 82
    assert not batch.append(None)
    assert batch.close().record_count == 2


def test_offset_deltas_may_leave_gaps_but_not_go_back() -> None:
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, 1000)
    assert batch.append(b"a", offset_delta=5)
    for delta in (5, 4, -1, 2**31):
        with pytest.raises(ValueError, match=f"offset delta {delta}, expected above 5"):
            batch.append(b"b", offset_delta=delta)
    assert batch.append(b"b", offset_delta=2**31 - 1)
    with pytest.raises(ValueError):
        batch.append(b"c")
    batch.close()
    assert check_records(buffer, 61, buffer.size, 2, 2**31 - 1)[:2] == (5, 2**31 - 1)


def test_a_closed_or_aborted_batch_takes_nothing_more() -> None:
    for end in (OpenBatch.close, OpenBatch.abort):
        batch = OpenBatch(BatchBuffer(), 1000)
        end(batch)
        with pytest.raises(ValueError, match="the batch is closed"):
            batch.append(b"a")
        with pytest.raises(ValueError, match="the batch is closed"):
            batch.close()
        batch.abort()


def test_an_aborted_batch_leaves_the_buffer_where_it_began() -> None:
    buffer = BatchBuffer()
    buffer.extend(b"before")
    batch = OpenBatch(buffer, 1000)
    batch.append(b"a")
    batch.abort()
    assert bytes(buffer) == b"before"


def test_an_empty_batch_is_its_header() -> None:
    buffer = BatchBuffer()
    closed = OpenBatch(buffer, 61).close()
    assert closed == EncodedBatch(-1, 0, 61, 0, -1, -1, -1)
    assert buffer.size == 61
