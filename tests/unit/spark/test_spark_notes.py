"""What a query logs once: options without a meaning here, and rows that depend on the default isolation level."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.spark.options import ReadOptions
from kstore.spark.schema import spark_schema
from kstore.spark.stream import KStoreStreamReader
from kstore.spark.writer import KStoreStreamWriter, KStoreWriter
from tests.spark.reading import make_reader, offsets_of
from tests.support.lives.spark_sink import batch_of, schema_of, stream_batch, stream_commit, write_batch

BROKER_OPTIONS = {
    "kafka.bootstrap.servers": "x:9092",
    "groupIdPrefix": "g",
    "fetchOffset.numRetries": "3",
    "kafkaConsumer.pollTimeoutMs": "9",
}
IGNORED = "fetchoffset.numretries, groupidprefix, kafka.bootstrap.servers, kafkaconsumer.polltimeoutms: for a client of"


@pytest.fixture(name="said")
def captured(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The notes, as they come."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger("kstore.spark.notes"), Collector()
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.fixture(name="store")
def opened_store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store(tmp_path / "store") as opened:
        opened.create_topic("t", 1)
        yield opened


def aborted_transaction(store: kstore.Store) -> None:
    with store.producer(transactional_id="a") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"never").result()
        producer.abort_transaction()


def stream_reader(store: kstore.Store, **given: str) -> KStoreStreamReader:
    options = {"path": str(store.path), "startingOffsets": "earliest", **given}
    return KStoreStreamReader(ReadOptions.parse(options, streaming=True), spark_schema())


def test_options_for_a_client_of_a_broker_are_accepted_with_one_warning(store: kstore.Store, said: list[str]) -> None:
    store.log("t", 0).append(b"value")
    assert offsets_of(make_reader(store.path, **BROKER_OPTIONS)) == [0]
    assert len(said) == 1
    assert said[0].lower().startswith(IGNORED)


def test_a_stream_has_one_warning_however_many_batches(store: kstore.Store, said: list[str]) -> None:
    source = stream_reader(store, **BROKER_OPTIONS)
    at = source.initialOffset()
    for _ in range(3):
        store.log("t", 0).append(b"value")
        end = source.latestOffset(at, source.getDefaultReadLimit())
        source.partitions(at, end)
        at = end
    source.stop()
    assert len(said) == 1


def test_a_sink_accepts_them_with_one_warning(tmp_path: Path, said: list[str]) -> None:
    given = {"path": str(tmp_path / "new"), "topic": "t", "partitions": "1", "kafka.acks": "all"}
    write_batch(given, [batch_of([b"a"])])
    assert said == [
        "kafka.acks: for a client of a Kafka broker, and ignored: kstore reads and writes the files themselves"
    ]
    for batch_id in range(3):
        stream_commit(given, batch_id, stream_batch(given, batch_id, [batch_of([b"a"])]))
    assert len(said) == 2


def test_kafkas_own_option_sets_the_isolation_level(store: kstore.Store, said: list[str]) -> None:
    aborted_transaction(store)
    assert offsets_of(make_reader(store.path, **{"kafka.isolation.level": "read_uncommitted"})) == [0]
    assert offsets_of(make_reader(store.path, **{"kafka.isolation.level": "read_committed"})) == []
    both = {"kafka.isolation.level": "read_committed", "isolationLevel": "read_uncommitted"}
    assert offsets_of(make_reader(store.path, **both)) == [0]
    assert said == []


def test_rows_that_only_the_default_isolation_leaves_out_are_noted(store: kstore.Store, said: list[str]) -> None:
    store.log("t", 0).append(b"value")
    assert offsets_of(make_reader(store.path)) == [0]
    assert said == []
    aborted_transaction(store)
    with store.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"undecided").result()
        assert offsets_of(make_reader(store.path)) == [0]
        assert len(said) == 1
        assert "records of aborted transactions are left out of t-0" in said[0]
        assert "reading ends before the first open transaction of t-0" in said[0]
        # Not if the user chose a level, and not for a range without such rows.
        offsets_of(make_reader(store.path, isolationLevel="read_committed"))
        offsets_of(make_reader(store.path, endingOffsets='{"t": {"0": 1}}'))
        assert len(said) == 1
        producer.abort_transaction()


def test_a_stream_notes_aborted_transactions_once(store: kstore.Store, said: list[str]) -> None:
    source = stream_reader(store)
    at = source.initialOffset()
    for _ in range(3):
        aborted_transaction(store)
        end = source.latestOffset(at, source.getDefaultReadLimit())
        source.partitions(at, end)
        at = end
    source.stop()
    assert len(said) == 1
    assert "records of aborted transactions are left out of t-0" in said[0]


def test_a_note_names_a_few_logs_and_counts_the_others(tmp_path: Path, said: list[str]) -> None:
    with kstore.Store(tmp_path) as store:
        store.create_topic("t", 5)
        with store.producer(transactional_id="a") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(5):
                producer.send("t", b"never", partition=partition).result()
            producer.abort_transaction()
        assert offsets_of(make_reader(tmp_path)) == []
    assert "t-0, t-1, t-2 and 2 more" in said[0]


def test_writers_keep_what_they_were_given(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "new"), "topic": "t", "partitions": "1", "kafka.acks": "all"}
    for kind in (KStoreWriter, KStoreStreamWriter):
        assert kind(schema_of(), given, False)._options.ignored == ("kafka.acks",)
