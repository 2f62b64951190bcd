"""``Job``: one leased item."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Protocol, Self

from kstore.errors import KstoreError, LeaseLostError
from kstore.queue._jobs import LeasedRecord
from kstore.queue.items import Headers, of_user

logger = logging.getLogger(__name__)


class Leaser(Protocol):
    """The interface that a job needs of its ``Queue``, which is built on jobs."""

    def ack(self, job: Job) -> None: ...
    def nack(self, job: Job, delay: float = 0) -> None: ...
    def fail(self, job: Job) -> None: ...
    def extend(self, job: Job, seconds: float | None = None) -> None: ...


class Job(LeasedRecord):
    """An item, leased until ``deadline`` (monotonic). ``with queue.get() as job:`` acks it, or nacks it after an
    exception. For one thread at a time.

    ``offset`` is the number of the item; a copy of an item that was moved has another one. ``delivery_count`` includes
    this delivery. ``is_open``: neither acked nor nacked.
    """

    __slots__ = ()

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> Headers:
        """The headers that were passed to ``put``."""
        return of_user(self.record.headers)

    @property
    def timestamp(self) -> int:
        """When it was put, in ms since the epoch."""
        return self.record.timestamp

    def ack(self) -> None:
        """Marks the item as done: it is never delivered again. On return as durable as the queue's setting says.

        Raises: LeaseLostError (the lease expired and another worker has the item), DiskFullError, PoisonedError,
        ClosedError, StorageError: then it is leased as before.
        """
        self._queue.ack(self)

    def nack(self, delay: float = 0) -> None:
        """Lets the item be delivered again, after ``delay`` seconds. Raises: as ``ack``; it comes back in any case."""
        self._queue.nack(self, delay)

    def fail(self) -> None:
        """Makes the item a dead letter at once, however many deliveries it has left. On return it is on disk there.

        A crash in between may leave it in both queues. Raises: as ``ack``.
        """
        self._queue.fail(self)

    def extend(self, seconds: float | None = None) -> None:
        """Makes the lease end ``seconds`` from now (default: its original length). Raises: LeaseLostError."""
        self._queue.extend(self, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        if kind is None:
            self.ack()
            return
        try:
            self.nack()
        except LeaseLostError:
            pass  # another worker has it already
        except KstoreError as failure:
            # The caller must get the first error; the item comes back when its lease expires.
            logger.warning("item %d could not be returned: %s", self.offset, failure)

    def __repr__(self) -> str:
        return f"Job(offset={self.offset}, delivery_count={self.delivery_count}, is_open={self.is_open})"
