"""kstore compacts a real broker's logs: each key keeps its last value, in every format and codec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.log import Log
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.golden_data import copy_partition, golden_partitions
from tests.support.lives.log_cases import segment_bases

TREES = ("clean", "crashed", "recovered", "old")
# The controller's own log has no keys.
CASES = [
    pytest.param(tree, partition, id=f"{tree}-{partition}")
    for tree in TREES
    for partition in golden_partitions(tree)
    if partition != "__cluster_metadata-0"
]

Values = dict[bytes, bytes | None]


def latest(log: Log) -> tuple[Values, list[int]]:
    """The last value of each key, without tombstones; and the offsets of the records that have no key."""
    values: Values = {}
    keyless = []
    for record in log.read(isolation_level="read_committed"):
        if record.key is None:
            keyless.append(record.offset)
        else:
            values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}, keyless


@pytest.mark.parametrize(("tree", "partition"), CASES)
@pytest.mark.sampled(14)
def test_a_broker_s_log_keeps_the_last_value_of_each_key(
    tree: str, partition: str, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    path = copy_partition(tree, partition, tmp_path)
    with Log(path, durability="os") as log:
        values, keyless = latest(log)
        end = log.end_offset
        log.roll()
        for _ in range(2):
            report = log.compact(whole=True)
            assert not report.corrupt
            assert not report.stopped
            if latest(log) != (values, keyless):
                raise Lost(f"{partition}: {report}")
            if log.end_offset != end:
                raise Wrong(f"{partition} ends at {log.end_offset}, but ended at {end}")
            tried("states", 1)
        assert report.records_kept <= report.records_read
        log.check()
        assert log.verify().clean
    with Log(path) as log:
        assert log.recovery.clean
        assert latest(log) == (values, keyless)
    assert verify_log(path).damages == []


def test_a_broker_s_dirty_log_shrinks_and_keeps_what_was_clean(tmp_path: Path) -> None:
    path = copy_partition("clean", "compacted-0", tmp_path)
    before = segment_bases(path)
    # After every horizon that the broker set.
    clock = ManualClock(4_000_000_000_000)
    with Log(path, durability="os", clock=clock, segment_bytes=1 << 20, delete_retention_ms=0) as log:
        values, _ = latest(log)
        log.roll()
        log.compact(whole=True)
        log.compact(whole=True)
        found = list(log.read())
        assert {record.key: record.value for record in found} == values, "tombstones are gone, and nothing is double"
        assert len(found) == len(values)
    assert len(segment_bases(path)) < len(before)
