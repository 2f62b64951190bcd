"""Verification of a broker's files: no report on sound ones, and every damage is found."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from kstore.upkeep.verify import verify, verify_log
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root

# What is damaged in each case, unless it is a batch; a tail is what follows the last whole batch.
KINDS: dict[str, set[str]] = {
    "flipped-in-last-batch-0": {"tail"},
    "garbage-tail-0": {"tail"},
    "torn-header-0": {"tail"},
    "torn-tail-0": {"tail"},
    # Zeros at the end are space that a broker has allocated ahead.
    "zero-tail-0": set(),
    "index-missing-0": {"index"},
    "index-offset-0": {"index"},
    "index-position-0": {"index"},
    "index-ragged-0": {"index"},
    "index-zeros-0": {"index"},
    "log-empty-0": {"index", "timeindex"},
    "log-ten-bytes-0": {"index"},
    "snapshot-crc-0": {"snapshot"},
    "timeindex-missing-0": {"timeindex"},
    "timeindex-ragged-0": {"timeindex"},
    "timeindex-time-0": {"timeindex"},
    "timeindex-unordered-0": {"timeindex"},
    "timeindex-zeros-0": {"timeindex"},
    "txnindex-version-0": {"txnindex"},
}


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old", "started"])
def test_nothing_is_wrong_with_what_a_broker_wrote(tree: str) -> None:
    logs = list(verify(golden_root() / tree))
    assert len(logs) == len(golden_partitions(tree))
    assert [finding for log in logs for finding in log.damages] == []
    assert sum(log.record_count for log in logs) > 0


@pytest.mark.parametrize("name", golden_partitions("damaged"))
@pytest.mark.promise("hostile file")
def test_every_damage_is_found(name: str) -> None:
    directory = golden_root() / "damaged" / name
    log = verify_log(directory)
    # Only the broken segment was kept: the snapshot of the clean close proves that the log had more.
    ends = (int(path.stem) for path in directory.glob("*.snapshot"))
    is_cut_short = max(ends) > log.end_offset and name != "snapshot-crc-0"  # there the only later one is damaged
    assert {finding.kind for finding in log.damages} == KINDS.get(name, {"batch"}) | (
        {"lost"} if is_cut_short else set()
    )


@pytest.mark.parametrize(
    ("field", "value", "is_sound"),
    [
        ("first", 96, False),
        ("first", 97, True),
        ("first", 108, True),
        ("first", 109, False),
        ("stable", 109, False),
        ("stable", 110, True),
        ("stable", 111, False),
        ("stable", -1, False),
    ],
)
def test_a_transaction_across_the_log_s_start_may_begin_where_it_did_or_above_the_start(
    tmp_path: Path, field: str, value: int, is_sound: bool
) -> None:
    # The log starts at 108. The transaction has records at 97, 106, 108 and later; another one is open since 110.
    log = copy_partition("started", "recovered-0", tmp_path)
    shutil.copyfile(golden_root() / "started" / "log-start-offset-checkpoint", tmp_path / "log-start-offset-checkpoint")
    index = log / "00000000000000000207.txnindex"
    entry = bytearray(index.read_bytes())
    struct.pack_into(">q", entry, 10 if field == "first" else 26, value)
    index.write_bytes(entry)
    assert [found.kind for found in verify_log(log).damages] == ([] if is_sound else ["txnindex"])


def test_compaction_may_hide_where_an_aborted_transaction_began(tmp_path: Path) -> None:
    log = copy_partition("started", "compacted-2", tmp_path)
    shutil.copyfile(golden_root() / "started" / "log-start-offset-checkpoint", tmp_path / "log-start-offset-checkpoint")
    # Its first record is now at 345, and its producer's previous transaction ended at 304.
    index = log / "00000000000000000339.txnindex"
    entry = bytearray(index.read_bytes())
    assert entry[10:18] == struct.pack(">q", 336)
    struct.pack_into(">q", entry, 10, 304)
    index.write_bytes(entry)
    assert [found.kind for found in verify_log(log).damages] == ["txnindex"]
