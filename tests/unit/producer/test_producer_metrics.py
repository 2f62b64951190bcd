"""What a producer counts, and how it is exported (KafkaProducerMetricsTest, SenderTest, BufferPoolTest)."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import kstore
from kstore.engine.writer import LogWriter
from kstore.errors import BufferExhaustedError, DeliveryError, DiskFullError, RecordTooLargeError
from kstore.files.paths import TopicPartition
from kstore.metrics import PRODUCER_METRICS, PRODUCER_TOPIC_METRICS, collector
from kstore.producer.producer import Producer
from kstore.record.batch import BATCH_HEADER_BYTES
from kstore.record.scan import parse_batches
from kstore.store import parts_of
from tests.support.fakes.fake_fs import WRITES, Fault
from tests.support.harness.selection import tries
from tests.support.lives.producer_helpers import Unthreaded, producer_of, unthreaded

SECONDS = 0.123


@pytest.fixture
def one(tmp_path: Path):  # type: ignore[no-untyped-def]
    with unthreaded(tmp_path / "data") as made:
        yield made


@pytest.fixture
def transactional(tmp_path: Path):  # type: ignore[no-untyped-def]
    with unthreaded(tmp_path / "data", transactional_id="t") as made:
        yield made


def slowed(one: Unthreaded, call: Callable[..., Any], error: Exception | None = None) -> Callable[..., Any]:
    """``call``, which now takes ``SECONDS`` and raises ``error``."""

    def run(*args: Any, **options: Any) -> Any:
        one.clock.advance(int(SECONDS * 1000))
        if error is not None:
            raise error
        return call(*args, **options)

    return run


def spent(one: Unthreaded) -> dict[str, float]:
    """The times, except those of batches and appends."""
    metrics = one.producer.metrics()
    own = {"queue_seconds", "queue_avg_seconds", "queue_max_seconds", "append_seconds", "append_avg_seconds"}
    return {name: value for name, value in metrics.items() if name.endswith("_seconds") and value and name not in own}


def full_disk(*, sticky: bool = True) -> Fault:
    return Fault(1, errno.ENOSPC, sticky=sticky, kinds=WRITES, suffix=".log")


# --- the tables -------------------------------------------------------------------------------------------------------


def test_a_producer_has_every_metric_of_the_table_in_its_order(one: Unthreaded) -> None:
    assert list(one.producer.metrics()) == [metric.name for metric in PRODUCER_METRICS]
    one.producer.send("orders", b"v")
    one.linger()
    assert list(one.producer.topic_metrics()["orders"]) == [metric.name for metric in PRODUCER_TOPIC_METRICS]


def test_a_producer_that_has_sent_nothing_has_counted_nothing(one: Unthreaded) -> None:
    metrics = one.producer.metrics()
    of_memory = {"buffer_total_bytes": 32 << 20, "buffer_available_bytes": 32 << 20}
    assert {name: value for name, value in metrics.items() if value} == {"compression_ratio": 1.0, **of_memory}
    assert one.producer.topic_metrics() == {}


def test_a_closed_producer_still_says_what_it_has_counted(one: Unthreaded) -> None:
    one.producer.send("orders", b"v")
    one.producer.close()
    assert one.producer.metrics()["records"] == 1
    assert one.producer.topic_metrics()["orders"]["records"] == 1
    one.store.close()
    assert one.producer.topic_metrics()["orders"]["records"] == 1


# --- times of calls (KafkaProducerMetricsTest) ------------------------------------------------------------------------


def test_the_time_of_a_flush_is_counted(one: Unthreaded) -> None:
    one.producer.send("orders", b"v", on_delivery=slowed(one, lambda metadata, error: None))
    one.producer.flush()
    assert spent(one) == pytest.approx({"flush_seconds": SECONDS})


def test_the_time_of_a_flush_that_fails_is_counted(one: Unthreaded) -> None:
    one.producer._outbox.drain = slowed(one, lambda timeout: False)  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        one.producer.flush(1)
    del one.producer._outbox.drain
    assert spent(one) == pytest.approx({"flush_seconds": SECONDS})


def test_the_time_of_the_init_of_transactions_is_counted(transactional: Unthreaded) -> None:
    manager = transactional.producer._transactions
    manager.init = slowed(transactional, manager.init)  # type: ignore[method-assign]
    transactional.producer.init_transactions()
    assert spent(transactional) == pytest.approx({"transaction_init_seconds": SECONDS})


def test_the_time_of_the_begin_of_a_transaction_is_counted(transactional: Unthreaded) -> None:
    manager = transactional.producer._transactions
    manager.begin = slowed(transactional, manager.begin)  # type: ignore[method-assign]
    transactional.producer.init_transactions()
    transactional.producer.begin_transaction()
    assert spent(transactional) == pytest.approx({"transaction_begin_seconds": SECONDS})


def test_the_time_to_send_offsets_is_counted(transactional: Unthreaded) -> None:
    manager = transactional.producer._transactions
    manager.add_offsets = slowed(transactional, manager.add_offsets)  # type: ignore[method-assign]
    with transactional.producer.transaction():
        transactional.producer.send_offsets({TopicPartition("orders", 0): 1}, "group")
    assert spent(transactional) == pytest.approx({"transaction_send_offsets_seconds": SECONDS})


def test_the_time_of_a_commit_is_counted_with_the_writes_it_waited_for(transactional: Unthreaded) -> None:
    manager = transactional.producer._transactions
    manager.end = slowed(transactional, manager.end)  # type: ignore[method-assign]
    slow = slowed(transactional, lambda metadata, error: None)
    with transactional.producer.transaction():
        transactional.producer.send("orders", b"v", on_delivery=slow)
    assert spent(transactional) == pytest.approx({"transaction_commit_seconds": 2 * SECONDS})


def test_the_time_of_an_abort_is_counted_that_of_close_too(transactional: Unthreaded) -> None:
    manager = transactional.producer._transactions
    manager.end = slowed(transactional, manager.end)  # type: ignore[method-assign]
    transactional.producer.init_transactions()
    for _ in range(2):
        transactional.producer.begin_transaction()
        transactional.producer.abort_transaction()
    transactional.producer.begin_transaction()
    transactional.producer.close()
    assert spent(transactional) == pytest.approx({"transaction_abort_seconds": 3 * SECONDS})


def test_the_time_of_a_call_that_fails_is_counted(transactional: Unthreaded) -> None:
    manager = transactional.producer._transactions
    manager.init = slowed(transactional, manager.init, DiskFullError("full"))  # type: ignore[method-assign]
    with pytest.raises(DiskFullError):
        transactional.producer.init_transactions()
    assert spent(transactional) == pytest.approx({"transaction_init_seconds": SECONDS})


def test_the_time_to_look_a_topic_up_is_counted_once(one: Unthreaded) -> None:
    host = parts_of(one.store).topics
    host.partition_count = slowed(one, host.partition_count)  # type: ignore[method-assign]
    for _ in range(10):
        one.producer.send("orders", b"v")
    assert spent(one) == pytest.approx({"metadata_wait_seconds": SECONDS})


def test_the_time_to_wait_in_vain_for_a_topic_is_counted(one: Unthreaded) -> None:
    host = parts_of(one.store).topics
    host.partition_count = slowed(one, host.partition_count)  # type: ignore[method-assign]
    assert isinstance(one.producer.send("nothing", b"v").exception(), kstore.KstoreError)
    assert spent(one) == pytest.approx({"metadata_wait_seconds": SECONDS})


# --- writes -----------------------------------------------------------------------------------------------------------


def test_a_write_is_counted_with_its_records_batches_and_bytes(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", batch_size=1000) as one:
        for _ in range(20):
            one.producer.send("orders", b"x" * 100)
        one.linger()
        one.producer.send("orders", b"x")
        one.linger()
        metrics = one.producer.metrics()
        log = one.store.log("orders").metrics()
        (file,) = one.store.log("orders").path.glob("*.log")
        sizes = [batch.size for batch in parse_batches(file.read_bytes())]
    assert (metrics["records"], metrics["writes"], metrics["records_per_write"]) == (21, 2, 10.5)
    assert (
        (metrics["batches"], metrics["bytes"])
        == (log["append_batches"], log["append_bytes"])
        == (len(sizes), sum(sizes))
    )
    assert len(sizes) > 3
    assert (metrics["batch_max_bytes"], metrics["batch_avg_bytes"]) == (max(sizes), sum(sizes) / len(sizes))
    assert metrics["compression_ratio"] == 1


def test_batches_wait_from_their_begin_to_their_write(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=2, linger_ms=60_000) as one:
        one.producer.send("orders", b"v", partition=0)
        one.clock.advance(400)
        one.producer.send("orders", b"v", partition=1)
        one.clock.advance(100)
        one.producer.send("orders", b"v", partition=1)
        one.producer.flush()
        metrics = one.producer.metrics()
    assert (metrics["queue_seconds"], metrics["queue_avg_seconds"], metrics["queue_max_seconds"]) == pytest.approx(
        (0.6, 0.3, 0.5)
    )


def test_the_time_of_writes_is_counted(one: Unthreaded, monkeypatch: pytest.MonkeyPatch) -> None:
    one.producer.send("orders", b"v")
    one.producer.flush()
    monkeypatch.setattr(LogWriter, "commit_many", slowed(one, LogWriter.commit_many))
    one.producer.send("orders", b"v")
    one.producer.flush()
    metrics = one.producer.metrics()
    assert (metrics["append_seconds"], metrics["append_avg_seconds"], metrics["append_max_seconds"]) == pytest.approx(
        (SECONDS, SECONDS / 2, SECONDS)
    )
    assert metrics["queue_seconds"] == 0


def test_compression_is_reported_by_topic(one: Unthreaded) -> None:
    one.store.create_topic("small", compression_type="gzip")
    values = [b"%d" % (number % 3) * 100 for number in range(100)]
    for name in ("orders", "small"):
        for value in values:
            one.producer.send(name, value)
    one.producer.flush()
    topics, metrics = one.producer.topic_metrics(), one.producer.metrics()
    plain, small = (one.store.log(name).metrics()["append_bytes"] for name in ("orders", "small"))
    assert isinstance(plain, int)
    assert isinstance(small, int)
    assert small < plain / 4
    assert (topics["orders"]["bytes"], topics["small"]["bytes"]) == (plain, small)
    assert (topics["orders"]["compression_ratio"], topics["small"]["compression_ratio"]) == (1, small / plain)
    assert metrics["compression_ratio"] == (plain + small) / (2 * plain)
    assert plain > len(values) * 100 + BATCH_HEADER_BYTES


def test_topics_are_counted_apart_and_deleted_ones_forgotten(one: Unthreaded) -> None:
    one.store.create_topic("other", 2)
    for number in range(6):
        one.producer.send("other", b"v", partition=number % 2)
        one.producer.send("orders", b"v")
    one.producer.flush()
    assert {name: values["records"] for name, values in one.producer.topic_metrics().items()} == {
        "orders": 6,
        "other": 6,
    }
    one.store.delete_topic("other")
    assert list(one.producer.topic_metrics()) == ["orders"]
    assert one.producer.metrics()["records"] == 12


def test_no_count_is_lost_between_threads_that_write(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders", 4)
        with store.producer(batch_size=512) as producer:

            def send(partition: int) -> None:
                for _ in range(tries(20_000, quick=5_000)):
                    producer.send("orders", b"x" * 50, partition=partition)

            threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush(60)
            metrics, topic = producer.metrics(), producer.topic_metrics()["orders"]
        logs = store.metrics()
    assert metrics["records"] == topic["records"] == 4 * tries(20_000, quick=5_000)
    assert (metrics["batches"], metrics["bytes"]) == (logs["append_batches"], logs["append_bytes"])
    assert metrics["writes"] == logs["appends"]


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_write_that_is_tried_again_is_counted_and_arrives_once(one: Unthreaded) -> None:
    one.store.log("orders")
    one.fs.faults.append(full_disk(sticky=False))
    one.producer.send("orders", b"v")
    one.linger()
    one.clock.advance(60_000)
    one.round()
    metrics, topic = one.producer.metrics(), one.producer.topic_metrics()["orders"]
    assert (metrics["retries"], metrics["failed_records"], metrics["records"], metrics["writes"]) == (1, 0, 1, 1)
    assert (topic["retries"], topic["failed_records"], topic["records"]) == (1, 0, 1)


def test_records_that_fail_are_counted_by_topic(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", retries=0) as one:
        one.store.log("orders")
        one.fs.faults.append(full_disk())
        for _ in range(3):
            one.producer.send("orders", b"v")
        with pytest.raises(DeliveryError):
            one.producer.flush()
        metrics, topic = one.producer.metrics(), one.producer.topic_metrics()["orders"]
    assert (metrics["failed_records"], metrics["records"], metrics["writes"]) == (3, 0, 0)
    assert (topic["failed_records"], topic["records"], topic["compression_ratio"]) == (3, 0, 1)


def test_records_that_are_never_in_a_batch_count_as_failed(one: Unthreaded) -> None:
    assert isinstance(one.producer.send("orders", b"x" * (2 << 20)).exception(), RecordTooLargeError)
    assert isinstance(one.producer.send("nothing", b"v").exception(), kstore.KstoreError)
    assert one.producer.metrics()["failed_records"] == 2
    assert {name: values["failed_records"] for name, values in one.producer.topic_metrics().items()} == {"orders": 1}


def test_unawaited_records_count_as_failed_when_they_are_lost(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", acks=0, retries=0) as one:
        one.store.log("orders")
        one.fs.faults.append(full_disk())
        one.producer.send("orders", b"v")
        one.linger()
        metrics = one.producer.metrics()
    assert (metrics["failed_records"], metrics["records"]) == (1, 0)


def test_splits_are_counted(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"max_message_bytes": 2000}) as one:
        for number in range(20):
            one.producer.send("orders", b"%03d" % number * 100)
        one.producer.flush()
        metrics = one.producer.metrics()
    assert metrics["splits"] >= 1
    assert metrics["records"] == 20
    assert metrics["batch_max_bytes"] <= 2000


# --- memory (BufferPoolTest) ------------------------------------------------------------------------------------------


def test_memory_is_reported_while_it_is_held(one: Unthreaded) -> None:
    one.producer.send("orders", b"v")
    metrics = one.producer.metrics()
    assert metrics["buffer_total_bytes"] - metrics["buffer_available_bytes"] == one.producer.config.batch_size
    assert metrics["waiting_batches"] == 1
    one.linger()
    metrics = one.producer.metrics()
    assert metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]
    assert metrics["waiting_batches"] == 0


def test_records_without_memory_are_counted(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", buffer_memory=1000, batch_size=1000) as one:
        one.producer.send("orders", b"x" * 700)
        assert isinstance(one.producer.send("orders", b"x" * 700).exception(), BufferExhaustedError)
        metrics = one.producer.metrics()
    assert (metrics["buffer_exhausted"], metrics["failed_records"], metrics["buffer_available_bytes"]) == (1, 1, 0)


def test_threads_that_wait_for_memory_are_counted_and_their_time(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders")
        settings = {"buffer_memory": 1000, "batch_size": 1000, "max_block_ms": 60_000}
        with producer_of(store, is_threaded=False, **settings) as producer:
            producer.send("orders", b"x" * 700)
            waiting = threading.Thread(target=lambda: producer.send("orders", b"y" * 700))
            waiting.start()
            while not producer.metrics()["buffer_waiting_threads"]:
                pass
            producer._outbox.sender.run_once()
            waiting.join()
            metrics = producer.metrics()
    assert (metrics["buffer_waiting_threads"], metrics["buffer_exhausted"]) == (0, 0)
    assert metrics["buffer_wait_seconds"] > 0


# --- Prometheus -------------------------------------------------------------------------------------------------------


def exported(*sources: kstore.Store | Producer) -> list[str]:
    """The lines with values."""
    registry = CollectorRegistry()
    registry.register(collector(*sources))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_a_store_tells_of_its_open_producers(one: Unthreaded) -> None:
    with one.store.producer(client_id="web") as producer:
        producer.send("orders", b"v").result(300)
        lines = exported(one.store)
        labels = f'client_id="web",store="{one.store.path}"'
        assert f"kstore_producer_records_total{{{labels}}} 1.0" in lines
        assert f"kstore_producer_buffer_total_bytes{{{labels}}} 3.3554432e+07" in lines
        assert f'kstore_producer_topic_records_total{{{labels},topic="orders"}} 1.0' in lines
    assert one.store.live_producers() == {}
    assert not [line for line in exported(one.store) if "client_id" in line]


def test_producers_with_one_client_id_keep_names_that_differ(one: Unthreaded) -> None:
    first, second, third = (one.store.producer(client_id="web") for _ in range(3))
    assert one.store.live_producers() == {"web": first, "web#2": second, "web#3": third}
    first.close()
    assert one.store.live_producers() == {"web#2": second, "web#3": third}
    with one.store.producer(client_id="web") as fourth:
        assert one.store.live_producers() == {"web": fourth, "web#2": second, "web#3": third}
    second.close()
    third.close()


def test_a_producer_can_be_a_source_itself_and_is_not_reported_twice(one: Unthreaded) -> None:
    def told(*sources: kstore.Store | Producer) -> list[str]:
        return [line for line in exported(*sources) if line.startswith("kstore_producer_writes_total")]

    with one.store.producer(client_id="web") as producer:
        expected = [f'kstore_producer_writes_total{{client_id="web",store="{one.store.path}"}} 0.0']
        assert told(producer) == told(one.store, producer) == told(producer, one.store) == expected
    assert told(producer) == []


def test_a_store_does_not_keep_a_producer_alive(one: Unthreaded) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        one.store.producer(client_id="lost")
    assert one.store.live_producers() == {}
