"""Batches that have a result: calls their callbacks, in order, and then wakes the waiting threads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from kstore.producer._accumulate import ProducerBatch, calling
from kstore.producer.accumulator import RecordAccumulator

logger = logging.getLogger(__name__)


class Completions:
    """Thread-safe. Batches of a partition are handed over under its ``drain_lock``, and so in order."""

    def __init__(self, accumulator: RecordAccumulator) -> None:
        self._accumulator = accumulator
        self.waiting: deque[ProducerBatch] = deque()

    def __contains__(self, batch: ProducerBatch) -> bool:
        return batch in self.waiting

    def hand_over(self, batches: Iterable[ProducerBatch]) -> None:
        """Queues batches for ``run``."""
        self.waiting.extend(batches)

    def run(self) -> None:
        """Completes the batches handed over; in one thread at a time."""
        while self.waiting:
            batch = self.waiting.popleft()
            try:
                if batch.callbacks:
                    self._call_back(batch)
                self._accumulator.release(batch)
            except BaseException:
                # A lack of memory: the next call continues with it.
                self.waiting.appendleft(batch)
                raise

    def _call_back(self, batch: ProducerBatch) -> None:
        called_count = 0
        try:
            with calling():
                for delivery, on_delivery in batch.callbacks:
                    failure = delivery.call(on_delivery)
                    called_count += 1
                    if failure is not None:
                        # SystemExit too: it would end the thread on which all others depend.
                        log_callback(batch, failure)
        finally:
            del batch.callbacks[:called_count]

    def complete_here(self, batches: list[ProducerBatch]) -> None:
        """Completes batches without callbacks at once; hands over the others, and those that follow them."""
        done_count = 0
        try:
            for batch in batches:
                if self.waiting or batch.callbacks or batch.error is not None:
                    break
                self._accumulator.release(batch)
                done_count += 1
        finally:
            if done_count < len(batches):
                self.hand_over(batches[done_count:])

    def give_memory_back(self) -> None:
        """Returns the memory of batches whose callbacks have not run yet."""
        for batch in list(self.waiting):
            self._accumulator.give_back(batch)


def log_callback(batch: ProducerBatch, failure: BaseException) -> None:
    """Logs the exception of a callback of a record in ``batch``."""
    logger.error("%s-%d: a callback failed", batch.topic, batch.partition, exc_info=failure)


def without_frames(error: BaseException) -> BaseException:
    """The error and its causes, without the frames of their tracebacks, which would keep the written data alive as long
    as the error. A pooled buffer cannot grow while a view of it is alive."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error
