"""A broker's own cleaner and kstore's, over the same dirty logs: they keep the same batches with the same records.

Neither Kafka's dump tool nor a broker that serves kstore's result finds anything wrong with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from kstore.log import Log
from tests.interop.cleaning import first_difference, timeless, wait_until_clean
from tests.interop.conftest import Kafka
from tests.support.harness.evidence import Lost
from tests.support.oracles.compaction_model import batches_in, random_batches
from tools.interop import java
from tools.interop.dump import kafka_dumps, runs_over, unexpected_reports
from tools.interop.handover import put_in_place

pytestmark = pytest.mark.interop

# By topic: the seed, how many batches and how many keys.
LOGS = {"cleaned-few-keys": (1, 300, 5), "cleaned-many-keys": (2, 300, 200), "cleaned-long": (3, 900, 40)}
SEGMENT_BYTES = 16 << 10
RETENTION_MS = 86_400_000
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0001",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "index.interval.bytes": "256",
    "delete.retention.ms": str(RETENTION_MS),
    "segment.ms": str(2**60),
}


class Cleaned(NamedTuple):
    """By topic: the dirty log, the broker's result, and kstore's."""

    dirty: dict[str, Path]
    by_broker: dict[str, Path]
    by_kstore: dict[str, Path]


@pytest.fixture
def compared(request: pytest.FixtureRequest, kafka: Kafka, topic: str) -> str:
    """A topic whose two results are alike, but for one with the cleaner of 4.4."""
    if kafka.release == java.NEWEST_KAFKA and topic == "cleaned-many-keys":
        reason = "Kafka 4.4 removes an emptied batch that kstore keeps, as Kafka 4.3 does"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return topic


def write(directory: Path, seed: int, count: int, keys: int) -> Path:
    with Log(directory, durability="os", segment_bytes=SEGMENT_BYTES, index_interval_bytes=256) as log:
        for data in random_batches(seed, count, keys):
            log.append_batches(data, assign_offsets=False)
    return directory


def compacted(dirty: Path, target: Path) -> Path:
    shutil.copytree(dirty, target)
    with Log(
        target,
        durability="os",
        segment_bytes=SEGMENT_BYTES,
        index_interval_bytes=256,
        cleanup_policy="compact",
        delete_retention_ms=RETENTION_MS,
    ) as log:
        report = log.compact()
        assert report.stop_offset > 0
        assert not report.corrupt
    return target


@pytest.fixture(scope="module")
def cleaned(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Cleaned:
    root = tmp_path_factory.mktemp("cleaned")
    dirty = {topic: write(root / "dirty" / f"{topic}-0", *shape) for topic, shape in LOGS.items()}
    (root / "broker").mkdir()
    broker = kafka.broker(root / "broker")
    broker.extra_properties = "log.cleaner.backoff.ms=200\nlog.initial.task.delay.ms=100\n"
    with broker.running():
        broker.create_topics(dict.fromkeys(LOGS, TOPIC_SETTINGS))
    put_in_place(broker.data, dirty, clean=True)
    with broker.running():
        # Up to the active segment.
        wait_until_clean(broker, {topic: max(int(log.stem) for log in dirty[topic].glob("*.log")) for topic in LOGS})
    by_broker = {topic: broker.data / f"{topic}-0" for topic in LOGS}
    by_kstore = {topic: compacted(path, root / "kstore" / f"{topic}-0") for topic, path in dirty.items()}
    return Cleaned(dirty, by_broker, by_kstore)


@pytest.mark.parametrize("topic", LOGS)
def test_a_broker_s_cleaner_and_kstore_keep_the_same(compared: str, cleaned: Cleaned) -> None:
    theirs, ours = batches_in(cleaned.by_broker[compared]), batches_in(cleaned.by_kstore[compared])
    assert len(theirs) < len(batches_in(cleaned.dirty[compared]))
    if timeless(theirs) != timeless(ours):
        raise Lost(first_difference(theirs, ours))


@pytest.mark.parametrize("topic", LOGS)
def test_segments_and_indexes_of_transactions_are_alike(topic: str, cleaned: Cleaned) -> None:
    theirs, ours = cleaned.by_broker[topic], cleaned.by_kstore[topic]
    assert sorted(path.name for path in ours.glob("*.log")) == sorted(path.name for path in theirs.glob("*.log"))
    for path in theirs.glob("*.txnindex"):
        if path.stat().st_size:
            assert (ours / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("topic", LOGS)
def test_kafka_s_dump_tool_finds_no_mismatch_that_it_does_not_find_in_the_broker_s_own(
    compared: str, cleaned: Cleaned, kafka: Kafka, tmp_path: Path
) -> None:
    """The tool finds no time in an emptied batch, and so reports the time index entry that leads to it."""
    theirs = reports(cleaned.by_broker[compared], kafka, tmp_path / "theirs")
    ours = reports(cleaned.by_kstore[compared], kafka, tmp_path / "ours")
    assert {run: said for run, said in ours.items() if said and said != theirs.get(run)} == {}
    assert len(ours) > 10


def reports(directory: Path, kafka: Kafka, root: Path) -> dict[str, list[str]]:
    """Kafka's dump tool's reports on a log by file and options, without the paths."""
    copy, work = root / "copy", root / "work"
    shutil.copytree(directory, copy)
    work.mkdir()
    offsets = sorted(record[0] for batch in batches_in(copy) for record in batch.records)
    dumps = kafka_dumps(kafka.java, kafka.jars, runs_over(copy), work)
    assert [printed.threw for printed in dumps.values() if printed.threw] == []
    return {
        str(run): [line.replace(str(copy), "") for line in unexpected_reports(printed.err, offsets)]
        for run, printed in dumps.items()
    }
