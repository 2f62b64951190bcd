"""The other writers of a log, as its writer sees them.

A log that is open alone has none (``NoOthers``). Processes that share a log announce their changes to each other
(``shared.others``) before they change a file, so that another process recovers the log if one dies during a change.
"""

from __future__ import annotations

from typing import Protocol

from kstore.segment import LogSegment
from kstore.segments.tail import SegmentTail

__all__ = ["NoOthers", "OtherWriters"]


class OtherWriters(Protocol):
    @property
    def is_shared(self) -> bool:
        """Whether other writers may exist, and append to the last segment."""
        ...

    def announce(self, *, moves_files: bool = False) -> None:
        """Announces that files are about to change; ``moves_files``: other writers must list the segments again."""
        ...

    def announce_change(self, *, cuts: bool = False) -> None:
        """Announces a change of the active segment; ``cuts``: records of other writers may be removed."""
        ...

    def open_tail(self, active: LogSegment, position: int) -> SegmentTail:
        """Opens the ``active`` segment, in which the log ends at ``position``, for appending."""
        ...


class NoOthers:
    """No other process writes to the log, and changes need no announcement."""

    is_shared = False

    def announce(self, *, moves_files: bool = False) -> None:
        return

    def announce_change(self, *, cuts: bool = False) -> None:
        return

    def open_tail(self, active: LogSegment, position: int) -> SegmentTail:
        return active.activate()
