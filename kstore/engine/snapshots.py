"""What a writer says of its log at one moment: values for its store, and for a compaction."""

from __future__ import annotations

from typing import NamedTuple

from kstore.rules.compact import LastRecord
from kstore.segment import LogSegment

__all__ = ["Cleanable", "LogOffsets"]


class Cleanable(NamedTuple):
    """What a compaction begins with: the sealed ``segments``, and what it must not go beyond.

    ``stop_offset`` is where the last of them ends, ``durable_offset`` up to where all is on disk and stays there.
    ``last_records`` are those of live producers; unless ``producers_known`` there seem to be none.
    """

    segments: tuple[LogSegment, ...]
    cut_count: int
    stop_offset: int
    start_offset: int
    stable_offset: int
    durable_offset: int
    last_records: dict[int, LastRecord]
    producers_known: bool


class LogOffsets(NamedTuple):
    """Where a log is: what its store's checkpoints say of it."""

    first_base_offset: int
    start_offset: int
    recovery_point: int
    high_watermark: int
    end_offset: int
