"""What a read is divided into: ``Split``s, one Spark partition each, of pieces of logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from kstore.log_places import LogPlace
from kstore.types import AbortedTransaction

__all__ = ["Piece", "Split"]


class Piece(NamedTuple):
    """Offsets ``start`` to ``stop`` (exclusive) of one log, about ``size`` bytes of its files.

    ``aborted`` are the transactions of which a committed read leaves out the records: known when the read is planned,
    so that no task has to read a log to its end for them.
    """

    place: LogPlace
    start: int
    stop: int
    size: int = 0
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def offset_count(self) -> int:
        return self.stop - self.start


class Split(InputPartition):
    """What one task reads, a piece after the other. Plain values: it is sent to where the task runs."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def offset_count(self) -> int:
        return sum(piece.offset_count for piece in self.pieces)
