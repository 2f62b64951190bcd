"""What the log's face asks of what is behind it: a writer, or a view that only reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kstore.engine.ends import Ends
from kstore.engine.segments import LogSegments
from kstore.rules.losses import LossRanges
from kstore.rules.sequence import Producer
from kstore.segment import SegmentContext
from kstore.types import AbortedTransaction

__all__ = ["LogSource"]


class Producers(Protocol):
    @property
    def in_use(self) -> bool:
        """Whether a producer ever wrote to the log, as far as known."""
        ...

    def aborted_transactions(self, start: int, stop: int) -> Sequence[AbortedTransaction]: ...


class LogSource(Protocol):
    """A log's segments, and how much of them is published."""

    @property
    def context(self) -> SegmentContext: ...

    @property
    def segments(self) -> LogSegments: ...

    @property
    def producers(self) -> Producers: ...

    @property
    def ends(self) -> Ends: ...

    @property
    def losses(self) -> LossRanges:
        """What is known to be lost, and what of all damage is accepted."""
        ...

    @property
    def truncation_count(self) -> int:
        """Differs from what it was whenever anything may have been cut from the end since."""
        ...

    def refresh(self) -> None:
        """Takes in what another process, the writer, has done."""
        ...

    def settle(self) -> None:
        """Waits for a change of the segments that is under way, or takes one in."""
        ...

    def last_stable_offset(self) -> int: ...

    def known_producers(self) -> tuple[Producer, ...]:
        """What is known of every producer, in the order of their ids."""
        ...

    def wait_beyond(self, offset: int, timeout: float | None) -> bool: ...
