"""Batches that have a result: calls their callbacks, in order, and then wakes the waiting threads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from kstore.producer._accumulate import ProducerBatch, calling
from kstore.producer.accumulator import RecordAccumulator
from kstore.producer.waiting import wake

__all__ = ["Completions"]

logger = logging.getLogger(__name__)


class Completions:
    """Thread-safe. Batches of a partition are handed over under its ``drain_lock``, and so in order."""

    def __init__(self, accumulator: RecordAccumulator) -> None:
        self._accumulator = accumulator
        self._waiting: deque[ProducerBatch] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, batch: ProducerBatch) -> bool:
        return batch in self._waiting

    def hand_over(self, batches: Iterable[ProducerBatch]) -> None:
        """Queues batches for ``run``."""
        self._waiting.extend(batches)

    def run(self) -> None:
        """Completes the batches handed over; in one thread at a time."""
        while self._waiting:
            batch = self._waiting.popleft()
            try:
                if batch.callbacks:
                    self._call_back(batch)
            finally:
                self.release(batch)

    def _call_back(self, batch: ProducerBatch) -> None:
        with calling():
            for delivery, on_delivery in batch.callbacks:
                try:
                    delivery.call(on_delivery)
                except BaseException:
                    # SystemExit too: it would end the thread on which all others depend.
                    logger.exception("%s-%d: a callback failed", batch.topic, batch.partition)
        batch.callbacks.clear()

    def complete_here(self, batches: list[ProducerBatch]) -> None:
        """Completes batches without callbacks at once; hands over the others, and those that follow them."""
        done_count = 0
        try:
            for batch in batches:
                if self._waiting or batch.callbacks or batch.error is not None:
                    break
                self.release(batch)
                done_count += 1
        finally:
            if done_count < len(batches):
                self.hand_over(batches[done_count:])

    def release(self, batch: ProducerBatch) -> None:
        """Returns the batch's memory, and wakes the threads that wait for it; a second call does nothing."""
        try:
            self._give_back(batch)
        finally:
            awaited = batch.release()
            if awaited:
                wake(awaited)
                batch.woken()
            # Last: until then an interrupted release is repeated.
            self._accumulator.incomplete.discard(batch)

    def give_memory_back(self) -> None:
        """Returns the memory of batches whose callbacks have not run yet."""
        for batch in list(self._waiting):
            self._give_back(batch)

    def _give_back(self, batch: ProducerBatch) -> None:
        if batch.pool_size:
            # In one step: an interrupt after the buffer is taken would leave it in the traceback of the exception.
            self._accumulator.pool.deallocate(batch.take_buffer(), batch.pool_size)
        else:
            batch.take_buffer()
