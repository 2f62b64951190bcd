"""Verification of what a broker wrote: nothing is said of what is sound, and every damage is found."""

from __future__ import annotations

import pytest

from kstore.upkeep.verify import verify, verify_log
from tests.golden_data import golden_partitions, golden_root

# What is damaged in each case, where it is not a batch; a tail is what stands after the last whole batch.
KINDS: dict[str, set[str]] = {
    "flipped-in-last-batch-0": {"tail"},
    "garbage-tail-0": {"tail"},
    "torn-header-0": {"tail"},
    "torn-tail-0": {"tail"},
    "zero-tail-0": {"tail"},
    "index-missing-0": {"index"},
    "index-offset-0": {"index"},
    "index-position-0": {"index"},
    "index-ragged-0": {"index"},
    "index-zeros-0": {"index"},
    "log-empty-0": {"index", "timeindex"},
    "log-ten-bytes-0": {"index", "tail"},
    "snapshot-crc-0": {"snapshot"},
    "timeindex-missing-0": {"timeindex"},
    "timeindex-ragged-0": {"timeindex"},
    "timeindex-time-0": {"timeindex"},
    "timeindex-unordered-0": {"timeindex"},
    "timeindex-zeros-0": {"timeindex"},
    # Kafka reads one of the two bytes of the version, and it is not that one.
    "txnindex-version-0": set(),
}


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old"])
def test_nothing_is_wrong_with_what_a_broker_wrote(tree: str) -> None:
    logs = list(verify(golden_root() / tree))
    assert len(logs) == len(golden_partitions(tree))
    assert [finding for log in logs for finding in log.damages] == []
    assert sum(log.record_count for log in logs) > 0


@pytest.mark.parametrize("name", golden_partitions("damaged"))
@pytest.mark.promise("hostile file")
def test_every_damage_is_found(name: str) -> None:
    log = verify_log(golden_root() / "damaged" / name)
    assert {finding.kind for finding in log.damages} == KINDS.get(name, {"batch"})
