"""What stays in a target: which pieces of a segment the next manifest names again, and which files no manifest names.
No I/O here.

A backup adds what a segment has gained as one more piece. A segment that grows in small steps would soon have
thousands, so each new piece also replaces a few before it: as in an LSM tree, a byte is copied once for each size
class, and a segment has a few pieces of each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from kstore.archive.manifest import LogEntry, Manifest, StoredFile
from kstore.files.paths import TopicPartition

# No merge makes a larger piece: it would delay the next manifest for too long.
MERGED_BYTES_MAX = 64 << 20
# The first size class ends at 256 KiB, because below that a request costs more than its bytes; each further one ends at
# 8 times the one before. Up to 6 pieces of a class stay apart.
SMALL_BITS, CLASS_BITS, MERGED_COUNT = 16, 3, 7

NamedFile = tuple[TopicPartition, StoredFile]


def _size_class(size: int) -> int:
    return max(size.bit_length() - SMALL_BITS, 0) // CLASS_BITS


def kept_count(pieces: Sequence[StoredFile], size: int, *, is_sealed: bool) -> int:
    """How many of ``pieces``, from the first on, stay, if the ``.log`` has ``size`` bytes now: one new piece follows
    them if they do not cover it.

    Those of a sealed segment, which are the last ones of it, become as few as they can.
    """
    count = len(pieces)
    start = pieces[-1].stop if pieces else 0
    if is_sealed:
        while count and size - pieces[count - 1].position <= MERGED_BYTES_MAX:
            count -= 1
        # One piece that is complete already.
        return len(pieces) if count + 1 == len(pieces) and start == size else count
    if start == size:
        return count
    while True:
        merged = count
        while merged and _size_class(pieces[merged - 1].size) <= _size_class(size - start):
            merged -= 1
        if count - merged < MERGED_COUNT:
            return count
        while size - pieces[merged].position > MERGED_BYTES_MAX:
            merged += 1
            if merged == count:
                return count
        count, start = merged, pieces[merged].position


class NamedFiles:
    """The files that the manifests in a target name. Those of a replicator are added and dropped in their order; all
    others stay. Not thread-safe.

    A call that is interrupted may be repeated, or left out: then some files count as named that are not, never the
    other way round."""

    def __init__(self) -> None:
        # By file: how many unbroken rows of manifests name it.
        self._counts: Counter[tuple[TopicPartition, str]] = Counter()
        # For each manifest of the replicator: its time, and the files that the one before it names and it does not.
        self._replicas: deque[tuple[int, set[NamedFile]]] = deque()
        self._newest: dict[TopicPartition, LogEntry] = {}

    def __contains__(self, key: tuple[TopicPartition, str]) -> bool:
        return key in self._counts

    @property
    def replica_count(self) -> int:
        return len(self._replicas)

    def keep(self, manifest: Manifest) -> None:
        """Adds a manifest that stays."""
        for log in manifest.logs:
            self._count(log.owner, log.files)

    def add(self, manifest: Manifest) -> None:
        """Adds the newest one of the replicator."""
        before, newest = self._newest, {log.owner: log for log in manifest.logs}
        gone: set[NamedFile] = set()
        for owner in before.keys() | newest.keys():
            old, new = before.get(owner), newest.get(owner)
            if old is not new:
                old_files, new_files = set(old.files if old else ()), set(new.files if new else ())
                self._count(owner, new_files - old_files)
                gone.update((owner, file) for file in old_files - new_files)
        # Only now, as one step: the next one is compared with it, and what it has is counted.
        self._newest = newest
        self._replicas.append((manifest.time_ms, gone))

    @property
    def oldest_time(self) -> int:
        """The time of the replicator's oldest one."""
        return self._replicas[0][0]

    def drop_oldest(self) -> list[tuple[TopicPartition, str]]:
        """Drops the oldest one of the replicator, which is not its newest one; returns the files that no manifest names
        any more."""
        self._replicas.popleft()
        gone = self._replicas[0][1]
        self._replicas[0] = self._replicas[0][0], set()
        return list(self._uncount(gone))

    def _count(self, owner: TopicPartition, files: set[StoredFile] | list[StoredFile]) -> None:
        self._counts.update((owner, file.name) for file in files if file.size)

    def _uncount(self, files: set[NamedFile]) -> Iterator[tuple[TopicPartition, str]]:
        for owner, file in files:
            key = owner, file.name
            if self._counts[key] > 1:
                self._counts[key] -= 1
            elif self._counts.pop(key, 0):
                yield key
