"""How cost grows with the work: each line is the same call at two sizes, or for the second time, in one run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import kstore
from kstore.config import CompressionType
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn, percentile, seconds_of

FEW_PARTITIONS, MANY_PARTITIONS = 100, 2_000
# Of these rounds the last one counts: in the others logs are opened and the memory is used for the first time.
SENDS_A_PARTITION, SEND_ROUNDS = 50, 3
SEND_RATIO_MAX = 2.5
# The acks before the measured ones, and how many of these there are.
ACKS_BEFORE, ACKS = 500_000, 2_000
ACK_RATIO_MAX = 1.3
# The least size that holds ten records of a hundred bytes, so that many segments are small.
SEGMENT_BYTES = 1_200
FEW_SEGMENTS, MANY_SEGMENTS = 10, 10_000
LOOK_RATIO_MAX, LOOK_US_MAX, LOOKS = 1.5, 60.0, 301
# Until the times of a directory say that no name has changed since.
SETTLED_SECONDS = 2.2
SEGMENTS_BY_TIME, BY_TIME_MS_MAX = 20_000, 20.0
POLL_MS_MAX, POLLS = 0.5, 101
# Batches of 1,000 records of 1 KB, and lookups in each after the first one.
LOOKUP_BATCHES, LOOKUP_RECORDS, LOOKUP_BYTES, LATER_LOOKUPS = 40, 1_000, 1_000, 20
SECOND_LOOKUP_US_MAX = 20


def growth(run: Run) -> list[Line]:
    """Calls whose cost must not grow with the number of partitions, of segments, or of what was done before."""
    sizes = FEW_PARTITIONS, MANY_PARTITIONS
    sent, acked, looked, found, polled = (
        [percentile(each, 0.5) for each in all_in_turn(works, rounds=max(run.rounds // 2, 1), warm_up=0)]
        for works in (
            [partial(send_us, run, partitions) for partitions in sizes],
            [partial(ack_us, run, count) for count in (0, ACKS_BEFORE)],
            [partial(look_us, run, segments) for segments in (FEW_SEGMENTS, MANY_SEGMENTS)],
            [partial(by_time_ms, run, segments) for segments in (SEGMENTS_BY_TIME // 10, SEGMENTS_BY_TIME)],
            [partial(poll_ms, run, partitions) for partitions in sizes],
        )
    )
    few, many = f"{FEW_PARTITIONS} partitions", f"{MANY_PARTITIONS:,} partitions"
    return [
        _line(f"producer: send to {many} in turn", sent, "us of CPU", few, ratio_max=SEND_RATIO_MAX),
        _line(f"queue: get and ack after {ACKS_BEFORE:,}", acked, "us", "in a fresh queue", ratio_max=ACK_RATIO_MAX),
        _line(
            f"read-only end_offset, nothing new, {MANY_SEGMENTS:,} segments",
            looked,
            "us",
            f"{FEW_SEGMENTS} segments",
            ratio_max=LOOK_RATIO_MAX,
            figure_max=LOOK_US_MAX,
        ),
        _line(
            f"first offset_for_time, {SEGMENTS_BY_TIME:,} segments of the process's own",
            found,
            "ms",
            f"{SEGMENTS_BY_TIME // 10:,} segments",
            figure_max=BY_TIME_MS_MAX,
        ),
        _line(f"consumer: idle poll of {many}", polled, "ms", few, figure_max=POLL_MS_MAX),
    ]


def _line(
    name: str,
    few_and_many: Sequence[float],
    unit: str,
    at_few: str,
    *,
    ratio_max: float | None = None,
    figure_max: float | None = None,
) -> Line:
    few, many = few_and_many
    asked = [f"at most {ratio_max}"] if ratio_max is not None else []
    asked += [f"at most {figure_max:g} {unit}"] if figure_max is not None else []
    is_reached = (ratio_max is None or many <= ratio_max * few) and (figure_max is None or many <= figure_max)
    return Line(
        name, f"{many:.2f} {unit}", f"{at_few} {few:.2f} {unit}", f"{many / few:.1f}", ", ".join(asked), is_reached
    )


def send_us(run: Run, partitions: int) -> float:
    """The processor time of a record of 100 bytes, from ``send`` to its delivery, us."""
    (value,) = values(1)
    count = SENDS_A_PARTITION * partitions
    used = 0.0
    with fresh(run.root, "growth") as path, kstore.open(path, durability="os") as store:
        store.create_topic("orders", partitions)
        with store.producer(acks="1") as producer:
            for _ in range(SEND_ROUNDS):
                started = time.process_time()
                for number in range(count):
                    producer.send("orders", value, partition=number % partitions)
                producer.flush()
                used = time.process_time() - started
    return used / count * 1e6


def ack_us(run: Run, acked_before: int) -> float:
    """A ``get`` and an ``ack`` of one item, us."""
    value = values(1)[0]
    with fresh(run.root, "growth") as path, kstore.open(path, durability="os") as store:
        queue = store.queue("jobs")
        queue.put_many([value] * (acked_before + ACKS))
        while acked_before:
            jobs = queue.get_many(min(acked_before, 1_000))
            queue.ack_many(jobs)
            acked_before -= len(jobs)

        def work() -> None:
            for _ in range(ACKS):
                queue.get().ack()

        return seconds_of(work) / ACKS * 1e6


def look_us(run: Run, segments: int) -> float:
    """The ``end_offset`` of a read-only log to which nothing was appended, us; a writer has it open."""
    with fresh(run.root, "growth") as path, kstore.Log(path, durability="os", segment_bytes=SEGMENT_BYTES) as writer:
        batch = values(10)
        for _ in range(segments):
            writer.append_many(batch)
        with kstore.Log(path, read_only=True) as log:
            time.sleep(SETTLED_SECONDS)
            return _median_of(LOOKS, lambda: log.end_offset) * 1e6


def by_time_ms(run: Run, segments: int) -> float:
    """The first lookup by time in a log that this process has written, ms."""
    with fresh(run.root, "growth") as path, kstore.Log(path, durability="os", segment_bytes=SEGMENT_BYTES) as log:
        batch = values(10)
        for _ in range(segments):
            log.append_many(batch)
        middle = log.get(5 * segments)
        assert middle is not None
        return seconds_of(lambda: log.offset_for_time(middle.timestamp)) * 1e3


def poll_ms(run: Run, partitions: int) -> float:
    """A poll that finds nothing, in the process that writes, ms."""
    with fresh(run.root, "growth") as path, kstore.open(path, durability="os") as store:
        store.create_topic("orders", partitions)
        for number in range(partitions):
            store.log("orders", number).append(b"old")
        with store.consumer("orders") as consumer:
            while consumer.poll(max_records=10_000):
                pass
            return _median_of(POLLS, consumer.poll) * 1e3


def _median_of(count: int, work: Callable[[], object]) -> float:
    return percentile([seconds_of(work) for _ in range(count)], 0.5)


def second_lookups(run: Run) -> list[Line]:
    """A lookup in a batch that was checked before, beside the first one, which reads and checks all of it."""
    return [
        _second_lookup(run, "uncompressed", LOOKUP_BATCHES),
        # As many as stay in memory without their compression.
        _second_lookup(run, "lz4", 6),
    ]


def _second_lookup(run: Run, codec: CompressionType, batches: int) -> Line:
    (value,) = values(1, LOOKUP_BYTES)
    firsts: list[float] = []
    laters: list[float] = []
    generator = random.Random(17)
    with fresh(run.root, "growth") as path:
        with kstore.Log(path, durability="os", max_message_bytes=2 << 20, compression_type=codec) as log:
            for _ in range(batches):
                log.append_many([value] * LOOKUP_RECORDS)
        for _ in range(run.rounds):
            with kstore.Log(path, read_only=True) as log:
                for first in range(0, batches * LOOKUP_RECORDS, LOOKUP_RECORDS):
                    firsts.append(_lookup_us(log, first + generator.randrange(LOOKUP_RECORDS)))
                for _ in range(LATER_LOOKUPS * batches):
                    laters.append(_lookup_us(log, generator.randrange(batches * LOOKUP_RECORDS)))
    first_us, later_us = percentile(firsts, 0.5), percentile(laters, 0.5)
    return Line(
        f"get one record again, batches of {LOOKUP_RECORDS * LOOKUP_BYTES >> 10} KiB, {codec}",
        f"p50 {later_us:.1f} us",
        f"the first {first_us:.1f} us",
        f"{later_us / first_us:.2f}",
        f"p50 {SECOND_LOOKUP_US_MAX} us",
        later_us <= SECOND_LOOKUP_US_MAX,
    )


def _lookup_us(log: kstore.Log, offset: int) -> float:
    started = time.perf_counter_ns()
    log.get(offset)
    return (time.perf_counter_ns() - started) / 1e3
