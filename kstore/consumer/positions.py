"""``Positions``: a consumer's progress in each partition, also within what an iteration has handed out."""

from __future__ import annotations

from collections.abc import Collection

from kstore.consumer.fetching import PartitionReader
from kstore.consumer.pieces import LentItems
from kstore.consumer.reading import Reading
from kstore.consumer.use import SoleUse
from kstore.consumer.waiting import LogWaiter
from kstore.files.paths import TopicPartition

# The pause while an open transaction decides about an offset: its end causes no notification.
UNSTABLE_WAIT_SECONDS = 0.05


class Positions:
    """Where a consumer is. For its thread."""

    def __init__(self, reading: Reading, waiter: LogWaiter, use: SoleUse) -> None:
        self._reading = reading
        self._waiter = waiter
        self._use = use
        # What an iteration has handed out.
        self.piece: LentItems | None = None

    def recall(self) -> None:
        """Takes back what an iteration has not given out, and what an interrupted call has not returned; it is read
        again."""
        if self.piece is not None:
            self.piece.end()
            self.piece = None
        self._reading.take_back()

    def of(self, reader: PartitionReader) -> int:
        """The offset of the next record. Raises: NoOffsetError, WakeupError, StorageError."""
        if (before := self._reading.before.get(reader)) is not None:
            return before
        piece = self.piece
        if piece is not None and piece.reader is reader and (offset := piece.position()) is not None:
            return offset
        while not self._reading.begin(reader):
            self._waiter.wait((), UNSTABLE_WAIT_SECONDS)
            self._use.check_woken()
        assert reader.position is not None
        return reader.position

    def known(self) -> dict[TopicPartition, int]:
        """The positions of all its partitions in which reading has begun."""
        return {
            owner: self.of(reader) for owner, reader in self._reading.readers.items() if reader.position is not None
        }

    def chosen(self, partitions: Collection[TopicPartition]) -> list[PartitionReader]:
        """The readers of ``partitions``, or all; ends what an iteration has handed out.

        Raises: ConsumerStateError.
        """
        self.recall()
        return self._reading.chosen(partitions)

    def close(self) -> None:
        """Releases all partitions."""
        self.piece = None
        self._reading.drop(self._reading.readers.keys())
