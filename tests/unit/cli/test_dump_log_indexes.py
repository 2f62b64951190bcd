"""What ``kstore dump-log`` prints of indexes and snapshots, and how it compares them with the log."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kstore.state.producer_snapshot import ProducerEntry, encode_snapshot
from tests.support.lives.dump_helpers import BASE, Dump, T, batch, flip, write_index, write_log, write_time_index


def test_index_entries_are_shown_and_those_that_contradict_the_log_reported(dump: Dump) -> None:
    _, second, third = write_log(batch(0, 3), batch(3, 5), batch(5, 8))
    write_index((5, second), (6, third))
    status, out, err = dump("--files", f"{BASE}.index")
    assert status == 1
    assert out == f"Dumping {BASE}.index\noffset: 5 position: {second}\noffset: 6 position: {third}\n"
    # The highest comes first.
    assert err == (f"Mismatches in :{BASE}.index\n  Index offset: 6, log offset: 7\n  Index offset: 5, log offset: 4\n")
    assert dump("--verify-index-only", "--files", f"{BASE}.index") == (1, f"Dumping {BASE}.index\n", err)


def test_zeros_after_the_entries_of_an_index_are_no_entries(dump: Dump) -> None:
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
    assert f"cannot be checked without {BASE}{missing}, which does not exist" in err


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
