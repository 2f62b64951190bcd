"""Produce and InitProducerId."""

from __future__ import annotations

from tests.interop.questions.side import CLOSED, HOUR_MS, NOW, Side, batch, question, versions
from tests.support.lives.door_parts import frame_of
from tests.support.lives.foreign_batches import tampered


@question
def produce_with_each_version(side: Side) -> None:
    topic = side.topic()
    for version in versions("Produce"):
        for acks in (1, -1):
            side.produce(topic, batch(b"a", b"b"), version, acks=acks)
    stamped = side.topic("stamped", message_timestamp_type="LogAppendTime")
    for version in versions("Produce"):
        side.produce(stamped, batch(b"a", b"b"), version)


@question
def produce_with_other_acks(side: Side) -> None:
    topic = side.topic()
    for acks in (2, -2, 32767):
        for version in (3, 9, 11):
            side.produce(topic, batch(b"a"), version, acks=acks)
    side.produce("no-such-topic", batch(b"a"), acks=5)
    # What is wrong with a batch of the right form comes second.
    side.produce(topic, tampered(batch(b"a"), last_offset_delta=-7), acks=5)
    side.produce(topic, tampered(batch(b"a"), base_offset=3), acks=5)


@question
def produce_without_acks(side: Side) -> None:
    topic = side.topic()

    def send(name: str, data: bytes, acks: int = 0) -> None:
        body = {
            "acks": acks,
            "timeoutMs": 1000,
            "topicData": [{"name": name, "partitionData": [{"index": 0, "records": data}]}],
        }
        whole = frame_of("Produce", 9, body)
        with side.client() as client:
            client.socket.sendall(whole)
            try:
                side.note(name, client.ask("Metadata", 9, {"topics": []}))
            except ConnectionError:
                side.note(name, CLOSED)

    send(topic, batch(b"a"))
    send("no-such-topic", batch(b"a"))
    send(topic, b"")
    send(topic, batch(b"a")[:-1] + b"?")
    side.offsets(topic, -1)


@question
def produce_to_other_partitions(side: Side) -> None:
    topic = side.topic()
    for version in (3, 8, 11):
        for partition in (1, -1, 2**31 - 1):
            side.produce(topic, batch(b"a"), version, partition)
        for name in ("no-such-topic", "", "a b"):
            side.produce(name, batch(b"a"), version)
    many = [
        {"name": name, "partitionData": [{"index": number, "records": batch(b"a")} for number in (0, 1)]}
        for name in (topic, "no-such-topic")
    ]
    side.ask("Produce", 11, acks=-1, timeoutMs=30_000, topicData=many)
    side.ask("Produce", 11, acks=-1, timeoutMs=30_000, topicData=[])


@question
def produce_other_than_one_batch(side: Side) -> None:
    topic = side.topic()
    one = batch(b"a", b"b")
    for version in (3, 7, 8, 11):
        for data in (b"", one + one, one[:-1], one[:30], one[:8], b"\0" * 61):
            side.produce(topic, data, version)
        side.produce(topic, one + b"x", version, what=" with bytes after it")


@question
def produce_a_changed_batch(side: Side) -> None:
    topic = side.topic()
    one = batch(b"a", b"b")
    changed = {
        "a flipped byte": one[:-1] + bytes([one[-1] ^ 1]),
        "a base offset": tampered(one, base_offset=5),
        "a negative base offset": tampered(one, base_offset=-5),
        "a leader epoch": tampered(one, leader_epoch=7),
        "no records": tampered(one, record_count=0),
        "more records": tampered(one, record_count=3),
        "a wrong last delta": tampered(one, last_offset_delta=7),
        "a negative last delta": tampered(one, last_offset_delta=-1),
        "a codec that is not": tampered(one, attributes=5),
        "an attribute that is not": tampered(one, attributes=0x80),
        "magic 1": one[:16] + b"\1" + one[17:],
        "magic 3": one[:16] + b"\3" + one[17:],
        "append time": tampered(one, attributes=8),
        "control": tampered(one, attributes=0x20),
        "a sequence without an id": tampered(one, base_sequence=5),
        "an id without a sequence": tampered(one, producer_id=5),
    }
    for what, data in changed.items():
        answer = side.quiet(
            "Produce",
            11,
            acks=-1,
            timeoutMs=30_000,
            topicData=[{"name": topic, "partitionData": [{"index": 0, "records": data}]}],
        )
        for each in answer["responses"][0]["partitionResponses"]:
            each["baseOffset"] = min(each["baseOffset"], 0)
        side.note(f"Produce v11, {what}", answer)


@question
def produce_what_the_topic_refuses(side: Side) -> None:
    small = side.topic("small", max_message_bytes="100")
    side.produce(small, batch(b"a" * 200))
    side.produce(small, batch(b"a" * 200), 3)
    late = side.topic("late", message_timestamp_after_max_ms="3600000", message_timestamp_before_max_ms="3600000")
    for version in (3, 8, 11):
        for when in (NOW + 3 * HOUR_MS, NOW - 3 * HOUR_MS, -1):
            side.produce(late, batch(b"a", b"b", time_ms=when), version)
    compacted = side.topic("compacted", cleanup_policy="compact")
    for version in (3, 8, 11):
        side.produce(compacted, batch(b"a", b"b", key=None), version)
    side.produce(compacted, batch(b"a", key=b""))


@question
def produce_compressed(side: Side) -> None:
    topic = side.topic()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for version in (3, 6, 7, 11):
            side.produce(topic, batch(b"a" * 100, b"b" * 100, codec=codec), version)
    one = batch(b"a" * 100, b"b" * 100, codec="gzip")
    side.produce(topic, tampered(one[:-4] + b"xxxx"))
    stored = side.topic("stored", compression_type="gzip")
    side.produce(stored, batch(b"a" * 100, b"b" * 100))


@question
def produce_with_sequences(side: Side) -> None:
    topic = side.topic()
    producer = side.producer_id()

    def ask(sequence: int, epoch: int = 0, version: int = 11, count: int = 1) -> None:
        data = batch(*[b"a"] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        side.produce(topic, data, version)

    ask(5)
    ask(0, count=3)
    ask(0, count=3)
    ask(0, count=2)
    ask(3)
    ask(5)
    ask(1)
    for number in range(4, 12):
        ask(number)
    ask(0, count=3)
    ask(4)
    ask(11)
    ask(0, epoch=1)
    ask(12, epoch=0)
    ask(5, epoch=2)
    ask(0, epoch=2)
    ask(2**31 - 1, epoch=3)
    for version in (3, 8):
        ask(7, epoch=2, version=version)


@question
def produce_in_a_transaction_that_is_not(side: Side) -> None:
    topic = side.topic()
    producer = side.producer_id()
    data = batch(b"a", producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True)
    side.produce(topic, data)
    side.produce(topic, batch(b"a"), transactionalId="an-id")


@question
def produce_to_internal_topics(side: Side) -> None:
    side.group()
    side.produce("__consumer_offsets", batch(b"a"))


@question
def producer_ids(side: Side) -> None:
    side.producer_id()
    for version in versions("InitProducerId"):
        for timeout in (60_000, 0, -1, 2**31 - 1):
            side.ask("InitProducerId", version, transactionalId=None, transactionTimeoutMs=timeout)
        side.ask("InitProducerId", version, transactionalId="", transactionTimeoutMs=60_000)
    for pair in ((5, -1), (-1, 5), (-1, 0)):
        side.ask(
            "InitProducerId",
            4,
            transactionalId=None,
            transactionTimeoutMs=60_000,
            producerId=pair[0],
            producerEpoch=pair[1],
        )
    own = side.producer_id()
    side.ask("InitProducerId", 4, transactionalId=None, transactionTimeoutMs=60_000, producerId=own, producerEpoch=0)
