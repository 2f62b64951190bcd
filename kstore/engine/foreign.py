"""Appends batches that were built elsewhere: the implementation of ``Log.append_batches``."""

from __future__ import annotations

from kstore.engine.pending import PendingAppend, nothing_appended
from kstore.engine.writer import LogWriter
from kstore.rules.validate import split_batches, validate
from kstore.types import AppendInfo

__all__ = ["append_batches"]


def append_batches(
    writer: LogWriter, buffer: bytes | bytearray | memoryview, *, assign_offsets: bool = True
) -> AppendInfo:
    """See ``Log.append_batches``."""
    try:
        return _append_batches(writer, buffer, assign_offsets=assign_offsets)
    except Exception as error:
        writer.context.counters.append_failed(error)
        raise


def _append_batches(writer: LogWriter, buffer: bytes | bytearray | memoryview, *, assign_offsets: bool) -> AppendInfo:
    config = writer.context.config
    validated = validate(
        split_batches(buffer), config, now_ms=writer.context.clock.now_ms(), assign_offsets=assign_offsets
    )
    if not validated.batches:
        return nothing_appended(writer.ends.end_offset)
    append = PendingAppend(
        validated.buffer,
        validated.batches,
        validated.target_codec,
        append_time_ms=validated.log_append_time,
        source_codec=validated.source_codec,
        spans=None if assign_offsets else validated.spans,
        offsets_monotonic=validated.offsets_monotonic,
        with_producers=validated.has_producers,
    )
    writer.commit(append)
    assert append.result is not None
    return append.result
