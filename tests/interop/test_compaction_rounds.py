"""A broker's cleaner and kstore's over the same log, round after round as it grows; horizons expire in between.

A transaction's end and a tombstone take several passes: the first removes the data, the next sets the horizon, one
after that horizon removes the marker. Producers are live here, so their last batches stay, empty.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from kstore.log import Log
from kstore.upkeep.handover import from_broker, to_broker
from tests.interop.cleaning import first_difference, timeless, wait_until_clean
from tests.interop.conftest import Kafka
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Wrong
from tests.support.oracles.compaction_model import Batches, Kept, batches_in
from tools.interop.broker import Broker
from tools.interop.records import Row, rows_of

pytestmark = pytest.mark.interop


class Shape(NamedTuple):
    """The number of batches in a round, and of keys."""

    seed: int
    batches: int
    keys: int
    segment_bytes: int = 16 << 10


# Many small segments stay unmerged. Transactions of "left-open" are open between the rounds.
LOGS = {
    "few-keys": Shape(1, 150, 4),
    "many-keys": Shape(2, 150, 60),
    "one-segment": Shape(3, 20, 4),
    "small-segments": Shape(4, 150, 150, segment_bytes=1024),
    "left-open": Shape(5, 150, 12),
}
LEFT_OPEN = "left-open"
ROUNDS = 5
# From this round on all transactions end: later passes complete what earlier ones left for open transactions.
ENDED_FROM = 1
# Far less than a broker takes to start.
RETENTION_MS = 500
BETWEEN_MS = 60_000
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0001",
    "index.interval.bytes": "256",
    "delete.retention.ms": str(RETENTION_MS),
    "segment.ms": str(2**60),
}


class Pass(NamedTuple):
    """A log after a round: its batches, segments, transaction indexes, and what a committed reader gets."""

    batches: list[Kept]
    segments: list[str]
    aborted: dict[str, bytes]
    committed: list[Row]


class Story(NamedTuple):
    """By topic, the log after each round, the broker's and kstore's."""

    by_broker: dict[str, list[Pass]]
    by_kstore: dict[str, list[Pass]]


def parts(topic: str, now_ms: int) -> list[list[bytes]]:
    """What each round appends; at the first round the records are an hour old."""
    shape = LOGS[topic]
    batches = Batches(random.Random(shape.seed), now_ms - 3_600_000)
    made = []
    for number in range(ROUNDS):
        for _ in range(shape.batches):
            batches.add(shape.keys)
        if topic != LEFT_OPEN or number >= ENDED_FROM:
            batches.end_all()
        made.append(batches.data)
        batches.data = []
    return made


def opened(data: Path, topic: str, clock: ManualClock) -> Log:
    return Log(
        data / f"{topic}-0",
        durability="os",
        clock=clock,
        segment_bytes=LOGS[topic].segment_bytes,
        index_interval_bytes=256,
        cleanup_policy="compact",
        delete_retention_ms=RETENTION_MS,
    )


def append(data: Path, topic: str, part: list[bytes], clock: ManualClock) -> None:
    """Appends, and seals the last segment: no pass takes the active one."""
    with opened(data, topic, clock) as log:
        for batch in part:
            log.append_batches(batch, assign_offsets=False)
        log.roll()


def compacted(data: Path, topic: str, clock: ManualClock) -> int:
    """Compacts; returns where a broker stops, which leaves the whole segment of an open transaction."""
    bases = [int(path.stem) for path in (data / f"{topic}-0").glob("*.log")]
    with opened(data, topic, clock) as log:
        report = log.compact()
        assert not report.corrupt
        assert not report.stopped
        log.check()
        assert log.verify().clean
        return max(base for base in bases if base <= report.stop_offset)


def seen(directory: Path, committed: list[Row]) -> Pass:
    segments = sorted(path.name for path in directory.glob("*.log"))
    aborted = {path.name: path.read_bytes() for path in directory.glob("*.txnindex")}
    # The broker sets its own leader epoch.
    committed = [row._replace(leader_epoch=0) for row in committed]
    return Pass(batches_in(directory), segments, {name: data for name, data in aborted.items() if data}, committed)


def committed_by_kstore(directory: Path) -> list[Row]:
    with Log(directory, read_only=True) as log:
        return rows_of(log.read(isolation_level="read_committed"))


def round_of_broker(
    broker: Broker, appended: dict[str, list[bytes]], stops: dict[str, int], clock: ManualClock
) -> dict[str, Pass]:
    """Appends, and lets the broker clean up to ``stops``."""
    assert from_broker(broker.data).is_whole
    for topic, part in appended.items():
        append(broker.data, topic, part, clock)
    assert to_broker(broker.data).is_whole
    with broker.running():
        wait_until_clean(broker, stops)
        consumed = broker.consume(LOGS, "read_committed")
    return {topic: seen(broker.data / f"{topic}-0", consumed[topic].rows) for topic in LOGS}


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("rounds")
    (root / "broker").mkdir()
    broker = kafka.broker(root / "broker")
    broker.extra_properties = "log.cleaner.backoff.ms=200\nlog.initial.task.delay.ms=100\n"
    with broker.running():
        broker.create_topics(
            {
                topic: TOPIC_SETTINGS | {"internal.segment.bytes": str(shape.segment_bytes)}
                for topic, shape in LOGS.items()
            }
        )
    now_ms = time.time_ns() // 1_000_000
    clock = ManualClock(now_ms)
    made = {topic: parts(topic, now_ms) for topic in LOGS}
    by_broker: dict[str, list[Pass]] = {topic: [] for topic in LOGS}
    by_kstore: dict[str, list[Pass]] = {topic: [] for topic in LOGS}
    for number in range(ROUNDS):
        stops = {}
        for topic in LOGS:
            directory = root / "kstore" / f"{topic}-0"
            append(root / "kstore", topic, made[topic][number], clock)
            stops[topic] = compacted(root / "kstore", topic, clock)
            by_kstore[topic].append(seen(directory, committed_by_kstore(directory)))
        left = round_of_broker(broker, {topic: made[topic][number] for topic in LOGS}, stops, clock)
        for topic, one in left.items():
            by_broker[topic].append(one)
        clock.advance(BETWEEN_MS)
    shutil.rmtree(root)
    return Story(by_broker, by_kstore)


def compare(topic: str, number: int, story: Story) -> None:
    theirs, ours = story.by_broker[topic][number], story.by_kstore[topic][number]
    if timeless(theirs.batches) != timeless(ours.batches):
        raise Wrong(f"round {number}: {first_difference(theirs.batches, ours.batches)}")
    assert ours.segments == theirs.segments
    assert ours.aborted == theirs.aborted
    assert ours.committed == theirs.committed


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("topic", [topic for topic in LOGS if topic != LEFT_OPEN])
def test_each_round_keeps_what_a_broker_s_keeps(topic: str, number: int, story: Story) -> None:
    compare(topic, number, story)


def test_what_was_left_for_open_transactions_ends_in_the_same(story: Story) -> None:
    compare(LEFT_OPEN, ROUNDS - 1, story)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_beside_open_transactions_a_committed_reader_gets_the_same(number: int, story: Story) -> None:
    theirs, ours = story.by_broker[LEFT_OPEN][number], story.by_kstore[LEFT_OPEN][number]
    assert latest(ours.committed) == latest(theirs.committed)


def latest(rows: list[Row]) -> dict[bytes, Row]:
    """The last record of each key that was not deleted."""
    last = {row.key: row for row in rows if row.key is not None}
    return {key: row for key, row in last.items() if row.value is not None}


def test_all_that_takes_several_passes_came_to_pass(story: Story) -> None:
    """Markers and tombstones went after their horizon, and not before; producers' last batches stayed, empty."""
    passes = story.by_kstore["few-keys"]
    for kind in (is_marker, is_tombstone):
        waiting = [{one.base_offset for one in each.batches if kind(one) and one.delete_horizon_ms} for each in passes]
        left = [{one.base_offset for one in each.batches} for each in passes]
        assert any(waiting)
        assert any(before - after for before, after in zip(waiting, left[1:], strict=False))
    assert any(one.is_transactional and not one.records for one in passes[-1].batches)
    assert any(each.aborted for each in passes)


def is_marker(batch: Kept) -> bool:
    return batch.is_control


def is_tombstone(batch: Kept) -> bool:
    return not batch.is_control and any(record[3] is None for record in batch.records)
