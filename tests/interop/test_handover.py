"""kstore's logs are handed to a real broker, taken back, and handed over again; no reader misses a record."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.errors import LockedError
from kstore.files.checkpoint import read_topic_id
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import CLEAN_SHUTDOWN, KSTORE_STATE
from kstore.upkeep.handover import from_broker, to_broker
from tests.interop.conftest import Kafka
from tools.interop.broker import Broker
from tools.interop.records import Row, rows_of

pytestmark = pytest.mark.interop

TOPICS = ("cut-short", "segmented")
SEGMENT_BYTES = 4096
START_OFFSET = 70
PRODUCED = 60
CLEAN_START = "since clean shutdown file was found"


class Round(NamedTuple):
    """By topic (begin, end, rows): what a broker served, and what kstore had to serve; and the broker's log."""

    served: dict[str, tuple[int, int, list[Row]]]
    expected: dict[str, tuple[int, int, list[Row]]]
    log: str


class Story(NamedTuple):
    """Two rounds with a broker, and what kstore read in the logs after each."""

    broker: Broker
    rounds: list[Round]
    left_by_kstore: dict[str, list[str]]
    locked: str


def read(data: Path) -> dict[str, tuple[int, int, list[Row]]]:
    found = {}
    for topic in TOPICS:
        with kstore.Log(data / f"{topic}-0", read_only=True) as log:
            found[topic] = (log.start_offset, log.end_offset, rows_of(log.read()))
    return found


def append(data: Path, count: int, word: str) -> None:
    for topic in TOPICS:
        with kstore.Log(data / f"{topic}-0", segment_bytes=SEGMENT_BYTES, durability="os") as log:
            for number in range(count):
                log.append_many([f"{word} {number}.{part}".encode() for part in range(3)], keys=[None, b"", b"k"])


def serve(broker: Broker, produced: int) -> Round:
    expected = read(broker.data)
    with broker.running():
        consumed = broker.consume(TOPICS, "read_uncommitted")
        broker.client(f"produce\t{topic}\t{produced}\tnone\t0" for topic in TOPICS)
    served = {topic: (found.begin, found.end, found.rows) for topic, found in consumed.items()}
    return Round(served, expected, broker.log)


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Story:
    broker = kafka.broker(tmp_path_factory.mktemp("handover"))
    with broker.running():
        broker.create_topics({topic: {} for topic in TOPICS})
        with pytest.raises(LockedError) as locked:
            to_broker(broker.data)
        with pytest.raises(LockedError):
            from_broker(broker.data, dry_run=True)
    # The cluster knows the topics; their logs are kstore's own.
    ids = {topic: read_topic_id(SYSTEM_FS, broker.data / f"{topic}-0" / "partition.metadata") for topic in TOPICS}
    for topic in TOPICS:
        for path in (broker.data / f"{topic}-0").iterdir():
            path.unlink()
        (broker.data / f"{topic}-0").rmdir()
    append(broker.data, 60, "first")
    with kstore.Log(broker.data / "cut-short-0") as log:
        log.delete_records(START_OFFSET)

    assert to_broker(broker.data, topic_ids=ids).is_whole
    left = {topic: sorted(path.name for path in (broker.data / f"{topic}-0").iterdir()) for topic in TOPICS}
    first = serve(broker, PRODUCED)

    assert from_broker(broker.data).is_whole
    append(broker.data, 40, "second")
    with kstore.Log(broker.data / "segmented-0") as log:
        log.truncate_to(log.end_offset - 5)  # in the middle of a batch of three
        log.append(b"third")
        log.truncate_to(log.end_offset - 5)
    assert to_broker(broker.data).is_whole
    second = serve(broker, PRODUCED)
    return Story(broker, [first, second], left, str(locked.value))


def test_a_handover_is_refused_while_the_broker_lives(story: Story) -> None:
    assert str(story.broker.data) in story.locked


@pytest.mark.parametrize("topic", TOPICS)
def test_the_broker_serves_exactly_the_records(story: Story, topic: str) -> None:
    first = story.rounds[0]
    begin, end, rows = first.served[topic]
    assert (begin, end) == (START_OFFSET if topic == "cut-short" else 0, 180)
    assert (begin, end, rows) == first.expected[topic]
    assert len(rows) == end - begin


@pytest.mark.parametrize("topic", TOPICS)
def test_after_kstore_has_gone_on_the_broker_serves_all_of_it(story: Story, topic: str) -> None:
    second = story.rounds[1]
    begin, end, rows = second.served[topic]
    assert (begin, end, rows) == second.expected[topic]
    # The broker's, from the first round, and kstore's after them.
    assert rows[: len(story.rounds[0].served[topic][2])] == story.rounds[0].served[topic][2]
    assert end > 180 + PRODUCED


@pytest.mark.parametrize("topic", TOPICS)
def test_kstore_reads_what_the_broker_appended(story: Story, topic: str) -> None:
    report = from_broker(story.broker.data)
    assert report.is_whole
    begin, end, rows = read(story.broker.data)[topic]
    before = story.rounds[1].served[topic]
    assert (begin, end) == (before[0], before[1] + PRODUCED)
    assert rows[: len(before[2])] == before[2]
    assert len(rows) == len(before[2]) + PRODUCED


@pytest.mark.parametrize("number", [0, 1])
def test_the_broker_recovered_nothing_and_renamed_nothing(story: Story, number: int) -> None:
    log = story.rounds[number].log
    assert CLEAN_START in log
    recovered = [line for line in log.splitlines() if "Recovering unflushed segment" in line]
    assert [line for line in recovered if "__cluster_metadata" not in line] == []
    assert "marked stray" not in log
    assert not [path.name for path in story.broker.data.iterdir() if path.name.endswith("-stray")]


def test_kstores_own_state_is_gone_when_the_broker_starts(story: Story) -> None:
    for names in story.left_by_kstore.values():
        assert KSTORE_STATE not in names
        assert "partition.metadata" in names
        assert "leader-epoch-checkpoint" in names
    assert len([name for name in story.left_by_kstore["segmented"] if name.endswith(".log")]) > 1


@pytest.mark.parametrize("number", [0, 1])
def test_the_broker_rebuilds_no_index(story: Story, number: int) -> None:
    log = story.rounds[number].log
    assert "Could not find offset index" not in log
    assert " ERROR " not in log


def test_the_marker_is_gone_after_from_broker(story: Story) -> None:
    from_broker(story.broker.data)
    assert not (story.broker.data / CLEAN_SHUTDOWN).exists()


def test_damage_that_is_handed_over_by_force_costs_no_other_record(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker = kafka.broker(tmp_path_factory.mktemp("forced"))
    with broker.running():
        broker.create_topics({topic: {} for topic in TOPICS})
    for topic, number in zip(TOPICS, (1, -1), strict=True):
        directory = broker.data / f"{topic}-0"
        for path in directory.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        with kstore.Log(directory, segment_bytes=2048) as log:
            for value in range(30):
                log.append(b"%d" % value + bytes(200))
        segment = sorted(directory.glob("*.log"))[number]
        data = bytearray(segment.read_bytes())
        data[-20] ^= 0x10  # the last batch of a sealed segment, and of the log
        segment.write_bytes(data)
    report = to_broker(broker.data)
    assert len(report.refused) == 2
    assert len(to_broker(broker.data, force=True).damage) == 2
    with broker.running():
        broker.client(f"produce\t{topic}\t5\tnone\t0" for topic in TOPICS)
    from_broker(broker.data)
    for topic in TOPICS:
        with kstore.Log(broker.data / f"{topic}-0") as log:
            reader = log.read(on_corrupt="skip")
            assert len(list(reader)) == 34
            assert log.end_offset == 35
            assert len(reader.corrupt) == 1
