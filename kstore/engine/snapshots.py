"""What a writer reports of its log at one moment, as values for its store and for a compaction."""

from __future__ import annotations

from typing import NamedTuple

from kstore.rules.compact import LastRecord
from kstore.segment import LogSegment


class Cleanable(NamedTuple):
    """The input of a compaction: the sealed ``segments``, and the limits that it must not pass.

    ``stop_offset`` is the end of the last segment; everything below ``durable_offset`` is on disk and stays there.
    ``last_records`` are those of live producers; unless ``producers_known`` no producers are known.
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
    """The offsets of a log that its store's checkpoints record."""

    first_base_offset: int
    start_offset: int
    recovery_point: int
    high_watermark: int
    end_offset: int
