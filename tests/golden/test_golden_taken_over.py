"""kstore takes over every partition that a real broker wrote, continues it, and loses nothing.

It appends to each one, with producers too, compacts it, deletes records at its start, and closes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore.files.paths import CLEAN_SHUTDOWN
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.upkeep.verify import verify_log
from tests.support.harness.golden_data import golden_partitions, golden_root

# A directory whose broker stopped cleanly, was killed, or recovered after that; and logs of old versions.
TREES = ("clean", "crashed", "recovered", "old")
PARTITIONS = [f"{tree}/{name}" for tree in TREES for name in golden_partitions(tree)]
PRODUCER, OTHER_PRODUCER = 4711, 4712
SETTINGS: dict[str, Any] = {
    "durability": "os",
    "segment_bytes": 64 << 10,
    "index_interval_bytes": 256,
    "max_message_bytes": 64 << 10,
}


def sent(log: kstore.Log, producer_id: int, sequence: int, *, transactional: bool) -> None:
    data = build_batch(
        [
            Record(number, writer_of(log).context.clock.now_ms(), key=b"key-%d" % number, value=b"new")
            for number in range(3)
        ],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    first = log.append_batches(data)
    assert log.append_batches(data) == first._replace(is_duplicate=True)


def go_on(log: kstore.Log) -> None:
    """More of everything, over several segments: plain records, a commit, an abort, an open transaction."""
    for round_ in range(2):
        log.append_many([b"value"] * 20, keys=[b"key-%d" % number for number in range(20)])
        sent(log, OTHER_PRODUCER, 3 * round_, transactional=False)
        for number, commit in enumerate((True, False)):
            sent(log, PRODUCER, 6 * round_ + 3 * number, transactional=True)
            log.end_transaction(PRODUCER, 0, commit=commit)
        log.roll()
    sent(log, PRODUCER, 12, transactional=True)


Triple = tuple[int, bytes | None, bytes | None]


class Life(NamedTuple):
    """A partition that was used and closed; its records before its compaction and at the end."""

    directory: Path
    start_offset: int
    before: list[Triple]
    committed_before: list[Triple]
    after: list[Triple]


def triples(log: kstore.Log, **options: Any) -> list[Triple]:
    return [(record.offset, record.key, record.value) for record in log.read(**options)]


def taken_over(source: Path, store: Path) -> Life:
    """Takes over the partition with its broker's checkpoints and the mark of a clean stop."""
    directory = store / source.name
    shutil.copytree(source, directory, copy_function=shutil.copyfile)
    for mark in source.parent.iterdir():
        if mark.is_file():
            shutil.copyfile(mark, store / mark.name)
    with kstore.Log(directory, **SETTINGS) as log:
        # No checkpoint says how far the metadata log is on disk.
        is_believed = (store / CLEAN_SHUTDOWN).exists() and source.name != "__cluster_metadata-0"
        assert log.recovery.clean == is_believed
        assert not log.recovery.corrupt
        appended_from = log.end_offset
        for transaction in log.transactions():
            log.abort_transaction(transaction.producer_id)
        go_on(log)
        before, committed_before = triples(log), triples(log, isolation_level="read_committed")
        log.compact(whole=True, keep_keyless=True)
        log.delete_records((log.start_offset + appended_from) // 2)
        log.check()
        return Life(directory, log.start_offset, before, committed_before, triples(log))


def latest(rows: list[Triple], start_offset: int) -> dict[bytes, bytes]:
    """The last value of each key: what compaction must not change."""
    found = {key: value for offset, key, value in rows if key is not None and offset >= start_offset}
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.sampled(16)
def test_nothing_is_lost_but_what_compaction_and_deletion_take(name: str, tmp_path: Path) -> None:
    life = taken_over(golden_root() / name, tmp_path / "store")
    with kstore.Log(life.directory, read_only=True) as log:
        assert log.recovery.clean
        assert (log.start_offset, triples(log)) == (life.start_offset, life.after)
        committed = triples(log, isolation_level="read_committed")
        assert len(log.transactions()) == 1
    assert set(life.after) <= set(life.before)
    assert set(committed) <= set(life.committed_before)
    assert latest(committed, 0) == latest(life.committed_before, life.start_offset)
    # Records without a key stay, except aborted ones.
    keyless = [row for row in life.committed_before if row[1] is None and row[0] >= life.start_offset]
    assert [row for row in committed if row[1] is None] == keyless
    assert [finding for finding in verify_log(life.directory).findings if finding.severity == "damage"] == []
