"""What readers need of a log: the interface that its writer and a read-only view share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kstore.engine.ends import Ends
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.files.checkpoint import EpochEntry
from kstore.rules.losses import LossRanges
from kstore.rules.sequence import KnownProducer
from kstore.segment import SegmentContext
from kstore.types import RecoveryReport


class LogSource(Protocol):
    """A log's segments, and how much of them is published."""

    report: RecoveryReport
    """What opening found and did."""

    @property
    def context(self) -> SegmentContext: ...

    @property
    def segments(self) -> LogSegments: ...

    @property
    def producers(self) -> LogProducers: ...

    @property
    def ends(self) -> Ends: ...

    @property
    def losses(self) -> LossRanges:
        """What is known to be lost, and which damage is accepted."""
        ...

    @property
    def truncation_count(self) -> int:
        """Changes whenever anything may have been cut from the end."""
        ...

    @property
    def cut_count(self) -> int:
        """Changes when a cut begins, and when it is done; unlike ``truncation_count`` not with a compaction or a
        flush."""
        ...

    def refresh(self) -> None:
        """Applies what the writer has done, if it is another process."""
        ...

    def notice(self) -> None:
        """``refresh``, as far as it costs less than a lookup of one record."""
        ...

    def settle(self) -> None:
        """Waits until a change of the segments that is in progress ends, or applies it."""
        ...

    def last_stable_offset(self) -> int: ...

    def leader_epochs(self) -> Sequence[EpochEntry]:
        """Which leader epoch begins where, both increasing: epoch 0 from the start on, if nothing is recorded.

        Raises: StorageError.
        """
        ...

    def known_producers(self) -> tuple[KnownProducer, ...]:
        """Every known producer, sorted by id."""
        ...

    def wait_beyond(self, offset: int, timeout: float | None) -> bool:
        """Waits until the high watermark passes ``offset``; False after ``timeout`` seconds, or when the log closes."""
        ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...
