"""Finds the end of the last whole batch of a segment: where the next one is, or may be, written."""

from __future__ import annotations

from typing import NamedTuple

from kstore.files.paths import INDEX_SUFFIX
from kstore.files.remote import RemoteFile
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.indexes.offset_index import stored_entries
from kstore.record.batch import Batch
from kstore.record.heads import HEAD_BYTES
from kstore.record.walk import Damage, walk
from kstore.segment import UNINDEXED_BYTES, LogSegment
from kstore.segments.places import START, Located
from kstore.types import OFFSET_MAX


class SegmentEnd(NamedTuple):
    """The next ``offset`` and the ``position`` after the last whole batch.

    That batch begins at ``batch_position``, with the bytes ``batch_head``, as read when it was found to be whole.
    """

    offset: int
    position: int
    batch_position: int
    batch_head: bytes = b""

    @classmethod
    def after(cls, position: int, batch: Batch) -> SegmentEnd:
        """The end of a segment whose last batch is ``batch``, at ``position``."""
        return cls(batch.last_offset + 1, position + batch.size, position, bytes(batch.data[:HEAD_BYTES]))


def segment_end(segment: LogSegment, stop: int, *, offset_stop: int = OFFSET_MAX, known_end: int = 0) -> SegmentEnd:
    """The end of the last whole batch up to position ``stop``, below ``offset_stop``; damage is skipped.

    Walks from the last index entry on, if a whole batch is there, else from the start. ``known_end``: an end that
    the log once had (``walk``).
    """
    for start in (_last_indexed(segment, stop), START):
        last = None
        for item in walk(
            segment.log_file(),
            start.position,
            stop,
            next_offset=max(start.next_offset, segment.base_offset),
            offset_stop=offset_stop,
            known_end=known_end,
        ):
            if not isinstance(item, Damage):
                last = item
            elif start.position and last is None:
                break  # the entry led into damage: what comes before it is not known
        if last is not None:
            return SegmentEnd.after(*last)
    return SegmentEnd(segment.base_offset, 0, 0)


def _last_indexed(segment: LogSegment, stop: int) -> Located:
    """The batch of the last index entry, if it is there; else the segment's start, as in a segment that is read faster
    without its index: all readers must begin at the same place, or they see different ends after damage."""
    if stop <= UNINDEXED_BYTES:
        return START
    try:
        file = segment.log_file()
        if isinstance(file, RemoteFile):
            index = segment.context.fs.open(segment.files.path_text(INDEX_SUFFIX))
            assert isinstance(index, RemoteFile)
            entry = stored_entries(index, index.opened_size, segment.base_offset, log_size=stop).last
        else:
            entry = segment.offset_index().last_entry
    except INDEX_FAILURES:
        return START
    if not 0 < entry.position < stop:
        return START
    # A lookup for the entry's own offset checks the header there.
    found = segment.locate(entry.offset, stop, repair=False, entry=entry)
    return found if found.position == entry.position else START
