"""What one read of a small segment shows."""

from __future__ import annotations

from kstore.files.fs import File
from kstore.record._runs import index_notes, walk_run
from kstore.types import INT64_MAX, NO_OFFSET, NO_TIMESTAMP, OFFSET_MAX, TimestampOffset


def largest_of_plain(file: File, stop: int, base_offset: int) -> TimestampOffset | None:
    """The greatest timestamp of the batches in the first ``stop`` bytes, which are read at once; every CRC is checked.

    None if one of them needs a decision: then ``walk`` finds it. Raises: StorageError.
    """
    data = file.pread(stop, 0)
    # The end of the log is known: a gap of any size is believed below it.
    run = walk_run(data, 0, stop, 0, base_offset, stop, OFFSET_MAX - 1, 0, OFFSET_MAX, True)
    if run.stop < stop:
        return None
    notes = index_notes(run, NO_TIMESTAMP, NO_OFFSET, 0, INT64_MAX)
    return TimestampOffset(notes.max_timestamp, notes.offset_of_max_timestamp)
