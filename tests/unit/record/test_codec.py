"""The compiled codec: varints, the hash, a record as an object, the batch buffer, and its stub."""

import ast
import copy
import gc
import inspect
import pickle
import sys
import weakref
from pathlib import Path

import pytest

from kstore.errors import CorruptRecordError, InvalidRecordError
from kstore.record import _codec
from kstore.record._codec import (
    BatchBuffer,
    ConsumerRecord,
    OpenBatch,
    Record,
    decode_varint,
    decode_varlong,
    encode_varint,
    encode_varlong,
    murmur2,
)

# --- varints (Kafka: ByteUtilsTest) -----------------------------------------------------------------------------------

VARINTS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    -8192: "ff7f",
    8192: "808001",
    -8193: "818001",
    1048575: "feff7f",
    -1048576: "ffff7f",
    1048576: "80808001",
    -1048577: "81808001",
    134217727: "feffff7f",
    -134217728: "ffffff7f",
    134217728: "8080808001",
    -134217729: "8180808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
}
VARLONGS = VARINTS | {
    17179869183: "feffffff7f",
    -17179869184: "ffffffff7f",
    17179869184: "808080808001",
    -17179869185: "818080808001",
    2199023255551: "feffffffff7f",
    -2199023255552: "ffffffffff7f",
    2199023255552: "80808080808001",
    281474976710655: "feffffffffff7f",
    281474976710656: "8080808080808001",
    36028797018963967: "feffffffffffff7f",
    36028797018963968: "808080808080808001",
    4611686018427387903: "feffffffffffffff7f",
    4611686018427387904: "80808080808080808001",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


@pytest.mark.parametrize("value", VARINTS)
def test_a_varint_has_exactly_these_bytes(value: int) -> None:
    data = bytes.fromhex(VARINTS[value])
    assert encode_varint(value) == data
    assert decode_varint(data) == (value, len(data))


@pytest.mark.parametrize("value", VARLONGS)
def test_a_varlong_has_exactly_these_bytes(value: int) -> None:
    data = bytes.fromhex(VARLONGS[value])
    assert encode_varlong(value) == data
    assert decode_varlong(data) == (value, len(data))


def test_every_power_of_two_and_its_neighbours_make_the_round_trip_in_the_size_of_their_bits() -> None:
    for power in range(63):
        for value in {2**power - 1, 2**power, 2**power + 1, -(2**power) - 1, -(2**power), -(2**power) + 1}:
            bits = max((2 * value if value >= 0 else -2 * value - 1).bit_length(), 1)
            data = encode_varlong(value)
            assert len(data) == -(-bits // 7)
            assert decode_varlong(data) == (value, len(data))
            if power < 31:
                assert encode_varint(value) == data


def test_varints_read_on_from_a_position() -> None:
    assert decode_varint(b"\xff\x80\x01\x02", 1) == (64, 3)
    assert decode_varlong(memoryview(b"\xff\x80\x01\x02"), 3) == (1, 4)


@pytest.mark.parametrize(
    "data", ["", "80", "ffffffff", "8080808080", "ffffffffffff01"], ids=lambda data: data or "empty"
)
def test_a_varint_that_does_not_end_is_refused(data: str) -> None:
    with pytest.raises(CorruptRecordError, match="no varint of at most 5 bytes at position 0"):
        decode_varint(bytes.fromhex(data))


@pytest.mark.parametrize("data", ["", "80", "ff" * 9, "80" * 10, "ff" * 10 + "01"], ids=lambda data: data or "empty")
def test_a_varlong_that_does_not_end_is_refused(data: str) -> None:
    with pytest.raises(CorruptRecordError, match="no varlong of at most 10 bytes"):
        decode_varlong(bytes.fromhex(data))


@pytest.mark.parametrize("position", [-1, 2, 3])
def test_a_position_outside_the_data_holds_no_varint(position: int) -> None:
    with pytest.raises(CorruptRecordError):
        decode_varint(b"\x00\x00", position)
    with pytest.raises(CorruptRecordError):
        decode_varlong(b"\x00\x00", position)


def test_padded_varints_and_bits_beyond_the_type_are_read_as_kafka_reads_them() -> None:
    assert decode_varint(b"\x80\x00") == (0, 2)
    assert decode_varint(b"\xfe\xff\xff\xff\x7f") == (2147483647, 5)
    assert decode_varlong(b"\xfe" + b"\xff" * 8 + b"\x7f") == (2**63 - 1, 10)


def test_a_number_too_large_for_a_varint_is_refused() -> None:
    with pytest.raises(OverflowError):
        encode_varint(2**31)
    with pytest.raises(OverflowError):
        encode_varlong(2**63)


# --- murmur2 ----------------------------------------------------------------------------------------------------------

HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", HASHES, ids=bytes.decode)
def test_a_key_has_the_hash_that_kafkas_partitioner_gives_it(key: bytes) -> None:
    assert murmur2(key) == HASHES[key]
    assert murmur2(bytearray(key)) == HASHES[key]


def test_the_empty_key_has_a_hash() -> None:
    assert murmur2(b"") == 275646681


# --- Record -----------------------------------------------------------------------------------------------------------


def record(**fields: object) -> Record:
    return Record(**({"offset": 7, "timestamp": 1_700_000_000_000} | fields))  # type: ignore[arg-type]


def test_a_record_has_its_fields_and_defaults() -> None:
    plain = Record(7, -1)
    assert (plain.offset, plain.timestamp, plain.timestamp_type) == (7, -1, "CreateTime")
    assert (plain.key, plain.value, plain.headers, plain.leader_epoch) == (None, None, (), -1)
    full = Record(1, 2, "LogAppendTime", b"k", b"v", (("h", None), ("h", b"1")), 5)
    assert (full.key, full.value, full.headers) == (b"k", b"v", (("h", None), ("h", b"1")))
    assert (full.timestamp_type, full.leader_epoch) == ("LogAppendTime", 5)


def test_records_are_equal_by_all_their_fields() -> None:
    assert record(key=b"k") == record(key=b"k")
    assert hash(record(key=b"k")) == hash(record(key=b"k"))
    others: list[dict[str, object]] = [
        {"offset": 8},
        {"timestamp": 1},
        {"timestamp_type": "LogAppendTime"},
        {"key": b""},
        {"value": b""},
        {"headers": (("h", None),)},
        {"leader_epoch": 0},
    ]
    for other in others:
        assert record() != record(**other)
    assert record() != (7, 1_700_000_000_000)


def test_a_records_repr_makes_an_equal_record() -> None:
    made = record(key=b"k", value=b"\x00", headers=(("h", b"1"),), leader_epoch=3)
    assert eval(repr(made)) == made


def test_a_record_can_be_pickled_and_copied() -> None:
    made = record(key=b"k", headers=(("h", b"1"),))
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.copy(made) == copy.deepcopy(made) == made


def test_a_record_cannot_be_changed() -> None:
    made = record()
    with pytest.raises(AttributeError):
        made.key = b"other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="a Record is immutable"):
        made.__init__(1, 2)  # type: ignore[misc]
    assert made == record()


@pytest.mark.parametrize("kind", [Record, ConsumerRecord, type(ConsumerRecord("t", 0, 0, 0).deserialized(1, 2))])
def test_no_kind_of_record_can_be_subclassed(kind: type) -> None:
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (kind,), {})


def test_headers_may_be_a_mapping() -> None:
    assert record(headers={"h": b"1", "i": None}).headers == (("h", b"1"), ("i", None))


def consumer_record(**fields: object) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 7, 1_700_000_000_000, **fields)  # type: ignore[arg-type]


def test_a_consumers_record_is_a_record_that_names_its_topic_and_partition() -> None:
    made = consumer_record(key=b"k", value=b"v", headers=(("h", b"1"),), leader_epoch=3)
    assert isinstance(made, Record)
    assert (made.topic, made.partition, made.offset, made.key, made.value) == ("t", 3, 7, b"k", b"v")
    assert eval(repr(made)) == made
    assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(eval(repr(made)))
    assert made != ConsumerRecord(
        "t", 4, 7, 1_700_000_000_000, key=b"k", value=b"v", headers=made.headers, leader_epoch=3
    )
    assert made != record(key=b"k", value=b"v", headers=(("h", b"1"),), leader_epoch=3)
    with pytest.raises(TypeError, match="a ConsumerRecord is immutable"):
        made.__init__("t", 1, 2, 3)  # type: ignore[misc]
    with pytest.raises(TypeError, match="topic must be str, not int"):
        ConsumerRecord(1, 2, 3, 4)  # type: ignore[arg-type]


def test_a_deserialized_record_holds_any_objects_and_can_be_part_of_a_cycle() -> None:
    made = consumer_record(headers=(("h", b"1"),), leader_epoch=3).deserialized("k", {"a": 1})
    assert isinstance(made, ConsumerRecord)
    assert (made.key, made.value, made.topic, made.offset, made.headers) == ("k", {"a": 1}, "t", 7, (("h", b"1"),))
    assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    assert repr(made).startswith("ConsumerRecord(topic='t', partition=3, offset=7, ")
    assert "key='k', value={'a': 1}" in repr(made)

    class Value:
        record: ConsumerRecord

    value = Value()
    value.record = made.deserialized(None, value)
    gone = weakref.ref(value)
    del value
    gc.collect()
    assert gone() is None


class Text(str):
    """A str that could hold a reference back to its record."""


class Bytes(bytes):
    """The same for bytes."""


class Pair(tuple[str, bytes]):
    """The same for a tuple."""


def test_a_record_holds_only_exact_types_so_that_it_can_be_part_of_no_cycle() -> None:
    made = record(
        key=Bytes(b"k"), value=bytearray(b"v"), headers=[Pair((Text("h"), Bytes(b"1"))), ["i", memoryview(b"2")]]
    )
    assert type(made.key) is bytes
    assert type(made.value) is bytes
    assert made.headers == (("h", b"1"), ("i", b"2"))
    assert type(made.headers) is tuple
    for pair in made.headers:
        assert [type(pair), type(pair[0]), type(pair[1])] == [tuple, str, bytes]


def test_a_record_has_no_garbage_collector_header() -> None:
    assert not gc.is_tracked(record())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": "text"}, "key must be bytes or None, not str"),
        ({"value": 3}, "value must be bytes or None, not int"),
        ({"headers": "text"}, "headers must be a mapping or an iterable of .* not str"),
        ({"headers": [("h", b"1", b"2")]}, "a header must be a .* tuple"),
        ({"headers": ["h1"]}, "a header must be a .* tuple, not str"),
        ({"headers": [(None, b"1")]}, "a header's key must be str or bytes, not NoneType"),
        ({"headers": [(1, b"1")]}, "a header's key must be str or bytes, not int"),
        ({"headers": [("h", "1")]}, "a header's value must be bytes or None, not str"),
        ({"headers": 5}, "headers must be a mapping or an iterable"),
        ({"offset": 1.5}, "float"),
        ({"timestamp": 1.5}, "float"),
    ],
)
def test_a_field_of_another_type_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        record(**fields)


def test_a_header_key_that_utf8_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="UTF-8"):
        record(headers=[("\ud800", b"")])


def test_a_header_key_may_be_bytes() -> None:
    latin = "gr\u00f6\u00dfe".encode("latin-1")
    made = record(headers=[(latin, b"1"), (bytearray(b"text"), None), ("text", b"2")])
    assert made.headers == (("gr\ufffd\ufffde", b"1"), ("text", None), ("text", b"2"))
    assert made.header_bytes == ((latin, b"1"), (b"text", None), (b"text", b"2"))
    assert record(headers=made.header_bytes) == made
    assert pickle.loads(pickle.dumps(made)).header_bytes == made.header_bytes
    # Alike as text, and yet another record.
    assert record(headers=made.headers) != made
    assert record(headers={b"text": b"1"}) == record(headers={"text": b"1"})


def test_headers_that_are_all_text_are_not_made_again() -> None:
    made = record(headers=[("a", b"1"), ("b", None)])
    assert made.headers is made.headers
    assert record().header_bytes == ()


def test_an_unknown_timestamp_type_is_refused() -> None:
    with pytest.raises(ValueError, match="timestamp_type 'Later', expected one of CreateTime"):
        record(timestamp_type="Later")


def test_records_that_are_dropped_and_made_again_do_not_share_fields() -> None:
    for i in range(1000):
        made = record(offset=i, key=b"%d" % i, headers=(("h", b"%d" % i),))
        assert (made.offset, made.key, made.value, made.headers) == (i, b"%d" % i, None, (("h", b"%d" % i),))


def test_records_give_their_memory_back() -> None:
    key = bytes(1000)
    before = sys.getrefcount(key)
    for _ in range(200):
        record(key=key, value=key, headers=(("h", key),))
    assert sys.getrefcount(key) == before


# --- BatchBuffer ------------------------------------------------------------------------------------------------------


def test_a_buffer_grows_and_keeps_its_content() -> None:
    buffer = BatchBuffer(10)
    data = bytes(range(256)) * 50
    for start in range(0, len(data), 300):
        buffer.extend(data[start : start + 300])
    assert buffer.size == len(buffer) == len(data)
    assert bytes(buffer) == data
    assert buffer.capacity >= len(data)


def test_a_view_shows_part_of_the_buffer_without_a_copy() -> None:
    buffer = BatchBuffer()
    buffer.extend(b"0123456789")
    assert bytes(buffer.view()) == b"0123456789"
    assert bytes(buffer.view(3)) == b"3456789"
    assert bytes(buffer.view(3, 5)) == b"34"
    view = buffer.view()
    view[0:1] = b"x"
    assert bytes(buffer.view(0, 2)) == b"x1"


def test_a_buffer_refuses_to_grow_under_a_view() -> None:
    buffer = BatchBuffer()
    buffer.extend(b"abc")
    view = buffer.view()
    with pytest.raises(BufferError, match="while a view of it is alive"):
        buffer.extend(bytes(buffer.capacity))
    with pytest.raises(BufferError):
        buffer.reserve(1 << 20)
    assert bytes(view) == b"abc"
    view.release()
    buffer.extend(bytes(buffer.capacity))
    assert buffer.size == 3 + 4096


def test_a_buffer_is_cleared_and_truncated_in_place() -> None:
    buffer = BatchBuffer()
    buffer.extend(b"abcdef")
    view = buffer.view()
    buffer.truncate(2)
    assert bytes(buffer) == b"ab"
    assert bytes(view) == b"abcdef"
    buffer.clear()
    assert buffer.size == 0
    with pytest.raises(ValueError, match="size 1, expected 0 to the 0 bytes"):
        buffer.truncate(1)
    with pytest.raises(ValueError):
        buffer.truncate(-1)


def test_reserved_bytes_fit_without_growing() -> None:
    buffer = BatchBuffer()
    buffer.reserve(100_000)
    view = buffer.view()
    buffer.extend(bytes(100_000))
    assert len(view) == 0
    assert buffer.size == 100_000


def test_a_buffer_of_impossible_size_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        BatchBuffer(2**62)
    buffer = BatchBuffer()
    with pytest.raises(MemoryError):
        buffer.reserve(2**62)
    buffer.extend(b"still works")


def test_a_buffer_belongs_to_one_open_batch_at_a_time() -> None:
    buffer = BatchBuffer()
    buffer.extend(b"before")
    batch = OpenBatch(buffer, 1000)
    for refused in (
        buffer.clear,
        lambda: buffer.extend(b"x"),
        lambda: buffer.truncate(0),
        lambda: OpenBatch(buffer, 1000),
    ):
        with pytest.raises(BufferError, match="close or abort it first"):
            refused()
    batch.abort()
    buffer.extend(b" and after")
    assert bytes(buffer) == b"before and after"


def test_a_batch_that_is_dropped_while_open_frees_its_buffer() -> None:
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, 1000)
    batch.append(b"value")
    del batch
    assert buffer.size == 0
    buffer.extend(b"free")


# --- the stub ---------------------------------------------------------------------------------------------------------


def stub_signatures() -> dict[str, list[str]]:
    """The functions of the stub and its classes' public methods, with their parameters."""
    tree = ast.parse(Path(_codec.__file__).with_name("_codec.pyi").read_text())
    signatures = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            signatures[node.name] = [argument.arg for argument in node.args.args]
        elif isinstance(node, ast.ClassDef):
            signatures[node.name] = []
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                    signatures[f"{node.name}.{member.name}"] = [argument.arg for argument in member.args.args[1:]]
    return signatures


def test_the_stub_names_what_the_module_has() -> None:
    names = {name.partition(".")[0] for name in stub_signatures()}
    own = {name for name, found in vars(_codec).items() if getattr(found, "__module__", None) == _codec.__name__}
    # What ``ConsumerRecord.deserialized`` makes is a ConsumerRecord to all who use it.
    assert names == {name for name in own if not name.startswith("_")} - {"DeserializedRecord"}


def test_the_stubs_parameters_are_the_modules() -> None:
    for name, parameters in stub_signatures().items():
        owner, _, member = name.partition(".")
        found = getattr(_codec, owner)
        if member:
            found = getattr(found, member)
        if callable(found) and not isinstance(found, type):
            signature = list(inspect.signature(found).parameters)
            assert [parameter for parameter in signature if parameter != "self"] == parameters, name
