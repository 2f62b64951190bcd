"""What ``kstore dump-log`` prints of a ``.log``: its batches, its records, and its damage."""

from __future__ import annotations

import struct

import pytest

from kstore.cli.dump import batches, entries
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.lives.dump_helpers import BASE, Dump, T, batch, flip, record, write_log

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
        f"{BASE}.log: the dump of this file ends at the damage; with --past-damage it continues at position {third}",
    ]


@pytest.mark.parametrize("size", [13, 2**31 - 1], ids=["small", "huge"])
def test_reading_past_damage_continues_at_the_next_whole_batch(size: int, dump: Dump) -> None:
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
