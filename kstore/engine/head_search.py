"""How a reader finds the transactions of a log without reading its records: by the headers of its batches.

On a disk each header is a small read. Far away it is a small request where batches are large, and several of them are
made at a time, at the positions that the index has; where batches are small, the file is read through, since a request
for each would take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from kstore.engine.segments import LogSegments
from kstore.files.ahead import PiecesAhead, PiecesAt
from kstore.files.paths import INDEX_SUFFIX
from kstore.files.remote import RemoteFile
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.indexes.offset_index import OffsetIndex, stored_entries
from kstore.record.batch import Batch
from kstore.record.heads import HEAD_READ_BYTES, HeadWalk
from kstore.record.scan import Source
from kstore.record.walk import Damage
from kstore.segment import LogSegment
from kstore.segments.places import Located

# Batches of this size on average are jumped over. At 20 ms a request, 32 requests at once jump over as many bytes in a
# second as a process in Python reads.
JUMP_BYTES = 128 << 10
# A file is read through in these. Dozens of logs are searched at a time, each with some of them in memory.
PIECE_BYTES = 2 << 20
PIECES_AHEAD_MAX = 4


class HeadSearch:
    """Finds batches for one log's ``LogProducers``, and counts the bytes that it reads. Not thread-safe."""

    def __init__(self, *, bytes_max: int, on_much: Callable[[int], object], request_count: int = 1) -> None:
        """``on_much`` is called once with the bytes of the files to search, when more than ``bytes_max`` of them were
        read. ``request_count``: how many requests to a store may be on their way."""
        self._bytes_max = bytes_max
        self._on_much = on_much
        self.request_count: int = request_count
        self._total_bytes = 0
        self.bytes_read: int = 0
        self._is_told = False

    def begin(self, segments: LogSegments, start: int, end: int, position: int) -> None:
        """A search from offset ``start`` to ``end`` begins; the last segment is searched up to ``position``."""
        found = segments.range(start, end)
        self._total_bytes = sum(position if segment is segments.last else segment.size for segment in found)
        self.bytes_read = 0

    def note(self, size: int) -> None:
        """``size`` more bytes were read."""
        self.bytes_read += size
        if self.bytes_read > self._bytes_max and not self._is_told:
            self._is_told = True
            self._on_much(self._total_bytes)

    def batches(self, segment: LogSegment, located: Located, stop: int) -> Iterator[tuple[int, Batch] | Damage]:
        """The transactional batches and the markers from ``located`` on, up to position ``stop``.

        From where headers cannot be believed it is as ``LogSegment.walk_from``. Raises: StorageError.
        """
        file = segment.log_file()
        if isinstance(file, RemoteFile):
            positions = self._positions(segment, located, stop)
            source: Source = (
                _Jumping(file, stop, positions, self) if positions else _Through(file, located.position, stop, self)
            )
        else:
            source = _Counted(file, self)
        walk = HeadWalk(source, located.position, stop, next_offset=max(located.next_offset, segment.base_offset))
        yield from walk
        if walk.stopped is not None:
            position, expected = walk.stopped
            self.note(stop - position)
            yield from segment.walk_from(Located(position, 0, expected), stop)

    def _positions(self, segment: LogSegment, located: Located, stop: int) -> list[int]:
        """Where batches begin, by the index, if they are worth a request each; else nothing."""
        if stop - located.position <= PIECE_BYTES:
            return []
        try:
            file = segment.context.fs.open(segment.files.path_text(INDEX_SUFFIX))
            assert isinstance(file, RemoteFile)
            stored = stored_entries(file, file.opened_size, segment.base_offset, log_size=segment.size)
            if not stored.entry_count or stored.last.position < JUMP_BYTES * stored.entry_count:
                return []
            data = file.pread(stored.entry_count * OffsetIndex.entry_size, 0)
            self.note(len(data))
            index = OffsetIndex.from_bytes(data, segment.base_offset)
        except INDEX_FAILURES:
            return []
        return [at for at in index.rows()[1::2] if located.position <= at < stop]


class _Counted:
    """A file on a disk."""

    def __init__(self, source: Source, search: HeadSearch) -> None:
        self._source = source
        self._note = search.note

    def pread(self, size: int, position: int) -> bytes:
        data = self._source.pread(size, position)
        self._note(len(data))
        return data


class _Jumping:
    """The headers in a file of large batches far away. A read gives what one small request brings."""

    def __init__(self, file: RemoteFile, stop: int, positions: list[int], search: HeadSearch) -> None:
        """``positions``: where most of the batches begin."""
        self._fetch = partial(_fetched, file, stop)
        self._note = search.note
        count = search.request_count
        self._ahead = PiecesAt(self._fetch, positions, piece_bytes=HEAD_READ_BYTES, count=count if count > 1 else 0)

    def pread(self, size: int, position: int) -> bytes:
        data = self._ahead.take(position)
        if data is None:
            data = self._fetch(position, position + HEAD_READ_BYTES)
        self._note(len(data))
        return data[:size]


class _Through:
    """A file of small batches far away, in pieces, of which the next ones are on their way."""

    def __init__(self, file: RemoteFile, start: int, stop: int, search: HeadSearch) -> None:
        self._fetch = partial(_fetched, file, stop)
        self._stop = stop
        self._note = search.note
        count = min(search.request_count - 1, PIECES_AHEAD_MAX)
        self._ahead = PiecesAhead(self._fetch, count=count, piece_bytes=PIECE_BYTES)
        self._start = start
        self._data = b""

    def pread(self, size: int, position: int) -> bytes:
        stop = min(position + size, self._stop)
        while True:
            end = self._start + len(self._data)
            if not position <= end + PIECE_BYTES:
                self._start, self._data = position, b""  # a large batch reaches over the next piece
                continue
            if stop <= end:
                break
            piece = self._ahead.take(end)
            if piece is None:
                piece = self._fetch(end, end + PIECE_BYTES)
            if not piece:
                break  # the file is shorter now
            self._note(len(piece))
            self._ahead.begin(end + len(piece), self._stop)
            kept = self._data[max(position - self._start, 0) :]
            self._start, self._data = end - len(kept), kept + piece
        at = position - self._start
        return self._data[at : at + stop - position]


def _fetched(file: RemoteFile, file_stop: int, start: int, stop: int) -> bytes:
    return file.fetch(start, min(stop, file_stop))
