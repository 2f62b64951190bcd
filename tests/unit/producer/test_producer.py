"""What a producer's user sends, and where it goes (KafkaProducerTest, SenderTest)."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    DeliveryError,
    DiskFullError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    SerializationError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
)
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.records import ProducerRecord, RecordMetadata
from kstore.store import parts_of
from tests.support.fakes.fake_fs import WRITES, Fault
from tests.support.lives.producer_helpers import TIME_MS, Unthreaded, full_disk, producer_of, unthreaded

Told = list[tuple[RecordMetadata, Exception | None]]


@pytest.fixture
def one(tmp_path: Path):  # type: ignore[no-untyped-def]
    with unthreaded(tmp_path / "data") as made:
        yield made


# --- send and its delivery --------------------------------------------------------------------------------------------


def test_a_record_is_delivered_with_its_offset_time_and_sizes(one: Unthreaded) -> None:
    sent_ms = one.clock.now_ms()
    first = one.producer.send("orders", b"value", key=b"k", headers=[("h", b"1")])
    second = one.producer.send("orders", None, key=b"key", timestamp=TIME_MS - 5)
    assert not first.done()
    assert first.offset == -1
    one.linger()
    assert first.done()
    assert first.result() == RecordMetadata("orders", 0, 0, sent_ms, 1, 5)
    assert second.result() == RecordMetadata("orders", 0, 1, TIME_MS - 5, 3, -1)
    (record, other) = one.store.log("orders").read()
    assert (record.value, record.key, record.headers) == (b"value", b"k", (("h", b"1"),))
    assert (other.value, other.key, other.timestamp) == (None, b"key", TIME_MS - 5)


def test_a_log_that_stamps_gives_the_time_of_the_append(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"message_timestamp_type": "LogAppendTime"}) as one:
        delivery = one.producer.send("orders", b"v")
        one.clock.advance(1000)
        one.round()
        assert delivery.result().timestamp == one.clock.now_ms()
        (record,) = one.store.log("orders").read()
        assert (record.timestamp, record.timestamp_type) == (one.clock.now_ms(), "LogAppendTime")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_hold_what_was_sent(tmp_path: Path, codec: str) -> None:
    with unthreaded(tmp_path / "data", compression_type=codec) as one:
        values = [b"%d" % number * 20 for number in range(2000)]
        for value in values:
            one.producer.send("orders", value)
        one.producer.flush()
        assert one.values() == values
        log = one.store.log("orders")
        assert {batch.codec for batch in log.fetch(0, 1 << 20).batches()} == {codec}


def test_the_topic_s_codec_wins_over_the_producer_s(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"compression_type": "zstd"}, compression_type="gzip") as one:
        one.producer.send("orders", b"x" * 500)
        one.linger()
        (batch,) = one.store.log("orders").fetch(0, 1 << 20).batches()
        assert batch.codec == "zstd"


def test_with_acks_0_there_is_no_offset(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", acks=0) as one:
        delivery = one.producer.send("orders", b"v")
        one.linger()
        assert delivery.result().offset == -1
        assert one.values() == [b"v"]


def test_with_acks_0_what_cannot_be_written_is_lost_without_a_word_to_the_sender(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with unthreaded(tmp_path / "data", acks=0) as one:
        one.store.log("orders")
        one.fs.faults.append(full_disk())
        delivery = one.producer.send("orders", b"v")
        one.linger()
        assert delivery.exception() is None
        assert "acks=0" in caplog.text


def test_bytes_likes_are_taken_as_bytes(one: Unthreaded) -> None:
    one.producer.send("orders", bytearray(b"a"), key=memoryview(b"k"))
    with pytest.raises(TypeError):
        one.producer.send("orders", "text")
    with pytest.raises(TypeError):
        one.producer.send("orders", 5)
    one.linger()
    assert one.values() == [b"a"]


def test_headers_are_those_at_the_time_of_the_send(one: Unthreaded) -> None:
    headers = [("a", b"1")]
    one.producer.send("orders", b"v", headers=headers)
    headers.append(("late", b"2"))
    one.linger()
    (record,) = one.store.log("orders").read()
    assert record.headers == (("a", b"1"),)


def test_a_record_that_is_too_large_fails_by_itself(one: Unthreaded) -> None:
    told: Told = []
    delivery = one.producer.send("orders", b"x" * (1 << 20), on_delivery=lambda *what: told.append(what))
    with pytest.raises(RecordTooLargeError, match="max_request_size"):
        delivery.result()
    ((metadata, error),) = told
    assert (metadata.topic, metadata.offset) == ("orders", -1)
    assert isinstance(error, RecordTooLargeError)
    assert one.producer.send("orders", b"x").exception is not None


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_open_batch_takes_no_record_that_is_too_large(tmp_path: Path, codec: str) -> None:
    with unthreaded(tmp_path / "data", max_request_size=2000, batch_size=10_000, compression_type=codec) as one:
        first = one.producer.send("orders", b"a")
        with pytest.raises(RecordTooLargeError, match="max_request_size"):
            one.producer.send("orders", b"x" * 2000).result()
        many = one.producer.send_many("orders", [b"b", b"x" * 2000])
        one.linger()
        assert first.result().offset == 0
        assert list(many.errors()) == [1]
        assert one.values() == [b"a", b"b"]


def test_a_record_larger_than_all_memory_is_refused(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", buffer_memory=1000) as one:
        delivery = one.producer.send("orders", b"x" * 2000)
        with pytest.raises(RecordTooLargeError, match="buffer_memory"):
            delivery.result()


def test_no_memory_in_time_fails_the_delivery(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", buffer_memory=16384) as one:
        kept = one.producer.send("orders", b"x" * 16000)
        with pytest.raises(BufferExhaustedError):
            one.producer.send("orders", b"x" * 16000).result()
        one.round()
        assert kept.result().offset == 0
        assert one.producer.send("orders", b"x" * 16000).exception is not None


def test_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"cleanup_policy": "compact"}) as one:
        with pytest.raises(InvalidRecordError, match="key"):
            one.producer.send("orders", b"v").result()
        kept = one.producer.send("orders", b"v", key=b"k")
        with pytest.raises(InvalidRecordError):
            one.producer.send("orders", b"v", partition=0).result()
        many = one.producer.send_many("orders", [b"a", b"b"], keys=[b"k", None])
        one.linger()
        assert kept.result().offset == 0
        assert [type(error) for error in many.errors().values()] == [InvalidRecordError]
        assert one.values() == [b"v", b"a"]


def test_a_time_out_of_bounds_fails_the_delivery(one: Unthreaded) -> None:
    with pytest.raises(InvalidTimestampError):
        one.producer.send("orders", b"v", timestamp=one.clock.now_ms() + 10**9).result()


@pytest.mark.parametrize("wrong", [{"timestamp": -1}, {"partition": -1}])
def test_negative_numbers_are_refused(one: Unthreaded, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="-1"):
        one.producer.send("orders", b"v", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", [None, 5, ""])
def test_what_is_no_topic_is_refused(one: Unthreaded, topic: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        one.producer.send(topic, b"v")


def test_a_topic_may_be_named_by_a_member_of_an_enum(one: Unthreaded) -> None:
    class Name(StrEnum):
        ORDERS = "orders"
        OTHERS = "others"

    assert one.producer.partitions_for(Name.ORDERS) == [0]
    delivery = one.producer.send(Name.ORDERS, b"a")
    with one.another() as other:
        other.send_many(Name.ORDERS, [b"b"])
    one.linger()
    assert delivery.result(0).topic == "orders"
    assert one.values() == [b"b", b"a"]
    lost = one.producer.send(Name.OTHERS, b"c")
    assert isinstance(lost.exception(0), TopicWaitTimeoutError)


def test_a_name_that_no_topic_can_have_fails_the_delivery(one: Unthreaded) -> None:
    with pytest.raises(ConfigError):
        one.producer.send("a/b", b"v").result()


# --- topics -----------------------------------------------------------------------------------------------------------


def test_an_unknown_topic_fails_after_max_block_ms(one: Unthreaded) -> None:
    with pytest.raises(TopicWaitTimeoutError, match=r"payments, after 0 ms"):
        one.producer.send("payments", b"v").result()
    with pytest.raises(TopicWaitTimeoutError, match=r"partition 7 .* 1 partitions"):
        one.producer.send("orders", b"v", partition=7).result()
    assert one.producer.partitions_for("orders") == [0]
    with pytest.raises(TypeError):
        one.producer.partitions_for(None)  # type: ignore[arg-type]


def test_a_store_of_its_own_fails_an_unknown_topic_at_once_and_names_similar_ones(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one, producer_of(one.store, is_threaded=False) as producer:
        # The clock stands still: a wait would not end.
        for delivery in (producer.send("order", b"v"), producer.send_many("order", [b"v"])[0]):
            with pytest.raises(TopicNotFoundError, match=r"no topic order, did you mean orders"):
                delivery.result(0)
        with pytest.raises(TopicNotFoundError, match="partition 7 of topic orders, which has 1 partitions"):
            producer.send("orders", b"v", partition=7).result(0)
        with pytest.raises(TopicNotFoundError, match=r"no topic payments$"):
            producer.partitions_for("payments")
        one.store.create_topic("order")
        delivery = producer.send("order", b"v")
        producer.flush()
        assert delivery.result(0).offset == 0


def test_a_topic_of_a_shared_store_is_waited_for_since_another_process_may_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.open(tmp_path / "data", durability="os", shared=True) as store, store.producer() as producer:
        looked_up = threading.Event()
        topics = parts_of(store).topics.partition_count

        def partition_count(topic: str) -> int:
            try:
                return topics(topic)
            finally:
                looked_up.set()

        monkeypatch.setattr(parts_of(store).topics, "partition_count", partition_count)
        found: list[RecordMetadata] = []
        sending = threading.Thread(target=lambda: found.append(producer.send("orders", b"v").result(300)))
        sending.start()
        assert looked_up.wait(300)
        store.create_topic("orders")
        sending.join(300)
        assert found[0].offset == 0


def test_a_send_waits_for_its_topic_and_for_its_partition(tmp_path: Path) -> None:
    with (
        kstore.open(tmp_path / "data", durability="os") as store,
        store.producer(max_block_ms=60_000) as producer,
    ):
        found: dict[str, RecordMetadata] = {}

        def send(name: str, partition: int) -> None:
            found[name] = producer.send("orders", b"v", partition=partition).result(300)

        waiting = [threading.Thread(target=send, args=args) for args in (("made", 0), ("grown", 2))]
        for thread in waiting:
            thread.start()
        time.sleep(0.05)
        store.create_topic("orders", 1)
        waiting[0].join(300)
        store.add_partitions("orders", 3)
        waiting[1].join(300)
        assert (found["made"].partition, found["grown"].partition) == (0, 2)


def test_a_topic_that_was_not_used_for_long_is_looked_up_again(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", metadata_max_idle_ms=5000) as one:
        one.producer.send("orders", b"a")
        metadata = one.producer._metadata
        one.clock.advance(6000)
        metadata.drop_idle(one.producer._outbox.accumulator)
        assert "orders" in metadata.topics, "it has a batch"
        one.round()
        one.clock.advance(6000)
        metadata.drop_idle(one.producer._outbox.accumulator)
        assert "orders" not in metadata.topics
        version = metadata.version
        one.producer.send("orders", b"b")
        one.linger()
        assert metadata.version == version + 1
        assert one.values() == [b"a", b"b"]


@pytest.mark.parametrize("failing", ["retire", "partition_count"])
def test_a_topic_whose_drop_failed_keeps_its_records_and_its_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    with unthreaded(tmp_path / "data", metadata_max_idle_ms=5000) as one:
        sent = [one.producer.send("orders", b"a")]
        one.linger()
        metadata, accumulator = one.producer._metadata, one.producer._outbox.accumulator
        if failing == "retire":
            sent.append(one.producer.send("orders", b"b"))

        def fail(*_: object) -> None:
            raise MemoryError

        one.clock.advance(6000)
        with monkeypatch.context() as patch:
            patch.setattr(accumulator if failing == "retire" else metadata._store, failing, fail)
            with pytest.raises(MemoryError):
                metadata.drop_idle(accumulator)
        sent.append(one.producer.send("orders", b"c"))
        one.linger()
        assert [delivery.result(0).offset for delivery in sent] == list(range(len(sent)))
        assert one.values() == [b"a", b"b", b"c"] if failing == "retire" else [b"a", b"c"]


def test_records_for_a_topic_that_is_deleted_fail(one: Unthreaded) -> None:
    delivery = one.producer.send("orders", b"v")
    one.store.delete_topic("orders")
    one.linger()
    assert isinstance(delivery.exception(), kstore.TopicNotFoundError)
    with pytest.raises(TopicWaitTimeoutError):
        one.producer.send("orders", b"v").result()


def test_a_topic_that_has_grown_gets_keys_in_its_new_partitions(one: Unthreaded) -> None:
    one.producer.send("orders", b"v", key=b"k")
    one.linger()
    one.store.add_partitions("orders", 8)
    partitions = {one.producer.send("orders", b"v", key=b"%d" % number).partition for number in range(100)}
    assert partitions == set(range(8))


# --- partitions -------------------------------------------------------------------------------------------------------


def test_a_key_decides_the_partition_as_with_kafka_s_own_clients(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=6) as one:
        expected = {b"foobar": 0, b"21": 2, b"abc": 5, b"": 3}
        from kstore.producer.partitioner import partition_for_key

        for key in expected:
            assert one.producer.send("orders", b"v", key=key).partition == partition_for_key(key, 6)
            assert one.producer.send("orders", b"v", key=key).partition == partition_for_key(key, 6)


class Asked:
    def __init__(self, answers: list[int]) -> None:
        self.answers = answers
        self.new_batches: list[tuple[str, int, int]] = []
        self.closed = False

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return self.answers.pop(0)

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        self.new_batches.append((topic, partition_count, previous))

    def close(self) -> None:
        self.closed = True


def test_a_partitioner_is_asked_again_where_a_batch_would_be_opened(tmp_path: Path) -> None:
    asked = Asked([1, 2, 2])
    with unthreaded(tmp_path / "data", partitions=3, partitioner=asked) as one:
        assert one.producer.send("orders", b"a").partition == 2
        assert one.producer.send("orders", b"b").partition == 2
        assert asked.new_batches == [("orders", 3, 1)]
    assert asked.closed


def test_a_partition_that_there_is_not_is_the_partitioner_s_error(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=3, partitioner=Asked([-1])) as one:
        send = one.producer.send
        with pytest.raises(ValueError, match="chose -1, expected 0 to 2"):
            send("orders", b"a")


def test_records_go_round_when_asked_to(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=3, partitioner="round_robin") as one:
        assert [one.producer.send("orders", b"v", key=b"k").partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]


# --- serializers and interceptors -------------------------------------------------------------------------------------


def test_serializers_make_the_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"key_serializer": "str", "value_serializer": "json"}
    with unthreaded(tmp_path / "data", **settings) as one:
        one.producer.send("orders", {"total": 5}, key="nine")
        with pytest.raises(SerializationError, match="value_serializer"):
            one.producer.send("orders", object())
        one.producer.flush()
        (record,) = one.store.log("orders").read()
        assert (record.key, record.value) == (b"nine", b'{"total":5}')


class Interceptor(ProducerInterceptor):
    def __init__(self) -> None:
        self.told: Told = []
        self.closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return ProducerRecord(record.topic, b"changed " + record.value, record.key, partition=record.partition)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.told.append((metadata, error))

    def close(self) -> None:
        self.closed = True


def test_interceptors_change_records_and_are_notified_before_the_callback(tmp_path: Path) -> None:
    interceptor, order = Interceptor(), []
    with unthreaded(tmp_path / "data", interceptors=[interceptor]) as one:
        delivery = one.producer.send("orders", b"v", on_delivery=lambda *_: order.append(len(interceptor.told)))
        one.linger()
        assert one.values() == [b"changed v"]
        assert interceptor.told == [(delivery.result(), None)]
        assert order == [1]
    assert interceptor.closed


def test_interceptors_are_notified_of_a_record_that_failed_early(tmp_path: Path) -> None:
    interceptor = Interceptor()
    with unthreaded(tmp_path / "data", interceptors=[interceptor]) as one:
        assert one.producer.send("orders", b"x" * (1 << 20), partition=0).exception() is not None
        with pytest.raises(TypeError):
            one.producer.send("orders", b"v", key=5)
        one.producer.close()
        with pytest.raises(ClosedError):
            one.producer.send("orders", b"v")
    (large, wrong, closed) = interceptor.told
    assert (large[0].partition, type(large[1])) == (0, RecordTooLargeError)
    assert isinstance(wrong[1], TypeError)
    assert isinstance(closed[1], ClosedError)


# --- many at once -----------------------------------------------------------------------------------------------------


def test_send_many_sends_each_record_and_says_which_failed(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=3) as one:
        values = [b"%d" % number for number in range(1000)]
        keys = [b"k%d" % (number % 7) for number in range(1000)]
        values[500] = b"x" * (1 << 20)
        deliveries = one.producer.send_many("orders", values, keys=keys, headers=[None] * 1000)
        with pytest.raises(DeliveryError):
            one.producer.flush()
        errors = deliveries.errors()
        assert list(errors) == [500]
        assert isinstance(errors[500], RecordTooLargeError)
        with pytest.raises(RecordTooLargeError):
            deliveries.result()
        del values[500]
        assert Counter(one.values(0) + one.values(1) + one.values(2)) == Counter(values)
        logs = [list(one.store.log("orders", number).read()) for number in range(3)]
        for number, delivery in enumerate(deliveries):
            if number != 500:
                record = logs[delivery.partition][delivery.offset]
                assert (record.key, record.value) == (keys[number], b"%d" % number)


def test_to_look_at_the_failures_of_send_many_again_hides_no_other(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=2, retries=0, enable_idempotence=False) as one:
        for number in range(2):
            one.store.log("orders", number)
        one.fs.faults.append(full_disk())
        looked_at = one.producer.send_many("orders", [b"a", b"b", b"c"], partition=0)
        pending = looked_at[2]
        one.producer.send("orders", b"nobody asks after this one", partition=1)
        one.linger()
        for _ in range(2):
            assert list(looked_at.errors()) == [0, 1, 2]
            assert all(isinstance(delivery.exception(), DiskFullError) for delivery in looked_at)
        assert isinstance(pending.exception(), DiskFullError)
        with pytest.raises(DeliveryError) as caught:
            one.producer.flush()
        assert caught.value.count == 1


def test_send_many_without_keys_keeps_the_order(one: Unthreaded) -> None:
    values = [b"%d" % number for number in range(5000)]
    deliveries = one.producer.send_many("orders", values)
    one.producer.flush()
    assert one.values() == values
    assert deliveries.result() == list(range(5000))
    assert deliveries.done()
    assert len(deliveries) == 5000
    assert deliveries[-1].offset == 4999
    with pytest.raises(IndexError):
        deliveries[5000]


def test_parallel_sequences_must_be_of_one_length(one: Unthreaded) -> None:
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        one.producer.send_many("orders", [b"a", b"b"], keys=[b"k"])


def test_arrow_batches_are_sent_row_by_row(one: Unthreaded) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"key": [b"k", None], "value": [None, b"v"], "timestamp": [TIME_MS, TIME_MS + 1]}
    deliveries = one.producer.send_arrow("orders", pyarrow.table(columns))
    one.producer.flush()
    assert deliveries.result() == [0, 1]
    assert [(r.key, r.value, r.timestamp) for r in one.store.log("orders").read()] == [
        (b"k", None, TIME_MS),
        (None, b"v", TIME_MS + 1),
    ]
    with pytest.raises(ValueError, match="expected 'value'"):
        one.producer.send_arrow("orders", pyarrow.table({"key": [b"k"]}))


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_producers_have_names_of_their_own(one: Unthreaded) -> None:
    first, second, named = one.another(), one.another(), one.another(client_id="orders-writer")
    assert first.client_id != second.client_id
    assert named.client_id == "orders-writer"
    for producer in (first, second, named):
        producer.close()


def test_unknown_settings_are_refused_with_the_nearest(one: Unthreaded) -> None:
    with pytest.raises(ConfigError, match="linger_ms"):
        one.store.producer(linger_msec=5)  # type: ignore[call-arg]  # misspelt on purpose


def test_a_read_only_store_has_no_producers(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data"):
        pass
    with kstore.open(tmp_path / "data", read_only=True) as store, pytest.raises(kstore.ReadOnlyError):
        store.producer()


def test_what_cannot_be_sent_is_logged_without_its_bytes(one: Unthreaded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    one.store.log("orders")
    one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix=".log"))
    one.producer.send("orders", b"secret payload", key=b"secret key")
    one.linger()
    with pytest.raises(DeliveryError) as raised:
        one.producer.flush()
    assert "secret" not in caplog.text + str(raised.value)
