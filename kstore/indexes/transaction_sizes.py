"""The size of each segment's transaction index, which reveals the loss of one.

Readers of committed records rely on these indexes, so a lost one would show them aborted records. ``kstore.state`` has
the total size of those that recovery does not check after a crash: from the log's start up to the segment with the
recovery point, which recovery scans. The sum is kept in memory, so no file's size is read after the open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from kstore.files.fs import FileSystem
from kstore.files.paths import TXN_INDEX_SUFFIX, segment_name


class TransactionIndexSizes:
    """Bytes by the base offset of the segment; most logs have none. Not thread-safe: the log's lock guards it."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        # The last requested sum, and the bases where it starts and ends.
        self._sum: tuple[int, int, int] | None = None

    @classmethod
    def found(
        cls, fs: FileSystem, directory: Path, bases: Iterable[int], known: TransactionIndexSizes | None = None
    ) -> TransactionIndexSizes:
        """The sizes of the existing files of the segments ``bases``; those that are ``known`` are not read.

        Raises: StorageError.
        """
        sizes = cls()
        for base_offset in bases:
            if known is not None and base_offset in known._sizes:
                sizes.note(base_offset, known._sizes[base_offset])
                continue
            try:
                sizes.note(base_offset, fs.stat(directory / segment_name(base_offset, TXN_INDEX_SUFFIX)).size)
            except FileNotFoundError:
                pass  # it was deleted with its segment
        return sizes

    def note(self, base_offset: int, size: int) -> None:
        """Notes that the index of the segment at ``base_offset`` has ``size`` bytes; 0 for an empty or missing one."""
        before = self._sizes.get(base_offset, 0)
        self._sizes[base_offset] = size
        if size != before and self._sum is not None and base_offset < self._sum[1]:
            self._sum = None

    def drop(self, bases: Iterable[int]) -> None:
        """Removes the segments at ``bases``."""
        for base_offset in bases:
            self.note(base_offset, 0)
            self._sizes.pop(base_offset, None)

    def __contains__(self, base_offset: object) -> bool:
        """Whether the segment has an index, even an empty one."""
        return base_offset in self._sizes

    def total(self, bases: Sequence[int], start_offset: int, recovery_point: int | None) -> int:
        """The sum over the segments from that of ``start_offset`` to the one before that of ``recovery_point``.

        ``bases`` are those of the log's segments, increasing. With None for ``recovery_point`` the last one counts too.
        """
        if not self._sizes:
            return 0
        start = _floor(bases, start_offset)
        stop = bases[-1] + 1 if recovery_point is None else _floor(bases, recovery_point)
        known = self._sum
        if known is None or known[0] != start or known[1] > stop:
            known = start, start, 0
        # A roll adds one segment. After a cut there may be ten thousand to add, of which few have an index.
        added = bases[bisect_left(bases, known[1]) : bisect_left(bases, stop)]
        if len(added) > len(self._sizes):
            more = sum(size for base_offset, size in self._sizes.items() if known[1] <= base_offset < stop)
        else:
            more = sum(self._sizes.get(base_offset, 0) for base_offset in added)
        self._sum = start, stop, known[2] + more
        return self._sum[2]


def _floor(bases: Sequence[int], offset: int) -> int:
    """The greatest base <= ``offset``, else the first one."""
    return bases[max(bisect_right(bases, offset) - 1, 0)]
