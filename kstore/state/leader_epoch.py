"""The leader epochs of a log: which epoch wrote from which offset (LeaderEpochFileCache).

Epochs and offsets both increase from entry to entry; an epoch lasts up to the start of the next one. Each change is on
disk when it returns; a failed write changes nothing. Not thread-safe: the log's lock guards it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from kstore.errors import PathLike
from kstore.files.checkpoint import EpochEntry, write_leader_epochs
from kstore.files.fs import FileSystem

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1

by_epoch = attrgetter("epoch")
by_start = attrgetter("start_offset")


class LeaderEpochCache:
    """The epochs of one log, in memory and in the file ``path``."""

    def __init__(
        self, fs: FileSystem, path: PathLike, entries: Iterable[EpochEntry] = (), *, mode: int = 0o600
    ) -> None:
        """``entries`` are those of the file; of contradictory entries the later ones are kept."""
        self._fs = fs
        self._path = path
        self._mode = mode
        self._entries = rising(entries)
        # The epoch of the last entry, None without any.
        self.latest_epoch = latest_of(self._entries)

    @property
    def entries(self) -> Sequence[EpochEntry]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Records that ``epoch`` writes from ``start_offset``; returns whether that was new.

        For the latest epoch only an earlier start is new. Entries with an equal or higher epoch or start are removed:
        they describe truncated data.

        Raises: ValueError for a negative number; DiskFullError, StorageError.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} from offset {start_offset} on, expected both to be 0 or more")
        assigned = assign(self._entries, EpochEntry(epoch, start_offset))
        if assigned is self._entries:
            return False
        self._store(assigned)
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """See ``end_offset_for``."""
        return end_offset_for(self._entries, epoch, log_end_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Removes the epochs that start at or after ``end_offset``, where the log was cut."""
        self._store(self._entries[: bisect_left(self._entries, end_offset, key=by_start)])

    def truncate_from_start(self, start_offset: int) -> None:
        """Removes everything below ``start_offset``, the log's new start; the epoch at it starts there."""
        above = bisect_right(self._entries, start_offset, key=by_start)
        if above:
            first = EpochEntry(self._entries[above - 1].epoch, start_offset)
            self._store([first, *self._entries[above:]])

    def clear(self) -> None:
        """Removes everything."""
        self._store([])

    def replace(self, entries: Iterable[EpochEntry]) -> None:
        """Keeps only ``entries``, which were rebuilt from the log."""
        self._store(rising(entries))

    def _store(self, entries: list[EpochEntry]) -> None:
        if entries != self._entries:
            latest_epoch = latest_of(entries)
            write_leader_epochs(self._fs, self._path, entries, mode=self._mode)
            # No signal is served between the two stores.
            self._entries, self.latest_epoch = entries, latest_epoch


def end_offset_for(entries: Sequence[EpochEntry], epoch: int, log_end_offset: int) -> EpochEntry:
    """The epoch that ``epoch`` stands for, and the offset at which it ends.

    The latest epoch ends at the log's end. An epoch that wrote nothing ends where the next one starts, and stands
    for the one before it, if any. Both results are -1 for a negative epoch, or an unknown one above the latest.
    """
    if epoch < 0 or not entries or epoch > entries[-1].epoch:
        return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    if epoch == entries[-1].epoch:
        return EpochEntry(epoch, log_end_offset)
    above = bisect_right(entries, epoch, key=by_epoch)
    return EpochEntry(entries[above - 1].epoch if above else epoch, entries[above].start_offset)


def epoch_at(entries: Sequence[EpochEntry], offset: int) -> int:
    """The epoch that wrote ``offset``; UNDEFINED_EPOCH below the first."""
    above = bisect_right(entries, offset, key=by_start)
    return entries[above - 1].epoch if above else UNDEFINED_EPOCH


def latest_of(entries: Sequence[EpochEntry]) -> int | None:
    return entries[-1].epoch if entries else None


def assign(entries: list[EpochEntry], new: EpochEntry) -> list[EpochEntry]:
    """``entries`` with ``new``; themselves, unchanged, if it adds nothing."""
    changed = list(entries)
    return changed if _add(changed, new) else entries


def rising(entries: Iterable[EpochEntry]) -> list[EpochEntry]:
    """``entries`` without those that later ones contradict."""
    found: list[EpochEntry] = []
    for entry in entries:
        _add(found, entry)
    return found


def _add(entries: list[EpochEntry], new: EpochEntry) -> bool:
    """Puts ``new`` at the end, in place of what it contradicts; False, and nothing is done, if it adds nothing."""
    if entries and entries[-1].epoch == new.epoch and entries[-1].start_offset <= new.start_offset:
        return False
    while entries and (entries[-1].epoch >= new.epoch or entries[-1].start_offset >= new.start_offset):
        entries.pop()
    entries.append(new)
    return True
