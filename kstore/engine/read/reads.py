"""What readers ask of a log. It takes no lock: it answers from what is published.

A caller that finds a change in progress lets it ``settle`` and looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kstore.engine.ends import Ends
from kstore.engine.read.segment_times import SegmentTimes
from kstore.engine.source import LogSource
from kstore.errors import ClosedError, CorruptIndexError
from kstore.files.lifetime import ForkGuard
from kstore.rules.losses import LossRanges
from kstore.segment import LogSegment
from kstore.types import AbortedTransaction

Found = TypeVar("Found")

# A reader looks again for a missing segment at most this many times in a log that has not changed otherwise, before its
# absence is an error. Changes are not counted: on a busy machine a cleaner may be faster than a reader for long.
MISSING_MAX = 10


class LogReads:
    """An open log, as readers see it; changes go through its writer. Thread-safe.

    Methods that use files or the list of segments raise ClosedError after ``close`` and ForkedError in a forked child.
    """

    __slots__ = ("_aborted", "_guard", "_path", "_source", "closed", "times")

    def __init__(self, source: LogSource, guard: ForkGuard, path: Path) -> None:
        self._source = source
        self._guard = guard
        self._path = path
        self._aborted: Sequence[AbortedTransaction] | None = None
        self.closed: bool = False
        self.times: SegmentTimes = SegmentTimes()

    @property
    def source(self) -> LogSource:
        """The writer or the view. A caller asks once and then uses it. Raises: ClosedError, ForkedError."""
        if self.closed:
            raise ClosedError(f"the log {self._path} is closed")
        if self._guard.forked:
            self._guard.check(f"the log {self._path}")
        return self._source

    def close(self) -> None:
        """Ends every reader at its next question, and frees what lookups have kept."""
        self.closed = True
        if (checked := self._source.context.checked) is not None:
            checked.close()

    def plan(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Makes committed reads use ``aborted``, and stop at the high watermark, without a search for either.

        For a reader in another process, to which both were passed.
        """
        self._aborted = aborted

    @property
    def start_offset(self) -> int:
        return self._source.ends.start_offset

    @property
    def truncation_count(self) -> int:
        """Incremented before anything is cut from the log's end, and again when the cut is done."""
        return self._source.truncation_count

    @property
    def losses(self) -> LossRanges:
        """The lost and the accepted offsets. They may change: a reader looks again at each gap and damage."""
        return self._source.losses

    def read_bound(self, *, committed: bool) -> Ends:
        """The log's ends, with the high watermark where a read stops, within a batch if need be.

        The files may hold whole batches above it, which are not read.
        """
        source = self.source
        ends = source.ends
        if not committed or self._aborted is not None:
            return ends
        return ends._replace(high_watermark=min(source.last_stable_offset(), ends.high_watermark))

    def segment_for(self, offset: int) -> tuple[LogSegment, int] | None:
        """The segment that holds ``offset`` or, in a gap, the next one; with the offset at which it ends."""
        return self.source.segments.holding(offset)

    def aborted_transactions(self, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that overlap offsets ``start`` to ``stop``."""
        source = self.source
        if self._aborted is not None:
            return self._aborted
        while True:
            truncation_count = source.truncation_count
            try:
                return source.producers.aborted_transactions(start, stop)
            except (CorruptIndexError, FileNotFoundError):
                source.settle()
                if source.truncation_count == truncation_count:
                    raise

    def refreshed(self) -> LogSource:
        """The writer or the view, after it has taken in what another process has done; waits for nothing."""
        source = self.source
        source.refresh()
        return source

    def settle(self) -> None:
        """Waits for a change of the segments that is in progress, or takes one in."""
        self.source.settle()

    def wait_beyond(self, offset: int, timeout: float | None, *, committed: bool) -> bool:
        """Returns True when records at or above ``offset`` may be read, False after ``timeout`` seconds or a close."""
        source = self.source
        if not committed:
            return source.wait_beyond(offset, timeout)
        clock = source.context.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not self.closed:
            if source.last_stable_offset() > offset:
                return True
            # Only an append can end a transaction, and so move the last stable offset.
            rest = None if deadline is None else max(deadline - clock.monotonic(), 0)
            if not source.wait_beyond(source.ends.high_watermark, rest):
                return source.last_stable_offset() > offset
        return False


def looked_up(source: LogSource, look: Callable[[], Found]) -> Found:
    """What ``look`` returns; it is called again if a segment is missing because a change is in progress."""
    missing_count = 0
    while True:
        truncation_count = source.truncation_count
        try:
            return look()
        except FileNotFoundError:
            source.settle()
            missing_count = missing_count + 1 if source.truncation_count == truncation_count else 0
            if missing_count > MISSING_MAX:
                raise


def segment_count_and_size(source: LogSource) -> tuple[int, int]:
    """How many segments the log has, and the bytes of their ``.log`` files. Raises: StorageError."""
    source.refresh()
    # Each look asks the current map: settling may replace it.
    return looked_up(source, lambda: source.segments.count_and_size())
