"""The speed of a producer: records a second, and the time until one is delivered.

It measures as kafka-producer-perf-test does: records of one size or from a file go to one topic, as fast as possible or
at a given rate. Latency is from before the ``send`` to the delivery's callback. A callback costs more than a send, so
in runs without a limit only some records have one: each 47th, in runs of over 100,000 records each 97th. Both are
prime, so that they fall on every place in a batch.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from operator import le
from typing import Final, Protocol

from kstore.cli.producing import Pace
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import ConfigError, DeliveryError
from kstore.producer._accumulate import Delivery
from kstore.producer.records import Callback, RecordMetadata

MIB: Final = 1 << 20
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
# Payloads are made before the run, and then sent repeatedly.
PAYLOADS_MAX: Final = 1000
PAYLOAD_BYTES_MAX: Final = 16 * MIB
SEED: Final = 0
# As in Kafka's tool: capital letters, so that codecs have something to compress.
LETTERS: Final = bytes(ord("A") + number % 26 for number in range(256))

# Which records are measured: all in small and slow runs, and never more than this many.
ALL_RECORDS: Final = 1000
FEW_RECORDS: Final = 100_000
EVERY_FEW: Final = 47
EVERY_MANY: Final = 97
SAMPLES_MAX: Final = 1_000_000
SLOW_PER_SECOND: Final = 10_000


class Sends(Protocol):
    """What it needs of a producer."""

    def send(self, topic: str, value: bytes, *, on_delivery: Callback | None = None) -> Delivery: ...

    def flush(self, timeout: float | None = None) -> None: ...

    def metrics(self) -> Mapping[str, float]: ...

    def init_transactions(self) -> None: ...

    def begin_transaction(self) -> None: ...

    def commit_transaction(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of the measured records, in ms. All 0 if none was measured."""

    count: int
    mean_ms: float
    max_ms: float
    # In the order of ``PERCENTILES``.
    percentiles_ms: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        if not seconds:
            return cls(0, 0.0, 0.0, (0.0,) * len(PERCENTILES))
        ordered = sorted(seconds)
        return cls(
            len(ordered),
            math.fsum(ordered) / len(ordered) * 1000,
            ordered[-1] * 1000,
            tuple(percentile(ordered, percent) * 1000 for percent in PERCENTILES),
        )


@dataclass(frozen=True, slots=True)
class PerfWindow:
    """The deliveries in a part of the run. A MB is 2**20 bytes, as in Kafka's tool.

    Before the end of the run, ``failed`` counts only measured records.
    """

    records: int
    bytes: int
    seconds: float
    failed: int
    latencies: Latencies

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_second(self) -> float:
        return self.bytes / MIB / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class PerfReport(PerfWindow):
    """The results of the whole run; each ``sampled_every``-th record was measured."""

    sampled_every: int
    first_error: Exception | None


class ProducerPerf:
    """One run. ``run`` sends everything; ``report`` gives the results, also of an interrupted run."""

    def __init__(
        self,
        producer: Sends,
        topic: str,
        payloads: Sequence[bytes],
        record_count: int,
        *,
        per_second: float | None = None,
        transaction_seconds: float | None = None,
        on_window: Callable[[PerfWindow], object] = lambda window: None,
        window_seconds: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
        pace: Pace | None = None,
    ) -> None:
        """
        Args:
            payloads: the values, sent in turn.
            per_second: the limit of records a second; None for no limit.
            transaction_seconds: the age at which a transaction is committed; None for no transactions.
            on_window: called every ``window_seconds``, between two sends.
            pace: for tests.

        Raises: ConfigError.
        """
        if not payloads or record_count < 1:
            raise ConfigError(f"{len(payloads)} payloads and {record_count} records, expected at least one of each")
        self._producer = producer
        self._topic = topic
        self._payloads = payloads
        self._record_count = record_count
        self._pace = Pace(per_second, clock) if pace is None else pace
        self._transaction_seconds = transaction_seconds
        self._on_window = on_window
        self._window_seconds = window_seconds
        self._clock = clock
        self.sampled_every = sampled_every(record_count, self._pace.per_second)
        # Seconds, in the order of arrival; appended to on the sender's thread.
        self._latencies = array("d")
        self._sent_count = 0
        self._failed_count = 0
        self._first_error: Exception | None = None
        self._started = self._ended = clock.monotonic()
        self._values: Iterator[bytes] = cycle(payloads)
        # The open window: its start and end, and the counts at its start.
        self._window_began = self._window_ends = 0.0
        self._window_before = (0, 0, 0)

    def run(self) -> PerfReport:
        """Sends all records and waits until they are delivered. Failures are in the report.

        Raises: errors of the producer or of a transaction, not of a record.
        """
        self._started = self._ended = self._clock.monotonic()
        self._begin_window(self._started)
        try:
            if self._transaction_seconds is None:
                self._send_until(lambda now: False)
            else:
                self._send_in_transactions(self._transaction_seconds)
        finally:
            self._flush()
        return self.report()

    def report(self) -> PerfReport:
        """The deliveries so far; complete when ``run`` has returned or was interrupted."""
        count = self._sent_count - self._failed_count
        return PerfReport(
            count,
            self._size_of(count),
            self._ended - self._started,
            self._failed_count,
            Latencies.of(self._latencies),
            self.sampled_every,
            self._first_error,
        )

    # --- the run ----------------------------------------------------------------------------------------------------

    def _send_until(self, is_over: Callable[[float], bool]) -> None:
        """Sends the rest, or until ``is_over(now)``: in groups, of which the first record is measured.

        The work for a group spares its other records: each of those costs a ``send`` and no more.
        """
        send, topic, clock, values = self._producer.send, self._topic, self._clock, self._values
        while (left := self._record_count - self._sent_count) > 0:
            count = min(self.sampled_every, left)
            self._pace.wait_for(count)
            if clock.monotonic() >= self._window_ends:
                self._end_window()
            now = clock.monotonic()
            send(topic, next(values), on_delivery=partial(self._arrived, now))
            for value in islice(values, count - 1):
                send(topic, value)
            self._sent_count += count
            if is_over(now):
                return

    def _send_in_transactions(self, seconds: float) -> None:
        self._producer.init_transactions()
        while self._sent_count < self._record_count:
            self._producer.begin_transaction()
            ends = self._clock.monotonic() + seconds
            self._send_until(partial(le, ends))
            self._producer.commit_transaction()

    def _flush(self) -> None:
        try:
            self._producer.flush()
        except DeliveryError as error:
            # Records without a callback; the others have reported already.
            self._failed_count += error.count
            self._first_error = self._first_error or error.first
        finally:
            self._ended = self._clock.monotonic()

    def _arrived(self, sent_at: float, metadata: RecordMetadata, error: Exception | None) -> None:
        if error is None:
            self._latencies.append(self._clock.monotonic() - sent_at)
        else:
            self._failed_count += 1
            self._first_error = self._first_error or error

    # --- windows ----------------------------------------------------------------------------------------------------

    def _begin_window(self, now: float) -> None:
        self._window_began, self._window_ends = now, now + self._window_seconds
        self._window_before = (self._delivered_count(), self._failed_count, len(self._latencies))

    def _end_window(self) -> None:
        now = self._clock.monotonic()
        records_before, failed_before, measured_before = self._window_before
        count = self._delivered_count() - records_before
        window = PerfWindow(
            count,
            self._size_of(count),
            now - self._window_began,
            self._failed_count - failed_before,
            Latencies.of(self._latencies[measured_before:]),
        )
        self._begin_window(now)
        self._on_window(window)

    def _delivered_count(self) -> int:
        return int(self._producer.metrics()["records"])

    def _size_of(self, count: int) -> int:
        return round(count * sum(map(len, self._payloads)) / len(self._payloads))


def sampled_every(record_count: int, per_second: float | None) -> int:
    """The interval between measured records."""
    if record_count <= ALL_RECORDS or (per_second is not None and per_second <= SLOW_PER_SECOND):
        every = 1
    else:
        every = EVERY_FEW if record_count <= FEW_RECORDS else EVERY_MANY
    return max(every, math.ceil(record_count / SAMPLES_MAX))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least of the sorted values that ``percent`` per cent of them do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def random_payloads(size: int) -> list[bytes]:
    """Values of ``size`` bytes, capital letters: the same in each run, enough of them that a batch repeats none."""
    count = max(1, min(PAYLOADS_MAX, PAYLOAD_BYTES_MAX // max(size, 1)))
    letters = random.Random(SEED).randbytes(count * size).translate(LETTERS)
    return [letters[start * size : (start + 1) * size] for start in range(count)]


def payloads_from(data: bytes, delimiter: bytes = b"\n") -> list[bytes]:
    """The values in a file, in a random order that is the same in each run. Raises: ConfigError."""
    payloads = data.removesuffix(delimiter).split(delimiter) if data else []
    if not payloads:
        raise ConfigError("no payload, expected at least one")
    random.Random(SEED).shuffle(payloads)
    return payloads
