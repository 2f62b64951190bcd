"""What a log shows its readers: one immutable value, replaced by one store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Published"]


class Published(NamedTuple):
    """What readers see: the log ends at ``offset``, in segment ``base_offset`` at byte ``position``.

    ``high_watermark`` is where reads stop; it is below ``offset`` only in a poisoned log.
    """

    offset: int
    base_offset: int
    position: int
    high_watermark: int
