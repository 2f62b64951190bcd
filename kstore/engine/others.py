"""The other writers of a log, as seen by the one that changes it.

A log that is open alone has none (``NoOthers``). The processes that share a log tell each other of changes
(``shared.others``): every change of a file is announced before, so that another process recovers the log if this one
dies during it.
"""

from __future__ import annotations

from typing import Protocol

from kstore.segment import LogSegment
from kstore.segment_tail import SegmentTail

__all__ = ["NoOthers", "OtherWriters"]


class OtherWriters(Protocol):
    @property
    def is_shared(self) -> bool:
        """Whether there may be any, and they may be appending to the last segment."""
        ...

    def announce(self, *, moves_files: bool = False) -> None:
        """Announces that files are about to change; ``moves_files``: other writers must look for segments again."""
        ...

    def announce_change(self, *, cuts: bool = False) -> None:
        """Announces a change of the active segment; ``cuts``: records of others may be removed."""
        ...

    def open_tail(self, active: LogSegment, position: int) -> SegmentTail:
        """Opens the ``active`` segment, in which the log ends at ``position``, for appending."""
        ...


class NoOthers:
    """No other process writes to the log, and no change needs an announcement."""

    is_shared = False

    def announce(self, *, moves_files: bool = False) -> None:
        return

    def announce_change(self, *, cuts: bool = False) -> None:
        return

    def open_tail(self, active: LogSegment, position: int) -> SegmentTail:
        return active.activate()
