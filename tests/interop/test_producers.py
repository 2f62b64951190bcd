"""Idempotent and transactional batches go from kstore to a real broker and back: both see the same.

A broker gets each log twice, serves exactly its records in both isolation levels, and knows the producers that kstore
knows. In between, kstore continues the broker's log: it recognises repetitions, sequences go on, open transactions end.
The first time the broker trusts the files, the second time it recovers them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
from kstore.log import reads_of
from kstore.state.producer_snapshot import ProducerEntry, decode_snapshot
from kstore.state.producer_state import to_entry
from kstore.types import IsolationLevel
from tests.interop.conftest import Kafka
from tests.interop.producing import Producers, latest
from tools.interop.broker import Broker
from tools.interop.dump import kafka_dumps, runs_over, unexpected_reports, without_emptied
from tools.interop.handover import put_in_place
from tools.interop.records import Consumed

pytestmark = pytest.mark.interop

ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
SEGMENT_BYTES = 8 << 10
SETTINGS: dict[str, Any] = {"durability": "os", "segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 256}
TOPIC_SETTINGS = {"internal.segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "256"}


def decided(producers: Producers) -> None:
    producers.work(250)
    producers.end_all()


def undecided(producers: Producers) -> None:
    producers.work(200)
    producers.end_all()
    producers.send(4, 2, transactional=True)
    producers.send(3, 1, transactional=True)
    producers.work(60)


def deleted(producers: Producers) -> None:
    producers.work(250)
    producers.log.delete_records(producers.log.end_offset // 2)
    producers.work(30)


def compacted(producers: Producers) -> None:
    producers.work(200)
    producers.end_all()
    producers.log.roll()
    assert producers.log.compact().stop_offset > 0
    producers.work(50)


def compacted_twice_and_deleted(producers: Producers) -> None:
    for _ in range(2):
        compacted(producers)
    producers.log.delete_records(producers.log.last_stable_offset // 2)


def hanging(producers: Producers) -> None:
    """Transactions that only the owner of the log ends."""
    producers.work(200)
    producers.send(5, 1, transactional=True)
    for transaction in producers.log.transactions():
        producers.log.abort_transaction(transaction.producer_id)
        producers.aborted.update(producers.open.pop(transaction.producer_id))
    producers.send(5, 2)


def truncated(producers: Producers) -> None:
    """Its end is cut between two batches, and its producers continue from there."""
    producers.work(120)
    producers.end_all()
    before = replace(
        producers,
        sent=list(producers.sent),
        epochs=dict(producers.epochs),
        sequences=dict(producers.sequences),
        open={},
        aborted=set(producers.aborted),
    )
    end = producers.log.end_offset
    producers.work(80)
    producers.log.truncate_to(end)
    for name in ("sent", "epochs", "sequences", "open", "aborted"):
        setattr(producers, name, getattr(before, name))
    producers.work(60)


LOGS: dict[str, Callable[[Producers], None]] = {
    "decided": decided,
    "undecided": undecided,
    "deleted": deleted,
    "compacted": compacted,
    "compacted-twice-and-deleted": compacted_twice_and_deleted,
    "hanging": hanging,
    "truncated": truncated,
}


class Round(NamedTuple):
    """By topic: the model, the directory as kstore closed it and as the broker left it, and what was served."""

    producers: dict[str, Producers]
    given: dict[str, Path]
    left: dict[str, Path]
    consumed: dict[IsolationLevel, dict[str, Consumed]]


@pytest.fixture(scope="module")
def rounds(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    root = tmp_path_factory.mktemp("producers")
    broker = kafka.broker(root)
    with broker.running():
        broker.create_topics(dict.fromkeys(LOGS, TOPIC_SETTINGS))
    models = {
        topic: Producers(kstore.Log(root / "first" / f"{topic}-0", **SETTINGS), seed) for seed, topic in enumerate(LOGS)
    }
    for topic, live in LOGS.items():
        live(models[topic])
        models[topic].close()
    first = serve(broker, root / "first", models, clean=True)
    # Without kstore's own files, which are from before the broker's round.
    shutil.copytree(root / "left-first", root / "second", ignore=shutil.ignore_patterns("kstore.*"))
    models = {topic: go_on(model, root / "second" / f"{topic}-0") for topic, model in models.items()}
    return [first, serve(broker, root / "second", models, clean=False)]


def go_on(model: Producers, directory: Path) -> Producers:
    """The same producers later, with their log as the broker left it."""
    later = replace(
        model,
        log=kstore.Log(directory, **SETTINGS),
        sent=list(model.sent),
        epochs=dict(model.epochs),
        sequences=dict(model.sequences),
        open=dict(model.open),
        aborted=set(model.aborted),
    )
    later.repeat()
    later.end_all()
    later.work(60)
    later.close()
    return later


def serve(broker: Broker, root: Path, models: dict[str, Producers], *, clean: bool) -> Round:
    given = {topic: root / f"{topic}-0" for topic in models}
    put_in_place(broker.data, given, clean=clean)
    with broker.running():
        consumed = {level: broker.consume(given, level) for level in ISOLATION_LEVELS}
    left = root.with_name(f"left-{root.name}")
    for topic in models:
        shutil.copytree(broker.data / f"{topic}-0", left / f"{topic}-0")
    return Round(models, given, {topic: left / f"{topic}-0" for topic in models}, consumed)


each_round = pytest.mark.parametrize("number", [0, 1], ids=["trusted", "recovered"])
each_topic = pytest.mark.parametrize("topic", LOGS)


@each_round
@each_topic
def test_the_broker_serves_exactly_the_records_in_both_isolation_levels(
    topic: str, number: int, rounds: list[Round]
) -> None:
    model = rounds[number].producers[topic]
    everything, committed = (rounds[number].consumed[level][topic] for level in ISOLATION_LEVELS)
    start = everything.begin
    assert (everything.end, committed.end) == (model.end_offset, model.last_stable_offset)
    if "compacted" not in topic:
        assert everything.rows == model.rows(start)
        assert committed.rows == model.committed_rows(start)
    else:
        assert set(everything.rows) <= set(model.rows(start))
        assert set(committed.rows) <= set(model.committed_rows(start))
        assert len(everything.rows) < len(model.rows(start))
        assert latest(committed.rows) == latest(model.committed_rows(start))
    assert (start > 0) == ("deleted" in topic)


@each_round
@each_topic
def test_kstore_reads_what_the_broker_serves(topic: str, number: int, rounds: list[Round]) -> None:
    with kstore.Log(rounds[number].given[topic], read_only=True) as log:
        for level in ISOLATION_LEVELS:
            consumed = rounds[number].consumed[level][topic]
            assert [record.offset for record in log.read(isolation_level=level)] == [
                row.offset for row in consumed.rows
            ]
        assert log.last_stable_offset == rounds[number].consumed["read_committed"][topic].end


@each_round
@each_topic
def test_the_broker_knows_the_producers_that_kstore_knows(topic: str, number: int, rounds: list[Round]) -> None:
    snapshot = max(rounds[number].left[topic].glob("*.snapshot"))
    theirs = decode_snapshot(snapshot.read_bytes())
    assert int(snapshot.stem) == rounds[number].producers[topic].end_offset
    with kstore.Log(rounds[number].given[topic], read_only=True) as log:
        ours = [to_entry(producer) for producer in reads_of(log).source.known_producers()]
    assert in_order(theirs) == in_order(ours)
    assert len(ours) >= 4


def in_order(entries: Iterable[ProducerEntry]) -> list[ProducerEntry]:
    return sorted(entries)


@each_round
@each_topic
def test_the_broker_leaves_segments_and_transaction_indexes_as_they_were(
    topic: str, number: int, rounds: list[Round]
) -> None:
    # A recovering broker omits index entries whose data compaction or a deletion removed.
    is_told_by_data = number == 0 or not ("compacted" in topic or "deleted" in topic)
    for suffix in (".log", ".txnindex") if is_told_by_data else (".log",):
        before, after = (
            {path.name: path.read_bytes() for path in where[topic].glob(f"*{suffix}") if path.stat().st_size}
            for where in (rounds[number].given, rounds[number].left)
        )
        assert before == after
    assert len(list(rounds[number].given[topic].glob("*.log"))) > 1


@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_kafkas_dump_tool_finds_no_mismatch(number: int, rounds: list[Round], kafka: Kafka, tmp_path: Path) -> None:
    given = rounds[number].given
    runs = {topic: runs_over(shutil.copytree(path, tmp_path / path.name)) for topic, path in given.items()}
    (tmp_path / "printed").mkdir()
    printed = kafka_dumps(kafka.java, kafka.jars, [run for some in runs.values() for run in some], tmp_path / "printed")
    for topic, of_topic in runs.items():
        with kstore.Log(given[topic], read_only=True) as log:
            offsets = [record.offset for record in log.read()]
        for run in of_topic:
            assert printed[run].threw == ""
            assert b"isvalid: false" not in printed[run].out
            reports = unexpected_reports(printed[run].err, offsets)
            assert (without_emptied(reports) if "compacted" in topic else reports) == [], str(run)
