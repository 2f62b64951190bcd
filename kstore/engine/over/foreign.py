"""Appends batches that were built elsewhere: the implementation of ``Log.append_batches``, which has a short way for
one batch that needs no change, and ``append_encoded`` for batches that kstore has built in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kstore.engine.append.pending import PendingAppend, nothing_appended, spare_buffer
from kstore.engine.writer import LogWriter
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.rules.arguments import are_timely
from kstore.rules.validate import split_batches, unchanged, validate
from kstore.types import CREATE_TIME, AppendInfo

if TYPE_CHECKING:
    from typing_extensions import Buffer


class EncodedElsewhere(NamedTuple):
    """Batches that kstore has encoded in another process, and the data that a log needs to accept them.

    ``codecs`` names each of their codecs once. ``times`` are the least and greatest timestamp of their records (ms).
    ``stamp`` is that of ``PendingAppend``.
    """

    buffer: BatchBuffer
    batches: list[EncodedBatch]
    codecs: Sequence[str]
    times: tuple[int, int]
    has_every_key: bool
    stamp: tuple[int, int, int, bool]


def append_batches(
    writer: LogWriter, buffer: bytes | bytearray | memoryview, *, assign_offsets: bool = True, copy: bool = True
) -> AppendInfo:
    """See ``Log.append_batches``. ``copy`` False: nothing changes the bytes while they are appended."""
    try:
        # Checked bytes must not change before they are written.
        data = buffer if isinstance(buffer, bytes) or not copy else bytes(memoryview(buffer))
        info = _append_unchanged(writer, data) if assign_offsets else None
        return info or _append_validated(writer, data, assign_offsets=assign_offsets)
    except Exception as error:
        writer.context.counters.append_failed(error)
        raise


def _append_unchanged(writer: LogWriter, data: Buffer) -> AppendInfo | None:
    """Appends one batch of magic 2 that needs no change. None, and nothing is done, for anything else."""
    context = writer.context
    found = unchanged(data, context.config, context.clock.now_ms())
    if found is None:
        return None
    buffer = spare_buffer()
    buffer.extend(data)
    return writer.appends.commit_built(
        PendingAppend(buffer, [found.batch], found.codec, with_producers=found.stamp is not None, stamp=found.stamp)
    )


def _append_validated(writer: LogWriter, data: bytes | bytearray | memoryview, *, assign_offsets: bool) -> AppendInfo:
    config = writer.context.config
    validated = validate(
        split_batches(data), config, now_ms=writer.context.clock.now_ms(), assign_offsets=assign_offsets
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


def append_encoded(writer: LogWriter, encoded: EncodedElsewhere) -> AppendInfo | None:
    """Appends batches without decoding them. The caller has compared them with a checksum from when they were encoded.

    Returns None, and has done nothing, if the log has to change them or may refuse a record: then use
    ``append_batches``, which decodes them and says what is wrong. Raises: as ``append_batches``.
    """
    config = writer.context.config
    codec = encoded.codecs[0]
    if (
        config.message_timestamp_type != CREATE_TIME
        or len(encoded.codecs) > 1
        or config.target_codec(codec) != codec
        or not are_timely(*encoded.times, config, writer.context.clock.now_ms())
        or (config.is_compacted and not encoded.has_every_key)
        or any(batch.size > config.max_message_bytes for batch in encoded.batches)
    ):
        return None
    append = PendingAppend(encoded.buffer, encoded.batches, codec, with_producers=True, stamp=encoded.stamp)
    try:
        writer.commit(append)
    except Exception as error:
        writer.context.counters.append_failed(error)
        raise
    assert append.result is not None
    return append.result
