"""Sends records that come from lines, and reports failures by their lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Protocol

from kstore.cli.record_json import JsonRecord
from kstore.producer._accumulate import Deliveries


class Sends(Protocol):
    """What it needs of a producer."""

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
        headers: Sequence[Iterable[tuple[str, bytes | None]] | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries: ...


class LineSender:
    """Sends records to one topic. ``on_failure(line, error)`` is called for each failed one, in the order of lines."""

    def __init__(self, producer: Sends, topic: str, on_failure: Callable[[int, Exception], object]) -> None:
        self._producer = producer
        self._topic = topic
        self._on_failure = on_failure
        # Sends whose results have not been checked yet, each with the line of its first record.
        self._pending: deque[tuple[int, Deliveries]] = deque()
        self.sent_count = 0
        self.failed_count = 0

    def send(self, records: Sequence[JsonRecord], line: int) -> None:
        """Sends records from consecutive lines, the first from ``line``. Raises: as ``send``."""
        for partition, group in groupby(records, lambda record: record.partition):
            together = list(group)
            deliveries = self._producer.send_many(
                self._topic,
                [record.value for record in together],
                keys=[record.key for record in together],
                timestamps=[record.timestamp for record in together],
                headers=[record.headers for record in together],
                partition=partition,
            )
            self._pending.append((line, deliveries))
            self.sent_count += len(together)
            line += len(together)
        self.settle_done()

    def settle_done(self) -> None:
        """Reports the failures so far."""
        while self._pending and self._pending[0][1].done():
            self._settle_next()

    def settle(self) -> None:
        """Waits until every record has arrived or failed."""
        while self._pending:
            self._settle_next()

    def _settle_next(self) -> None:
        line, deliveries = self._pending[0]
        errors = deliveries.errors()
        self._pending.popleft()
        self.failed_count += len(errors)
        for index, error in errors.items():
            self._on_failure(line + index, error)
