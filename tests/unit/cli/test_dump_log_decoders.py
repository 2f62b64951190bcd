"""How ``kstore dump-log`` prints keys and values: the decoders, and text as Java writes it."""

from __future__ import annotations

import struct

import pytest

from kstore.cli.decoders import TransactionLogDecoder, java_double, json_text, remote_log_metadata_decoder
from kstore.messages._wire import MessageReader
from kstore.messages.primitives import MessageError, Uuid
from kstore.messages.schema import load_messages
from kstore.record._codec import java_string
from kstore.record.builder import build_batch
from tests.support.lives.dump_helpers import BASE, Dump, batch, record, write_log


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"gr\xc3\xb6\xc3\x9fe \xf0\x9f\x9a\x80", "größe 🚀"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xe4\xb8z", "\ufffdz"),
        (b"\xed\xa0\x80z", "\ufffdz"),
        (b"\xed\xa0z", "\ufffdz"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xf5\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"line\nbreak\0\x1b", "line\nbreak\0\x1b"),
    ],
    ids=[
        "utf-8",
        "one-invalid-byte",
        "cut-sequence",
        "surrogate",
        "cut-surrogate",
        "pair-of-surrogates",
        "beyond-unicode",
        "overlong",
        "control-characters",
    ],
)
def test_bytes_become_the_text_that_java_makes_of_them(data: bytes, text: str) -> None:
    assert java_string(data) == text


def test_numbers_and_bytes_have_decoders(dump: Dump) -> None:
    write_log(build_batch([record(0, struct.pack(">q", -5), struct.pack(">i", 7))], base_offset=0))
    _, out, _ = dump(
        "--key-decoder-class",
        "kafka.serializer.IntegerDecoder",
        "--value-decoder-class",
        "org.apache.kafka.tools.api.LongDecoder",
        "--skip-record-metadata",
        "--files",
        f"{BASE}.log",
    )
    assert out.endswith("| key: 7 payload: -5\n")
    _, out, _ = dump("--value-decoder-class", "DefaultDecoder", "--files", f"{BASE}.log")
    assert out.endswith("payload: fffffffffffffffb\n")


def test_a_number_is_in_the_first_bytes_of_a_longer_value(dump: Dump) -> None:
    write_log(build_batch([record(0, struct.pack(">q", -5) + b"more", struct.pack(">i", 7) + b"!")], base_offset=0))
    options = ["--key-decoder-class", "IntegerDecoder", "--value-decoder-class", "LongDecoder"]
    _, out, _ = dump(*options, "--skip-record-metadata", "--files", f"{BASE}.log")
    assert out.endswith("| key: 7 payload: -5\n")


def test_a_member_of_a_new_group_may_have_a_classic_past(dump: Dump) -> None:
    key = struct.pack(">hh", 5, 1) + b"g" + struct.pack(">h", 1) + b"m"
    plain = bytes.fromhex("0000 00 00 02 63 02 68 01 00 00000001 00")
    # The tagged field 0: its size, an unsigned varint above 0, the timeout, a protocol "r" with the metadata "x".
    short = bytes.fromhex("01 00 0c 01 00000064 02 02 72 02 78 00 00")
    long = bytes.fromhex("01 00 0d 8c01 00000064 02 02 72 02 78 00 00")
    null = bytes.fromhex("01 00 01 00")
    values = [plain + tagged for tagged in (b"\0", short, long, null)]
    write_log(build_batch([record(at, value, key) for at, value in enumerate(values)], base_offset=0))
    _, out, _ = dump("--offsets-decoder", "--skip-record-metadata", "--files", f"{BASE}.log")
    lines = [line for line in out.splitlines() if "payload" in line]
    metadata = '"classicMemberMetadata":{"sessionTimeoutMs":100,"supportedProtocols":[{"name":"r","metadata":"eA=="}]}'
    assert [metadata in line for line in lines] == [False, True, True, False]
    assert not [line for line in lines if "Error" in line]


def test_a_value_that_its_decoder_cannot_read_ends_the_dump_of_the_file(dump: Dump) -> None:
    write_log(batch(0, 1))
    status, _, err = dump("--value-decoder-class", "LongDecoder", "--files", f"{BASE}.log")
    assert status == 1
    assert "1 bytes, expected the 8 of the decoder's number" in err


SEGMENT = (
    "01000006746f706963ff41a2ce1fbe4427984931738e050d020000000300a9b091a7d5de42a989356edfea9f1ac0000000000000000000"
    "0000000000000064000000070000000000003039000000000000006303000000000000000000000000000000000200000000000000320000"
    "000400040102fd0001000101"
)
SEGMENT_TEXT = (
    "RemoteLogSegmentMetadata{remoteLogSegmentId=RemoteLogSegmentId{topicIdPartition=_0Gizh--RCeYSTFzjgUNAg:topic-3, "
    "id=qbCRp9XeQqmJNW7f6p8awA}, startOffset=0, endOffset=100, brokerId=7, maxTimestampMs=12345, eventTimestampMs=99, "
    "segmentLeaderEpochs={0=0, 2=50}, segmentSizeInBytes=1024, customMetadata=Optional[CustomMetadata{3 bytes}], "
    "state=COPY_SEGMENT_STARTED, txnIdxEmpty=true}"
)
UPDATE = (
    "01010006746f706963ff41a2ce1fbe4427984931738e050d020000000300a9b091a7d5de42a989356edfea9f1ac0000000000700000000"
    "00000063040102fd0100"
)
UPDATE_TEXT = (
    "RemoteLogSegmentMetadataUpdate{remoteLogSegmentId=RemoteLogSegmentId{topicIdPartition=_0Gizh--RCeYSTFzjgUNAg:"
    "topic-3, id=qbCRp9XeQqmJNW7f6p8awA}, customMetadata=Optional[CustomMetadata{3 bytes}], "
    "state=COPY_SEGMENT_FINISHED, eventTimestampMs=99, brokerId=7}"
)
DELETE = "01020006746f706963ff41a2ce1fbe4427984931738e050d0200000003000000000700000000000000050000"
DELETE_TEXT = (
    "RemotePartitionDeleteMetadata{topicPartition=_0Gizh--RCeYSTFzjgUNAg:topic-3, state=DELETE_PARTITION_MARKED, "
    "eventTimestampMs=5, brokerId=7}"
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(SEGMENT, SEGMENT_TEXT), (UPDATE, UPDATE_TEXT), (DELETE, DELETE_TEXT)],
    ids=["segment", "update", "delete"],
)
def test_remote_log_metadata_prints_as_kafka_s_classes_do(value: str, text: str) -> None:
    assert remote_log_metadata_decoder()(record(0, bytes.fromhex(value))).value == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "a length of 1"),
        (b"\2\0\0", "frame version 2"),
        (b"\1\x63\0", "unknown record type 99"),
        (b"\1\0\x09", "version 9"),
        (bytes.fromhex(DELETE) + b"!", "1 bytes after"),
        (bytes.fromhex(DELETE)[:-2] + b"\x07\0", "state 7"),
        (b"\xff\xff\xff\xff\xff\xff", "varint"),
    ],
    ids=["null", "empty", "frame", "type", "version", "more", "state", "varint"],
)
def test_what_cannot_be_decoded_is_said_in_the_record_s_place(value: bytes | None, reason: str) -> None:
    text = remote_log_metadata_decoder()(record(5, value)).value
    assert isinstance(text, str)
    assert text.startswith("Error at offset 5, skipping. ")
    assert reason in text


def test_a_tombstone_is_shown_as_such(dump: Dump) -> None:
    write_log(build_batch([record(0, None, struct.pack(">hh", 2, 1) + b"g")], base_offset=0))
    _, out, _ = dump("--offsets-decoder", "--files", f"{BASE}.log")
    assert out.endswith(' key: {"type":"2","data":{"group":"g"}} payload: <DELETE>\n')


@pytest.mark.parametrize(
    ("number", "name"), [(0, "Empty"), (2, "PrepareCommit"), (7, "PrepareEpochFence"), (8, "8"), (-1, "-1")]
)
def test_a_transaction_s_state_is_named_and_an_unknown_one_keeps_its_number(number: int, name: str) -> None:
    value = struct.pack(">hqhib", 0, 5, 0, 60_000, number) + struct.pack(">iqq", -1, 1, -1)
    shown = TransactionLogDecoder()(record(0, value, struct.pack(">hh", 0, 1) + b"t")).value
    assert f'"transactionStatus":"{name}"' in json_text(shown)


def test_a_record_without_a_key_is_no_coordinator_s(dump: Dump) -> None:
    write_log(batch(0, 1))
    for option in ("--offsets-decoder", "--transaction-log-decoder", "--share-group-state-decoder"):
        status, _, err = dump(option, "--files", f"{BASE}.log")
        assert status == 1
        assert "the record at offset 0 has no key" in err


def test_the_first_decoder_in_kafka_s_order_wins(dump: Dump) -> None:
    write_log(build_batch([record(0, None, struct.pack(">hh", 2, 1) + b"g")], base_offset=0))
    options = ["--share-group-state-decoder", "--offsets-decoder", "--value-decoder-class", "LongDecoder"]
    _, out, _ = dump(*options, "--files", f"{BASE}.log")
    assert '"group":"g"' in out


def test_a_message_cannot_ask_for_more_than_its_bytes() -> None:
    message = load_messages("transaction")["TransactionLogValue"]
    for data in (b"\xff" * 14, struct.pack(">qhib", 1, 1, 1, 1) + b"\x7f\xff\xff\xff", b""):
        with pytest.raises(MessageError):
            message.read(MessageReader(data), 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-7, "-7"),
        ('a"\\\n\x01é\u2028', '"a\\"\\\\\\n\\u0001é\u2028"'),
        (b"\xff\xfe", '"//4="'),
        (Uuid(bytes(16)), '"AAAAAAAAAAAAAAAAAAAAAA"'),
        ([1, {"a": []}], '[1,{"a":[]}]'),
        (float("nan"), '"NaN"'),
    ],
    ids=["null", "bool", "int", "text", "bytes", "uuid", "nested", "nan"],
)
def test_json_is_written_as_jackson_writes_it(value: object, text: str) -> None:
    assert json_text(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.001, "0.001"),
        (1e-4, "1.0E-4"),
        (1e6, "1000000.0"),
        (1e7, "1.0E7"),
        (123456789.125, "1.23456789125E8"),
        (1234567.9, "1234567.9"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_numbers_print_as_java_prints_them(value: float, text: str) -> None:
    assert java_double(value) == text
