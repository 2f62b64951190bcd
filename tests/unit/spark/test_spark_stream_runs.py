"""Whole runs of streams: a broker's logs, and queries that are killed anywhere while their store changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import kstore
from kstore.spark.options import ReadOptions
from kstore.spark.schema import spark_schema
from kstore.spark.stream import KStoreStreamReader
from tests.golden.test_golden_reads import consumed_files, expected_records
from tests.support.harness.evidence import Hung, Lost, Wrong
from tests.support.harness.golden_data import golden_root
from tests.unit.spark.test_spark_stream import Json, reader

Count = Callable[[str, int], None]
Row = tuple[str, int, int, bytes | None]


def rows_of(source: KStoreStreamReader, start: Json, end: Json) -> list[Row]:
    batches = [batch for split in source.partitions(start, end) for batch in source.read(split)]
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in rows)


# --- what a broker wrote ---------------------------------------------------------------------------------------------


def consumed(path: Path, level: str) -> list[tuple[int, bytes | None]]:
    committed = path.with_name(path.name.replace(".jsonl", ".read_committed.jsonl"))
    if level == "read_committed" and committed.exists():
        path = committed
    return [(record["offset"], record["value"]) for record in expected_records(path)[1]]


@pytest.mark.parametrize(
    ("level", "limit"),
    [("read_committed", {"maxOffsetsPerTrigger": "7"}), ("read_uncommitted", {"maxBytesPerTrigger": "300"})],
    ids=["committed", "uncommitted"],
)
@pytest.mark.parametrize(("tree", "path"), consumed_files(".jsonl"))
@pytest.mark.sampled(8)
def test_a_broker_partition_streams_as_its_consumer_read_it(
    tree: str, path: Path, level: str, limit: dict[str, str], tried: Count
) -> None:
    directory = golden_root() / tree / path.name.removesuffix(".jsonl")
    expected = consumed(path, level)
    if len(expected) > 500:
        limit = {name: text + "00" for name, text in limit.items()}
    source = reader(directory, startingOffsets="earliest", isolationLevel=level, **limit)
    at: Json = source.initialOffset()
    found: list[tuple[int, bytes | None]] = []
    while (end := source.latestOffset(at, source.getDefaultReadLimit())) != at:
        found += [(offset, value) for _, _, offset, value in rows_of(source, at, end)]
        at = end
        tried("reads", 1)
    source.stop()
    if found != expected:
        raise Wrong(f"{len(found)} records, expected {len(expected)}")


# --- queries that are killed -----------------------------------------------------------------------------------------


class Killed(Exception):
    """The query at a point where it may be killed."""


class Checkpoint:
    """Spark's state of a query: the end of each batch before it runs, then that it ran, and its sink's rows."""

    def __init__(self) -> None:
        self.ends: list[Json] = []
        self.committed = 0
        self.output: dict[int, list[Row]] = {}
        self.first_start: Json = {}


class Spark:
    """One run of a query, from its checkpoint on, in the order of Spark's MicroBatchExecution."""

    def __init__(self, checkpoint: Checkpoint, source: KStoreStreamReader, kill: Callable[[], None]) -> None:
        self._checkpoint = checkpoint
        self._source = source
        self._kill = kill

    def run(self, triggers: int) -> bool:
        """Whether the last run found nothing new."""
        kept = self._checkpoint
        start: Json
        if kept.committed == 0:
            start = self._source.initialOffset()
            self._kill()
            if not kept.ends:
                kept.first_start = start
        else:
            start = kept.ends[kept.committed - 1]
        if len(kept.ends) > kept.committed:
            self._batch(start, kept.ends[-1])
            start = kept.ends[-1]
        for _ in range(triggers):
            end = self._source.latestOffset(start, self._source.getDefaultReadLimit())
            if end == start and kept.committed:
                return True
            self._kill()
            kept.ends.append(end)
            self._kill()
            self._batch(start, end)
            start = end
        return False

    def _batch(self, start: Json, end: Json) -> None:
        kept = self._checkpoint
        rows = rows_of(self._source, start, end)
        before = kept.output.get(kept.committed)
        if before is not None and before != rows:
            raise Wrong(f"batch {kept.committed} had {len(before)} records, and has {len(rows)} when it is run again")
        self._kill()
        kept.output[kept.committed] = rows
        self._kill()
        kept.committed += 1
        self._kill()


class World:
    """A store that changes at random, and all records that a committed reader may get of it."""

    def __init__(self, store: kstore.Store, draw: random.Random) -> None:
        self.store = store
        self._draw = draw
        self._number = 0
        self.written: set[Row] = set()
        self._producer = store.producer(transactional_id="p")
        self._producer.init_transactions()
        self._open: list[Row] = []
        store.create_topic("t", 2)

    def change(self, query: Checkpoint) -> None:
        draw, store = self._draw, self.store
        what = draw.choice(["append"] * 6 + ["open", "end", "end", "roll", "more partitions", "retention"])
        partition = draw.choice(store.partitions("t"))
        log = store.log("t", partition)
        if what == "append":
            values = [self._value() for _ in range(draw.choice([1, 1, 5, 30]))]
            first = log.append_many(values).first_offset
            self.written |= {("t", partition, first + index, value) for index, value in enumerate(values)}
        elif what == "open":
            if not self._open:
                self._producer.begin_transaction()
            value = self._value()
            sent = self._producer.send("t", value, partition=partition)
            self._producer.flush()
            self._open.append(("t", partition, sent.result().offset, value))
        elif what == "end" and self._open:
            self.end_transaction(commit=draw.random() < 0.6)
        elif what == "roll":
            log.roll()
        elif what == "more partitions" and len(store.partitions("t")) < 6:
            store.add_partitions("t", len(store.partitions("t")) + 1)
        elif what == "retention" and query.committed:
            # Only what the query has finished.
            done = query.ends[query.committed - 1].get("t", {}).get(str(partition), 0)
            log.delete_records(min(done, log.last_stable_offset))

    def end_transaction(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction()
            self.written |= set(self._open)
        else:
            self._producer.abort_transaction()
        self._open = []

    def close(self) -> None:
        if self._open:
            self.end_transaction(commit=True)
        self._producer.close()

    def _value(self) -> bytes:
        self._number += 1
        return b"%d" % self._number * self._draw.choice([1, 1, 40])


LIMITS: list[dict[str, str]] = [
    {},
    {"maxOffsetsPerTrigger": "9"},
    {"maxBytesPerTrigger": "400"},
    {"minOffsetsPerTrigger": "20", "maxTriggerDelay": "0"},
    {"maxOffsetsPerTrigger": "30", "maxBytesPerTrigger": "900", "minPartitions": "3"},
]


def one_world(directory: Path, seed: int, tried: Count) -> None:
    draw = random.Random(seed)
    starting = draw.choice(["earliest", "latest"])

    def kill() -> None:
        if draw.random() < 0.08:
            raise Killed
        for _ in range(draw.choice([0, 0, 0, 1, 3])):
            world.change(checkpoint)

    def run(triggers: int, *, to_the_end: bool = False) -> bool:
        source = reader(directory, startingOffsets=starting, **draw.choice(LIMITS))
        try:
            if to_the_end:
                source.prepareForTriggerAvailableNow()
                return Spark(checkpoint, source, lambda: None).run(triggers)
            return Spark(checkpoint, source, kill).run(triggers)
        except Killed:
            tried("kills", 1)
            return False
        finally:
            source.stop()

    with kstore.Store(directory, segment_bytes=6000, durability="os") as store:
        checkpoint, world = Checkpoint(), World(store, draw)
        for _ in range(12):
            for _ in range(draw.randint(0, 6)):
                world.change(checkpoint)
            run(draw.randint(1, 6))
        world.close()
        # Twice: a partition that starts at its end gets its first batch only then.
        if not all([run(10_000, to_the_end=True), run(10_000, to_the_end=True)]):
            raise Hung("the query does not reach the end")
    first: dict[str, Any] = checkpoint.first_start.get("t", {})
    expected = sorted(row for row in world.written if row[2] >= first.get(str(row[1]), 0))
    found = sorted(row for rows in checkpoint.output.values() for row in rows)
    if lost := set(expected) - set(found):
        raise Lost(f"seed {seed}, {starting}: {len(lost)} records of {len(expected)}, like {min(lost)}")
    if found != expected:
        raise Wrong(f"seed {seed}, {starting}: {len(found)} records, expected {len(expected)}")
    tried("reads", len(checkpoint.ends))


@pytest.mark.parametrize("number", range(10))
@pytest.mark.sampled(1)
def test_a_query_that_is_killed_anywhere_gets_each_record_once(
    number: int, tmp_path: Path, seed: int, tried: Count
) -> None:
    one_world(tmp_path / "store", seed * 1000 + number, tried)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(300))
def test_queries_that_are_killed_anywhere_get_each_record_once(
    number: int, tmp_path: Path, seed: int, tried: Count
) -> None:
    one_world(tmp_path / "store", seed * 1000 + 100 + number, tried)


# --- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_log_in_another_store_is_followed_as_it_grows(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    with kstore.Store(tmp_path / "store") as store:
        store.create_topic("t", 1)
        log = store.log("t")
        source: KStoreStreamReader | None = None
        at: Json = {}
        try:
            for number in range(3):
                log.append_many([b"%d" % (number * 10 + index) for index in range(10)])
                for path in (tmp_path / "store" / "t-0").iterdir():
                    if path.is_file():
                        files.pipe_file(f"/kstore-stream/t-0/{path.name}", path.read_bytes())
                if source is None:
                    options = {"path": "memory://kstore-stream", "startingOffsets": "earliest"}
                    source = KStoreStreamReader(ReadOptions.parse(options, streaming=True), spark_schema())
                    at = source.initialOffset()
                end = source.latestOffset(at, source.getDefaultReadLimit())
                assert end == {"t": {"0": 10 * (number + 1)}}
                assert [row[2] for row in rows_of(source, at, end)] == [*range(10 * number, 10 * (number + 1))]
                at = end
        finally:
            files.rm("/kstore-stream", recursive=True)
            if source is not None:
                source.stop()
