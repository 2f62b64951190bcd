"""Walking a buffer or file: where a scan stops, and how the next whole batch after damage is found."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import CorruptBatchError
from kstore.files.local import SYSTEM_FS
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.scan import BufferSource, find_next_batch, parse_batches, scan
from kstore.record.walk import Damage, walk
from kstore.rules.validate import split_batches
from tests.support.oracles.oracle_legacy import message, wrapper


def batch(base_offset: int, count: int = 3, size: int = 20, codec: str = "none") -> bytes:
    records = [Record(base_offset + number, 1000, value=bytes([number]) * size) for number in range(count)]
    return build_batch(records, codec=codec)


BATCHES = [batch(0), batch(3), batch(6), batch(9)]
LOG = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:number])) for number in range(5)]


def damaged(at: int, new: bytes) -> bytearray:
    data = bytearray(LOG)
    data[at : at + len(new)] = new
    return data


@pytest.mark.parametrize("chunk_bytes", [17, 61, 100, 1 << 20])
def test_a_scan_gives_every_batch_with_its_position(chunk_bytes: int) -> None:
    scanned = scan(BufferSource(LOG), 0, len(LOG), chunk_bytes=chunk_bytes)
    assert [(position, found.base_offset) for position, found in scanned] == list(
        zip(STARTS, (0, 3, 6, 9), strict=False)
    )
    assert scanned.stop is not None
    assert (scanned.stop.kind, scanned.stop.position, scanned.stop.size_left) == ("end", len(LOG), 0)


def test_mixed_versions_are_walked() -> None:
    old = message(0, b"a", magic=0) + wrapper([message(o, b"b") for o in range(2)], offset=2, codec="gzip")
    data = old + batch(3)
    assert [found.magic for _, found in scan(BufferSource(data), 0, len(data))] == [0, 1, 2]
    assert [record.offset for found in parse_batches(data) for record in found.records()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("left", range(1, 100, 7))
def test_a_partial_entry_at_the_end_is_torn_and_ignored(left: int) -> None:
    data = LOG[: STARTS[3] + left]
    scanned = scan(BufferSource(data), 0, len(data))
    assert len(list(scanned)) == 3
    assert scanned.stop is not None
    assert (scanned.stop.kind, scanned.stop.position, scanned.stop.size_left) == ("torn", STARTS[3], left)
    assert len(list(parse_batches(data))) == 3


@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        (8, struct.pack(">i", 0), "expected at least"),
        (8, struct.pack(">i", -5), "expected at least"),
        (8, struct.pack(">i", 48), "a batch of 60 bytes"),
        (16, b"\x03", "magic 3"),
        (17, b"\0\0\0\0", "bad crc: stored 0x00000000"),
        (0, struct.pack(">q", 2), "a batch of offset 2, expected at least 3"),
        (80, b"\xff", "bad crc"),
    ],
    ids=["zero-size", "negative-size", "small-size", "magic", "crc", "offset-back", "record"],
)
def test_a_scan_stops_where_no_writer_can_have_written(at: int, new: bytes, reason: str) -> None:
    data = damaged(STARTS[1] + at, new)
    scanned = scan(BufferSource(data), 0, len(data))
    assert len(list(scanned)) == 1
    assert scanned.stop is not None
    assert (scanned.stop.kind, scanned.stop.position) == ("corrupt", STARTS[1])
    assert reason in scanned.stop.reason
    with pytest.raises(CorruptBatchError, match=reason):
        list(parse_batches(data))


@pytest.mark.parametrize("kept", range(12, 17))
@pytest.mark.parametrize("size", [-1, 0, 13])
def test_a_size_that_no_batch_has_is_refused_though_the_rest_is_cut_off(kept: int, size: int) -> None:
    tail = (bytes(8) + size.to_bytes(4, "big", signed=True) + bytes(4))[:kept]
    with pytest.raises(CorruptBatchError, match=f"a size field of {size}, expected at least 14") as raised:
        list(parse_batches(LOG + tail))
    assert raised.value.position == len(LOG)
    assert len(list(parse_batches(LOG + tail[:11]))) == 4
    assert len(list(parse_batches(LOG + LOG[:kept]))) == 4


OLD = wrapper([message(o, b"b") for o in range(2)], offset=1, codec="gzip")


@pytest.mark.parametrize(
    ("sent", "offsets"),
    [
        ([batch(0), batch(0), batch(0)], [0, 0, 0]),
        ([batch(0)], [0]),
        ([OLD, OLD], [0, 0]),
        ([message(0, b"a", magic=1)] * 3, [0, 0, 0]),
    ],
    ids=["batches", "one", "message-sets", "messages"],
)
def test_batches_of_a_client_may_each_begin_at_0(sent: list[bytes], offsets: list[int]) -> None:
    assert [found.base_offset for found in parse_batches(b"".join(sent))] == offsets


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([batch(0), batch(3), batch(0)], "a batch of offset 0, expected at least 6"),
        ([batch(3), batch(0)], "a batch of offset 0, expected at least 6"),
        ([batch(0), batch(2)], "a batch of offset 2, expected at least 3"),
        ([batch(0), batch(0), batch(3)], "a batch of offset 3, expected 0"),
        ([OLD, message(1, b"c")], "a batch of offset 1, expected at least 2"),
    ],
    ids=["a-log's-then-a-client's", "not-the-first", "overlap", "a-client's-then-a-log's", "message-set"],
)
def test_batches_that_neither_rise_nor_all_begin_at_0_are_refused(sent: list[bytes], reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=f"^{reason}") as raised:
        list(parse_batches(b"".join(sent)))
    assert raised.value.position == sum(map(len, sent[:-1]))


def test_what_append_batches_takes_is_what_parse_batches_gives() -> None:
    data = batch(0) + batch(0) + OLD
    assert [bytes(found.data) for found in parse_batches(data)] == [bytes(found.data) for found in split_batches(data)]


def test_a_huge_size_allocates_nothing_and_is_torn() -> None:
    data = damaged(STARTS[1] + 8, struct.pack(">i", 0x7FFFFFFF))
    scanned = scan(BufferSource(data), 0, len(data))
    assert len(list(scanned)) == 1
    assert scanned.stop is not None
    assert scanned.stop.kind == "torn"


def test_a_file_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG)
    file = SYSTEM_FS.open(tmp_path / "log")
    assert [found.base_offset for _, found in scan(file, STARTS[1], len(LOG), chunk_bytes=64)] == [3, 6, 9]


def test_a_source_that_became_shorter_is_torn_and_no_endless_loop() -> None:
    scanned = scan(BufferSource(LOG), 0, len(LOG) + 500)
    assert len(list(scanned)) == 4
    assert scanned.stop is not None
    assert scanned.stop.kind == "torn"


# --- after damage -----------------------------------------------------------------------------------------------------


def found(data: bytes | bytearray, position: int, **options: object) -> int | None:
    return find_next_batch(BufferSource(data), position, len(data), **{"next_offset": 0, **options})  # type: ignore[arg-type]


def test_the_next_whole_batch_is_found() -> None:
    assert found(LOG, 1, next_offset=3) == STARTS[1]
    assert found(b"\x07" * 50 + LOG, 0) == 50
    assert found(bytes(3_000_000) + LOG, 0) == 3_000_000


def test_offsets_have_to_fit() -> None:
    assert found(LOG, 1, next_offset=7) == STARTS[3]
    assert found(LOG, 1, next_offset=3, last_offset_max=4) is None
    assert found(LOG, 1, next_offset=12) is None


def test_a_batch_with_a_bad_crc_is_none() -> None:
    assert found(damaged(STARTS[1] + 70, b"\xff"), 1) == STARTS[2]


def test_old_versions_are_found_too() -> None:
    data = b"garbage" + message(5, b"value", timestamp=7)
    assert found(data, 0) == 7


def test_nothing_is_found_where_nothing_is() -> None:
    assert found(bytes(200_000), 0) is None
    assert found(b"\x01" * 20_000, 0) is None


def test_a_batch_within_a_record_is_not_taken_for_the_next_one() -> None:
    embedded = batch(100, count=1)
    outer = build_batch([Record(0, 0, value=b"x" * 30 + embedded + b"y" * 90)])
    data = bytearray(outer + batch(1))
    data[70] ^= 1
    assert found(data, 1, next_offset=0) == len(outer)


@pytest.mark.parametrize("how", ["entry_stop", "hints"])
def test_a_batch_at_the_end_of_a_record_is_not_taken_for_the_next_one(how: str) -> None:
    outer = build_batch([Record(0, 0, value=b"x" * 30 + batch(100, count=1))])
    data = bytearray(outer + batch(1))
    data[70] ^= 1
    options: dict[str, Any] = {"entry_stop": len(outer)} if how == "entry_stop" else {"hints": [len(outer)]}
    assert found(data, 1, next_offset=0, **options) == len(outer)


def test_where_the_damaged_entry_ends_bounds_the_search() -> None:
    # Sizes that are a power of two: a flipped bit in one leads to the start of a later batch.
    assert found(LOG, STARTS[0] + 1, next_offset=3, entry_stop=STARTS[3]) == STARTS[1]
    assert found(LOG, STARTS[0] + 1, next_offset=3, hints=[STARTS[1]], entry_stop=STARTS[3]) == STARTS[1]
    assert found(LOG, STARTS[2] + 1, next_offset=3, entry_stop=STARTS[3] + 5) == STARTS[3]


def test_a_hint_bounds_the_search() -> None:
    data = damaged(STARTS[1] + 17, b"\0\0\0\0")
    assert found(data, STARTS[1] + 1, next_offset=3, hints=[STARTS[3]]) == STARTS[2]
    assert found(data, STARTS[1] + 1, next_offset=3, hints=[STARTS[2]]) == STARTS[2]
    assert found(data, STARTS[1] + 1, next_offset=3, hints=[STARTS[2] + 5]) == STARTS[2]


# --- the walk ---------------------------------------------------------------------------------------------------------


def walked(data: bytes | bytearray, **options: Any) -> list[tuple[int, int] | tuple[str, int, int | None]]:
    steps = walk(BufferSource(data), 0, len(data), next_offset=0, **options)
    return [
        ("damage", step.first_offset, step.next_offset) if isinstance(step, Damage) else (step[0], step[1].base_offset)
        for step in steps
    ]


@pytest.mark.parametrize("at", [8, 16, 17, 30, 70], ids=["size", "magic", "crc", "header", "record"])
def test_a_walk_continues_after_one_damaged_batch(at: int) -> None:
    data = damaged(STARTS[1] + at, b"\xff")
    assert walked(data) == [(0, 0), ("damage", 3, 6), (STARTS[2], 6), (STARTS[3], 9)]


@pytest.mark.parametrize("bit", range(63))
def test_a_flipped_bit_in_a_base_offset_costs_that_batch_alone(bit: int) -> None:
    flipped = 3 ^ (1 << bit)
    data = damaged(STARTS[1], struct.pack(">q", flipped))
    assert walked(data, offset_stop=12) == [(0, 0), ("damage", 3, 6), (STARTS[2], 6), (STARTS[3], 9)]


@pytest.mark.parametrize("bit", range(63))
def test_a_flipped_bit_in_the_last_base_offset_is_found_by_the_segment_s_end(bit: int) -> None:
    flipped = 9 ^ (1 << bit)
    data = damaged(STARTS[3], struct.pack(">q", flipped))
    assert walked(data, offset_stop=12)[:3] == [(0, 0), (STARTS[1], 3), (STARTS[2], 6)]
    assert walked(data, offset_stop=12)[3] in [("damage", 9, None)]


def test_gaps_that_compaction_left_are_no_damage() -> None:
    data = batch(5) + batch(20) + batch(100)
    assert [step[1] for step in walked(data)] == [5, 20, 100]


def test_a_tail_in_which_nothing_is_whole_is_damage_to_the_end() -> None:
    (step,) = walk(BufferSource(bytes(300)), 0, 300, next_offset=7)
    assert isinstance(step, Damage)
    assert (step.position, step.stop, step.first_offset, step.next_offset) == (0, 300, 7, None)


@pytest.mark.parametrize("at", [8, 16, 30, 57, 70], ids=["size", "magic", "header", "count", "record"])
def test_a_whole_batch_between_two_damaged_ones_is_found(at: int) -> None:
    data = damaged(STARTS[1] + 70, b"\xff")
    data[STARTS[3] + at] = 0xFF
    assert walked(data) == [(0, 0), ("damage", 3, 6), (STARTS[2], 6), ("damage", 9, None)]


def after_damage(*bases: int, at: int = 70, size: int = 20) -> bytes:
    """Offsets 0 to 2, damaged offsets 3 to 5, and batches with ``bases``."""
    broken = bytearray(batch(3, size=size))
    broken[at] ^= 0xFF
    return batch(0) + broken + b"".join(batch(base) for base in bases)


@pytest.mark.parametrize("at", [17, 30, 70], ids=["crc", "header", "record"])
@pytest.mark.parametrize("base", [7, 14, 1030], ids=["straddles", "near", "far"])
def test_a_last_batch_after_damage_that_leaps_across_a_known_end_is_damage(base: int, at: int) -> None:
    data = after_damage(base, at=at)
    assert walked(data, known_end=9) == [(0, 0), ("damage", 3, None)]
    assert walked(data)[1:2] == [("damage", 3, base)]


def test_a_batch_after_damage_counts_where_another_bears_it_out_or_nothing_speaks_against_it() -> None:
    assert walked(after_damage(1030, 1033), known_end=9)[1] == ("damage", 3, 1030)
    assert walked(after_damage(6), known_end=9)[1] == ("damage", 3, 6)
    # The known end may be old: the batch after the damaged one was written later.
    assert walked(after_damage(6), known_end=6)[1] == ("damage", 3, 6)


def test_a_batch_after_damage_of_many_batches_counts_above_an_old_known_end() -> None:
    data = bytearray(LOG)
    for start in STARTS[1:3]:
        data[start + 70] ^= 0xFF
    assert walked(data, known_end=6) == [(0, 0), ("damage", 3, 9), (STARTS[3], 9)]


def test_a_batch_after_one_that_leaps_is_found() -> None:
    data = bytearray(after_damage(1030) + batch(6))
    data[-1] ^= 0xFF
    data += batch(9)
    assert walked(data, known_end=9)[1:3] == [("damage", 3, 9), (len(data) - len(batch(9)), 9)]


def test_a_batch_after_damage_that_reaches_into_the_next_one_is_damage() -> None:
    assert walked(after_damage(7, 9)) == [(0, 0), ("damage", 3, 9), (len(after_damage(7)), 9)]
