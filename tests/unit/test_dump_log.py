"""What ``kstore dump-log`` prints, on small files made here; against Kafka's own output: tests/golden."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.cli.decoders.framed import remote_log_metadata_decoder
from kstore.cli.decoders.java_text import java_double, java_string, json_text
from kstore.cli.decoders.messages import MessageError, Reader, Uuid, load_messages
from kstore.cli.dump import batches, entries
from kstore.cli.main import main
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.producer_snapshot import ProducerEntry, encode_snapshot

T = 1_700_000_000_000
BASE = "00000000000000000000"
ROOT = Path(__file__).resolve().parents[2]

Dump = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dump:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["dump-log", *arguments])
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


def record(offset: int, value: bytes | None = b"v", key: bytes | None = None, timestamp: int = T) -> Record:
    return Record(offset, timestamp + offset, "CreateTime", key, value)


def batch(first: int, stop: int, **options: object) -> bytes:
    return build_batch([record(offset) for offset in range(first, stop)], base_offset=first, **options)  # type: ignore[arg-type]


def write_log(*parts: bytes, base: str = BASE) -> list[int]:
    """Writes a .log into the current directory; returns where its parts begin."""
    Path(f"{base}.log").write_bytes(b"".join(parts))
    return [sum(map(len, parts[:index])) for index in range(len(parts))]


def write_index(*index_entries: tuple[int, int], base: str = BASE) -> None:
    Path(f"{base}.index").write_bytes(b"".join(struct.pack(">ii", *entry) for entry in index_entries))


def write_time_index(*index_entries: tuple[int, int], base: str = BASE) -> None:
    Path(f"{base}.timeindex").write_bytes(b"".join(struct.pack(">qi", *entry) for entry in index_entries))


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


def objects(out: str, kind: str) -> list[dict[str, object]]:
    return [parsed for parsed in map(json.loads, out.splitlines()) if parsed["type"] == kind]


# --- batches and records ----------------------------------------------------------------------------------------------


def test_a_batch_is_one_line_with_every_field_of_its_header(dump: Dump) -> None:
    log = build_batch(
        [Record(5, T, "CreateTime", b"k", b"hello", (("h", b"\x01"),)), Record(6, T + 1, "CreateTime", None, None)],
        base_offset=5,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 1,
        leader_epoch=3,
        is_transactional=True,
    )
    write_log(log, base=f"{5:020d}")
    crc = int.from_bytes(log[17:21], "big")
    status, out, err = dump("--files", f"{5:020d}.log")
    assert (status, err) == (0, "")
    assert out == (
        f"Dumping {5:020d}.log\n"
        "Log starting offset: 5\n"
        "baseOffset: 5 lastOffset: 6 count: 2 baseSequence: 2147483647 lastSequence: 0 producerId: 7 producerEpoch: 2 "
        "partitionLeaderEpoch: 3 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: {T + 1} size: {len(log)} magic: 2 compresscodec: none crc: {crc} isvalid: true\n"
    )


def test_a_deep_iteration_shows_the_metadata_of_records_and_not_their_content(dump: Dump) -> None:
    write_log(
        build_batch(
            [
                Record(0, T, "CreateTime", b"key", b"hello", (("a", b"1"), ("b", None))),
                Record(1, T + 1, "CreateTime", None, None),
            ],
            base_offset=0,
            producer_id=7,
            producer_epoch=0,
            base_sequence=2**31 - 1,
        )
    )
    _, out, _ = dump("--deep-iteration", "--files", f"{BASE}.log")
    assert out.splitlines()[3:] == [
        f"| offset: 0 CreateTime: {T} keySize: 3 valueSize: 5 sequence: 2147483647 headerKeys: [a,b]",
        f"| offset: 1 CreateTime: {T + 1} keySize: -1 valueSize: -1 sequence: 0 headerKeys: []",
    ]


@pytest.mark.parametrize("option", ["--print-data-log", "--value-decoder-class", "--key-decoder-class"])
def test_every_option_that_shows_content_shows_keys_and_values(option: str, dump: Dump) -> None:
    records = [record(0, b"one", b"k"), record(1, b"two"), record(2, None, b"k"), record(3, None)]
    write_log(build_batch(records, base_offset=0))
    _, out, _ = dump("--files", f"{BASE}.log", option)
    assert [line.partition("headerKeys: []")[2] for line in out.splitlines()[3:]] == [
        " key: k payload: one",
        " payload: two",
        " key: k",
        "",
    ]


def test_record_metadata_can_be_left_out(dump: Dump) -> None:
    records = [record(0, b"one", b"k"), record(1, b"two"), record(2, None)]
    write_log(build_batch(records, base_offset=0))
    _, out, _ = dump("--print-data-log", "--skip-record-metadata", "--files", f"{BASE}.log")
    assert out.splitlines()[3:] == ["| key: k payload: one", "| payload: two", ""]
    _, out, _ = dump("--deep-iteration", "--skip-record-metadata", "--files", f"{BASE}.log")
    assert out.splitlines()[3:] == ["", "", ""]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_shown_whatever_compressed_them(codec: str, dump: Dump) -> None:
    write_log(build_batch([record(0, b"x" * 1000)], base_offset=0, codec=codec))
    _, out, _ = dump("--print-data-log", "--files", f"{BASE}.log")
    assert f"compresscodec: {codec} crc" in out
    assert out.endswith(f"payload: {'x' * 1000}\n")


def test_log_append_time_and_delete_horizon_are_shown(dump: Dump) -> None:
    write_log(
        build_batch([record(0)], base_offset=0, log_append_time=T + 9, delete_horizon_ms=T - 1),
    )
    _, out, _ = dump("--deep-iteration", "--files", f"{BASE}.log")
    assert f"deleteHorizonMs: OptionalLong[{T - 1}] position: 0 LogAppendTime: {T + 9} " in out
    assert f"| offset: 0 LogAppendTime: {T + 9} " in out


@pytest.mark.parametrize(("kind", "name"), [(0, "ABORT"), (1, "COMMIT")], ids=["abort", "commit"])
def test_a_marker_is_shown_also_where_its_content_is_not(kind: int, name: str, dump: Dump) -> None:
    marker = Record(0, T, "CreateTime", struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 12))
    write_log(
        build_batch([marker], base_offset=0, is_control=True, is_transactional=True, producer_id=7, producer_epoch=1)
    )
    for option in ("--deep-iteration", "--print-data-log"):
        _, out, _ = dump(option, "--files", f"{BASE}.log")
        assert out.endswith(f" headerKeys: [] endTxnMarker: {name} coordinatorEpoch: 12\n")


def test_a_control_record_that_is_too_short_is_damage(dump: Dump) -> None:
    write_log(build_batch([record(0, b"\0", b"\0\0\0\1")], base_offset=0, is_control=True))
    status, _, err = dump("--deep-iteration", "--files", f"{BASE}.log")
    assert status == 1
    assert "an end marker of 1 bytes, expected 6" in err


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


def test_a_value_that_its_decoder_cannot_read_ends_the_dump_of_the_file(dump: Dump) -> None:
    write_log(batch(0, 1))
    status, _, err = dump("--value-decoder-class", "LongDecoder", "--files", f"{BASE}.log")
    assert status == 1
    assert "1 bytes, expected the 8 of the decoder's number" in err


# --- how much of a log ------------------------------------------------------------------------------------------------


def test_max_bytes_shows_the_whole_batches_within_it(dump: Dump) -> None:
    first, second = batch(0, 3), batch(3, 5)
    write_log(first, second)
    for limit, count in ((0, 0), (len(first) - 1, 0), (len(first), 1), (len(first + second) - 1, 1), (10_000, 2)):
        status, out, err = dump("--max-bytes", str(limit), "--files", f"{BASE}.log")
        assert (status, out.count("baseOffset"), err) == (0, count, "")
        assert "invalid bytes" not in out


def test_a_torn_batch_is_counted_as_invalid_bytes(dump: Dump) -> None:
    write_log(batch(0, 3), batch(3, 5)[:-7])
    status, out, err = dump("--files", f"{BASE}.log")
    assert status == 1
    assert out.splitlines()[-1] == f"Found {len(batch(3, 5)) - 7} invalid bytes at the end of {BASE}.log"
    assert err == ""


def test_an_empty_log_has_only_its_headings(dump: Dump) -> None:
    write_log()
    assert dump("--files", f"{BASE}.log") == (0, f"Dumping {BASE}.log\nLog starting offset: 0\n", "")


def test_gaps_and_steps_back_are_reported_in_the_order_of_offsets(dump: Dump) -> None:
    write_log(batch(0, 2), batch(7, 9), batch(4, 5))
    status, _, err = dump("--deep-iteration", "--files", f"{BASE}.log")
    assert status == 1
    assert err.splitlines()[-3:] == [
        f"Non-consecutive offsets in {BASE}.log",
        "  1 is followed by 7",
        "  8 is followed by 4",
    ]


def test_a_gap_that_compaction_makes_is_reported_and_no_damage(dump: Dump) -> None:
    write_log(batch(3, 4), batch(7, 8), base=f"{3:020d}")
    status, _, err = dump("--deep-iteration", "--files", f"{3:020d}.log")
    assert status == 0
    assert err == f"Non-consecutive offsets in {3:020d}.log\n  3 is followed by 7\n"


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_bad_crc_is_shown_and_named(dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5))
    flip(f"{BASE}.log", second + 64)
    status, out, err = dump("--files", f"{BASE}.log")
    assert status == 1
    assert out.splitlines()[-1].endswith("isvalid: false")
    assert err.startswith(f"{BASE}.log: damaged at position {second}: batch of offsets 3 to 4: bad crc: stored ")


@pytest.mark.parametrize("size", [0, 13, -1, -(2**31)], ids=["zero", "small", "negative", "lowest"])
def test_an_impossible_size_ends_the_dump_of_the_file_and_not_of_others(size: int, dump: Dump) -> None:
    _, second, third = write_log(batch(0, 3), struct.pack(">qi", 3, size) + batch(3, 5)[12:], batch(5, 6))
    write_log(batch(9, 10), base=f"{9:020d}")
    status, out, err = dump("--files", f"{BASE}.log,{9:020d}.log")
    assert status == 1
    assert [line.split()[1] for line in out.splitlines() if line.startswith("baseOffset")] == ["0", "9"]
    assert err.splitlines() == [
        f"{BASE}.log: damaged at position {second}: a batch whose size field is {size}, expected at least 14",
        f"{BASE}.log: the dump of this file ends at the damage; with --past-damage it goes on at position {third}",
    ]


@pytest.mark.parametrize("size", [13, 2**31 - 1], ids=["small", "huge"])
def test_past_damage_goes_on_at_the_next_whole_batch(size: int, dump: Dump) -> None:
    write_log(batch(0, 3), struct.pack(">qi", 3, size) + batch(3, 5)[12:], batch(5, 6), batch(6, 8)[:-1])
    status, out, _ = dump("--past-damage", "--files", f"{BASE}.log")
    assert status == 1
    assert [line.split()[1] for line in out.splitlines() if line.startswith("baseOffset")] == ["0", "5"]
    assert out.splitlines()[-1].startswith("Found ")


def test_records_before_the_damage_are_shown(dump: Dump) -> None:
    damaged = bytearray(batch(0, 3))
    struct.pack_into(">i", damaged, 57, 2**31 - 1)
    write_log(bytes(damaged), batch(3, 4))
    status, out, err = dump("--print-data-log", "--files", f"{BASE}.log")
    assert status == 1
    assert [line.split()[2] for line in out.splitlines() if line.startswith("|")] == ["0", "1", "2"]
    assert "3 records, expected 2147483647" in err
    status, out, _ = dump("--print-data-log", "--past-damage", "--files", f"{BASE}.log")
    assert [line.split()[2] for line in out.splitlines() if line.startswith("|")] == ["0", "1", "2", "3"]


def test_an_unknown_codec_breaks_off_the_line_as_kafka_does(dump: Dump) -> None:
    damaged = bytearray(batch(0, 3))
    damaged[22] = 7
    write_log(bytes(damaged))
    status, out, err = dump("--files", f"{BASE}.log")
    assert status == 1
    assert out.endswith("deleteHorizonMs: OptionalLong.empty\n")
    assert "codec 7, expected 0 to 4" in err


@pytest.mark.parametrize(("magic", "start"), [(9, "baseOffset: 0"), (0x90, "offset: 0\n")], ids=["high", "negative"])
def test_an_unknown_magic_is_shown_and_named(magic: int, start: str, dump: Dump) -> None:
    damaged = bytearray(batch(0, 3))
    damaged[16] = magic
    write_log(bytes(damaged))
    status, out, err = dump("--files", f"{BASE}.log")
    assert status == 1
    assert out.split("\n", 2)[2].startswith(start)
    assert f"magic {magic}, expected 0 to 2" in err


def test_a_batch_larger_than_what_is_held_in_memory_is_checked_in_pieces(
    dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 200)
    monkeypatch.setattr(entries, "CHUNK_BYTES", 128)
    monkeypatch.setattr(batches, "CRC_CHUNK_BYTES", 100)
    write_log(batch(0, 3), build_batch([record(3, b"x" * 1000)], base_offset=3), batch(4, 6))
    status, out, err = dump("--files", f"{BASE}.log")
    assert (status, out.count("isvalid: true"), err) == (0, 3, "")
    status, out, err = dump("--print-data-log", "--past-damage", "--files", f"{BASE}.log")
    assert status == 1
    assert [line.split()[2] for line in out.splitlines() if line.startswith("|")] == ["0", "1", "2", "4", "5"]
    assert "its records are not read" in err


# --- indexes ----------------------------------------------------------------------------------------------------------


def test_index_entries_are_shown_and_those_that_contradict_the_log_reported(dump: Dump) -> None:
    _, second, third = write_log(batch(0, 3), batch(3, 5), batch(5, 8))
    write_index((5, second), (6, third))
    status, out, err = dump("--files", f"{BASE}.index")
    assert status == 1
    assert out == f"Dumping {BASE}.index\noffset: 5 position: {second}\noffset: 6 position: {third}\n"
    # The highest comes first.
    assert err == (f"Mismatches in :{BASE}.index\n  Index offset: 6, log offset: 7\n  Index offset: 5, log offset: 4\n")
    assert dump("--verify-index-only", "--files", f"{BASE}.index") == (1, f"Dumping {BASE}.index\n", err)


def test_zeros_behind_the_entries_of_an_index_are_no_entries(dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5))
    write_index((4, second), (0, 0), (0, 0))
    assert dump("--files", f"{BASE}.index") == (0, f"Dumping {BASE}.index\noffset: 4 position: {second}\n", "")


def test_an_index_without_entries_is_empty(dump: Dump) -> None:
    write_log(batch(0, 3))
    write_index()
    for options in ([], ["--verify-index-only"], ["--index-sanity-check"]):
        assert dump(*options, "--files", f"{BASE}.index") == (
            0,
            f"Dumping {BASE}.index\n{BASE}.index is empty.\n",
            "",
        )


@pytest.mark.parametrize(
    ("position", "reason"),
    [(10_000, "which has"), (-1, "which has"), (5, "a batch whose size field is"), (None, "no whole batch")],
    ids=["beyond-the-log", "negative", "within-a-batch", "torn-batch"],
)
def test_an_index_entry_that_leads_to_no_batch_is_damage(position: int | None, reason: str, dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5)[:-1])
    write_index((4, second if position is None else position))
    status, out, err = dump("--files", f"{BASE}.index")
    assert (status, out) == (1, f"Dumping {BASE}.index\n")
    assert err.startswith(f"{BASE}.index: damaged: entry 0 (offset 4, position ")
    assert reason in err


def test_max_message_size_bounds_the_batch_that_an_index_entry_leads_to(dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5))
    write_index((4, second))
    size = len(batch(3, 5))
    assert dump("--max-message-size", str(size), "--files", f"{BASE}.index")[0] == 0
    status, _, err = dump("--max-message-size", str(size - 1), "--files", f"{BASE}.index")
    assert status == 1
    assert f"no whole batch of at most {size - 1} bytes" in err


def test_sanity_check_asks_what_a_broker_asks(dump: Dump) -> None:
    write_log(batch(0, 3))
    write_index((2, 0))
    write_time_index((T + 2, 2))
    for name in (f"{BASE}.index", f"{BASE}.timeindex"):
        assert dump("--index-sanity-check", "--files", name) == (
            0,
            f"Dumping {name}\n{name} passed sanity check.\n",
            "",
        )
    write_index((-1, 0))
    status, _, err = dump("--index-sanity-check", "--files", f"{BASE}.index")
    assert status == 1
    assert "the last entry has offset -1, expected at least the base, 0" in err
    write_time_index((T + 2, 2), (0, 0))
    status, _, err = dump("--index-sanity-check", "--files", f"{BASE}.timeindex")
    assert status == 1
    assert f"the last timestamp is 0, expected at least the first, {T + 2}" in err


def test_time_index_entries_are_held_against_the_records(dump: Dump) -> None:
    _, second, third = write_log(batch(0, 3), batch(3, 5), batch(5, 8))
    write_index((4, second), (7, third))
    write_time_index((T + 2, 2), (T + 4, 4), (T + 7, 7))
    status, out, err = dump("--files", f"{BASE}.timeindex")
    assert (status, err) == (0, "")
    assert out == (
        f"Dumping {BASE}.timeindex\n"
        f"timestamp: {T + 2} offset: 2\ntimestamp: {T + 4} offset: 4\ntimestamp: {T + 7} offset: 7\n"
    )


def test_every_kind_of_wrong_time_index_entry_is_reported(dump: Dump) -> None:
    _, second, third = write_log(batch(0, 3), batch(3, 5), batch(5, 8))
    write_index((4, second), (7, third))
    write_time_index((T + 9, 2), (T + 4, 4), (T + 6, 6), (T + 10, 10))
    status, _, err = dump("--verify-index-only", "--files", f"{BASE}.timeindex")
    assert status == 1
    assert err == (
        f"Found timestamp mismatch in :{BASE}.timeindex\n"
        f"  Index timestamp: {T + 9}, log timestamp: {T + 2}\n"
        f"Found out of order timestamp in :{BASE}.timeindex\n"
        f"  Index timestamp: {T + 4}, Previously indexed timestamp: {T + 9}\n"
        f"The following indexed offsets are not found in :{BASE}.timeindex\n"
        "Indexed offset: 6, found log offset: 7\n"
        "Indexed offset: 10, found log offset: -1\n"
    )


def test_a_time_index_is_looked_up_through_an_index_that_ends_in_zeros(dump: Dump) -> None:
    parts = [batch(offset, offset + 1) for offset in range(40)]
    positions = write_log(*parts)
    write_index(*((offset, positions[offset]) for offset in range(5, 40, 5)), *[(0, 0)] * 2000)
    write_time_index(*((T + offset, offset) for offset in range(40)))
    status, out, err = dump("--files", f"{BASE}.timeindex")
    assert (status, out.count("timestamp:"), err) == (0, 40, "")


@pytest.mark.parametrize("missing", [".log", ".index"])
def test_a_time_index_without_its_neighbours_cannot_be_checked(missing: str, dump: Dump) -> None:
    write_log(batch(0, 3))
    write_index((2, 0))
    write_time_index((T + 2, 2))
    Path(f"{BASE}{missing}").unlink()
    status, out, err = dump("--files", f"{BASE}.timeindex")
    assert (status, out) == (1, f"Dumping {BASE}.timeindex\n")
    assert f"cannot be checked without {BASE}{missing}, which is not there" in err


def test_half_an_entry_is_named_and_stays_in_the_file(dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5))
    write_index((4, second))
    with Path(f"{BASE}.index").open("ab") as index:
        index.write(b"\0\0\0")
    status, out, err = dump("--files", f"{BASE}.index")
    assert (status, out) == (1, f"Dumping {BASE}.index\noffset: 4 position: {second}\n")
    assert "11 bytes, expected a multiple of 8" in err
    assert Path(f"{BASE}.index").stat().st_size == 11


def test_aborted_transactions_are_shown(dump: Dump) -> None:
    Path(f"{BASE}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 5, 6) + struct.pack(">hqqqq", 1, 8, 6, 9, 9))
    status, out, err = dump("--files", f"{BASE}.txnindex")
    assert status == 1
    assert out.splitlines()[1:] == [
        "version: 0 producerId: 7 firstOffset: 1 lastOffset: 5 lastStableOffset: 6",
        "version: 0 producerId: 8 firstOffset: 6 lastOffset: 9 lastStableOffset: 9",
    ]
    assert "entry 1 has version 1, expected 0" in err


def test_producers_of_a_snapshot_are_shown(dump: Dump) -> None:
    Path(f"{9:020d}.snapshot").write_bytes(
        encode_snapshot([ProducerEntry(7, 1, 2, 8, 4, T, -1, 3), ProducerEntry(8, 0, -1, -1, 0, T + 1, 12, -1)])
    )
    status, out, err = dump("--files", f"{9:020d}.snapshot")
    assert (status, err) == (0, "")
    assert out.splitlines()[1:] == [
        f"producerId: 7 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[3] lastTimestamp: {T}"
        f" firstSequence: 2147483646 lastSequence: 2 lastOffset: 8 offsetDelta: 4 timestamp: {T}",
        "producerId: 8 producerEpoch: 0 coordinatorEpoch: 12 currentTxnFirstOffset: OptionalLong.empty"
        f" lastTimestamp: {T + 1}",
    ]


def test_a_damaged_snapshot_is_reported_with_both_crcs(dump: Dump) -> None:
    name = f"{9:020d}.snapshot"
    Path(name).write_bytes(encode_snapshot([]))
    flip(name, 9)
    status, _, err = dump("--files", name)
    assert status == 1
    assert err.startswith(f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {0x48674BC7}. Computed crc: ")
    Path(name).write_bytes(b"\0")
    status, _, err = dump("--files", name)
    assert status == 1
    assert "1 bytes, expected the 10 of a snapshot's header" in err


# --- files, status, forms ---------------------------------------------------------------------------------------------


def test_files_of_other_kinds_are_ignored(dump: Dump) -> None:
    for name in ("leader-epoch-checkpoint", f"{BASE}.log.deleted", "notes.txt"):
        Path(name).write_text("0\n")
        assert dump("--files", name) == (0, f"Dumping {name}\n", f"Ignoring unknown file {name}\n")


def test_a_missing_file_is_bad_usage_and_does_not_stop_the_others(dump: Dump) -> None:
    write_log(batch(0, 1))
    status, out, err = dump("--files", f"gone.log,{BASE}.log")
    assert status == 2
    assert out.endswith("isvalid: true\n")
    assert err == "gone.log: No such file or directory\n"


def test_a_snapshot_of_the_metadata_log_needs_its_name(dump: Dump) -> None:
    Path("other.checkpoint").write_bytes(batch(0, 1))
    status, _, err = dump("--files", "other.checkpoint")
    assert status == 1
    assert "the name is no snapshot's" in err


def test_a_directory_stands_for_its_files_in_the_order_of_their_names(dump: Dump) -> None:
    for partition in ("b-1", "a-0"):
        directory = Path(partition)
        directory.mkdir()
        (directory / f"{7:020d}.log").write_bytes(batch(7, 8))
        (directory / f"{BASE}.log").write_bytes(batch(0, 1))
        (directory / f"{BASE}.index").write_bytes(b"")
        (directory / "partition.metadata").write_text("version: 0")
    _, out, _ = dump(".")
    assert [line.removeprefix("Dumping ") for line in out.splitlines() if line.startswith("Dumping")] == [
        f"{partition}/{name}"
        for partition in ("a-0", "b-1")
        for name in (f"{BASE}.index", f"{BASE}.log", f"{7:020d}.log")
    ]
    _, out, _ = dump("--verify-index-only", "a-0")
    assert out == f"Dumping a-0/{BASE}.index\na-0/{BASE}.index is empty.\n"


def test_a_directory_without_such_files_is_bad_usage(dump: Dump) -> None:
    Path("empty").mkdir()
    status, out, err = dump("empty")
    assert (status, out) == (2, "")
    assert err.startswith("empty: no .log, ")


def test_a_symbolic_link_is_followed(dump: Dump) -> None:
    write_log(batch(0, 1))
    Path(f"{5:020d}.log").symlink_to(f"{BASE}.log")
    status, out, _ = dump("--files", f"{5:020d}.log")
    assert "baseOffset: 0" in out
    assert status == 1  # the name promises offsets from 5 on


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--files"],
        ["--files", ""],
        ["--unknown", "x"],
        ["--max-bytes", "-1", "x"],
        ["--max-bytes", "many", "x"],
        ["--value-decoder-class", "com.example.Decoder", "--files", "x"],
        ["--format", "xml", "x"],
    ],
    ids=["nothing", "no-value", "empty-value", "option", "negative", "no-number", "class", "form"],
)
def test_bad_usage_has_its_own_status(arguments: list[str], dump: Dump) -> None:
    status, out, err = dump(*arguments)
    assert (status, out) == (2, "")
    assert "Error: " in err


def test_json_has_an_object_a_line_and_says_which_bytes_are_base64(dump: Dump) -> None:
    write_log(
        build_batch(
            [
                Record(0, T, "CreateTime", b"k\xff", "größe\n".encode(), (("h", b"\x80"), ("n", None), ("t", b"x"))),
                Record(1, T, "CreateTime", None, b""),
            ],
            base_offset=0,
        )
    )
    status, out, err = dump("--print-data-log", "--format", "json", "--files", f"{BASE}.log")
    assert (status, err) == (0, "")
    assert objects(out, "record") == [
        {
            "type": "record",
            "path": f"{BASE}.log",
            "offset": 0,
            "timestamp": T,
            "timestamp_type": "CreateTime",
            "key_size": 2,
            "value_size": 8,
            "sequence": -1,
            "headers": [{"key": "h", "value_base64": "gA=="}, {"key": "n", "value": None}, {"key": "t", "value": "x"}],
            "key_base64": "a/8=",
            "value": "größe\n",
        },
        {
            "type": "record",
            "path": f"{BASE}.log",
            "offset": 1,
            "timestamp": T,
            "timestamp_type": "CreateTime",
            "key_size": -1,
            "value_size": 0,
            "sequence": -1,
            "headers": [],
            "key": None,
            "value": "",
        },
    ]
    (found,) = objects(out, "batch")
    assert found["codec"] == "none"
    assert found["is_valid"] is True
    assert found["record_count"] == 2


def test_json_tells_damage_and_mismatches_on_standard_output(dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5))
    write_index((5, second))
    flip(f"{BASE}.log", second + 64)
    with Path(f"{BASE}.log").open("ab") as log:
        log.write(b"torn")
    status, out, err = dump("--format", "json", ".")
    assert (status, err) == (1, "")
    assert [found["position"] for found in objects(out, "damage")] == [second]
    assert [found["size"] for found in objects(out, "invalid_tail")] == [4]
    assert objects(out, "mismatch") == [
        {"type": "mismatch", "path": f"{BASE}.index", "kind": "index_offset", "index_offset": 5, "log_offset": 4}
    ]


def test_json_has_decoded_records_as_objects(dump: Dump) -> None:
    value = struct.pack(">hqh", 0, 42, 1) + b"m" + struct.pack(">q", T)
    write_log(build_batch([record(0, value, struct.pack(">hh", 0, 1) + b"g\0\1t\0\0\0\7")], base_offset=0))
    _, out, _ = dump("--offsets-decoder", "--format", "json", "--files", f"{BASE}.log")
    (found,) = objects(out, "record")
    assert found["key"] == {"type": "0", "data": {"group": "g", "topic": "t", "partition": 7}}
    assert found["value"] == {"version": "0", "data": {"offset": 42, "metadata": "m", "commitTimestamp": T}}


def test_nothing_is_written_to_what_is_dumped(dump: Dump) -> None:
    write_log(batch(0, 3), batch(3, 5)[:-1])
    Path(f"{BASE}.index").write_bytes(b"ragged and short")
    Path(f"{7:020d}.timeindex").write_bytes(b"x" * 13)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().iterdir()}
    for options in ([], ["--print-data-log"], ["--index-sanity-check"], ["--verify-index-only"], ["--past-damage"]):
        dump(*options, ".")
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().iterdir()} == before


def test_a_closed_pipe_ends_the_dump_in_silence(tmp_path: Path) -> None:
    (tmp_path / f"{BASE}.log").write_bytes(b"".join(batch(offset, offset + 1) for offset in range(5000)))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "dump_log.py"), str(tmp_path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_has_examples_and_the_exit_status(dump: Dump) -> None:
    status, out, _ = dump("--help")
    assert status == 0
    assert "kstore dump-log --files data/orders-0" in out
    assert "Exit status:" in out


# --- decoders ---------------------------------------------------------------------------------------------------------

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
        (bytes.fromhex(DELETE) + b"!", "1 bytes behind"),
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
            message.read(Reader(data), 0)


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
