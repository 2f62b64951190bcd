"""The index of a segment's aborted transactions, ``.txnindex``.

    at  size  field
     0     2  version             int16  0; Kafka reads only the first of its two bytes, and so does this reader
     2     8  producer_id         int64
    10     8  first_offset        int64  of the transaction's first record
    18     8  last_offset         int64  of its abort marker, which is in this segment
    26     8  last_stable_offset  int64  of the log, just after the marker

Readers of committed records rely on it, so it is not a hint: anything impossible in it is a CorruptIndexError.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from kstore.errors import (
    ClosedError,
    CorruptIndexError,
    FileMissingError,
    InvalidOffsetError,
    PathLike,
    ReadOnlyError,
    StorageError,
)
from kstore.files.fs import File, FileSystem
from kstore.files.paths import TXN_INDEX_SUFFIX, segment_name
from kstore.types import NO_OFFSET, AbortedTransaction

ENTRY = struct.Struct(">bxqqqq")
WHOLE_VERSION = struct.Struct(">h32x")
assert ENTRY.size == WHOLE_VERSION.size == 34

VERSION = 0
CHUNK_BYTES = 1024 * ENTRY.size


class AbortedTransactions(NamedTuple):
    """Aborted transactions that overlap a range of offsets.

    ``is_complete``: no later segment can hold another one; otherwise the search continues in the next segment.
    """

    transactions: list[AbortedTransaction]
    is_complete: bool


class TransactionIndex:
    """Lists the transactions whose abort marker is in this segment (Kafka: TransactionIndex).

    Last offsets increase strictly. The first append creates the file. Appends need the log's lock; reading does not.
    """

    suffix: ClassVar[str] = TXN_INDEX_SUFFIX
    entry_size: ClassVar[int] = ENTRY.size

    __slots__ = (
        "_closed",
        "_count",
        "_file",
        "_fs",
        "_last_offset",
        "_mode",
        "_ragged",
        "_writable",
        "base_offset",
        "path",
    )

    def __init__(self, fs: FileSystem, path: PathLike, base_offset: int, *, writable: bool, mode: int) -> None:
        self._fs = fs
        self._mode = mode
        self._writable = writable
        self._file: File | None = None
        self._closed = False
        self._count = self._ragged = 0
        self._last_offset = NO_OFFSET
        self.path: PathLike = path
        self.base_offset: int = base_offset

    @classmethod
    def open(
        cls, fs: FileSystem, path: PathLike, base_offset: int, *, writable: bool = False, mode: int = 0o600
    ) -> TransactionIndex:
        """The index at ``path``, empty if there is no file; ``mode`` is for the file that an append creates.

        Nothing is checked yet: ``check()`` does that. Raises: StorageError.
        """
        index = cls(fs, path, base_offset, writable=writable, mode=mode)
        try:
            index._file = fs.open(path, write=writable)
        except FileMissingError:
            return index
        index._count, index._ragged = divmod(index._file.size(), ENTRY.size)
        index._load_last()
        return index

    @staticmethod
    def encode(transactions: Iterable[AbortedTransaction]) -> bytes:
        """The content of a file with ``transactions``."""
        return b"".join(ENTRY.pack(VERSION, *transaction) for transaction in transactions)

    @staticmethod
    def size_below(file: File, offset: int) -> int:
        """The bytes of the entries with a last offset below ``offset``, which are the first ones. Raises:
        StorageError."""
        count = file.size() // ENTRY.size
        while count:
            data = file.pread(ENTRY.size, (count - 1) * ENTRY.size)
            if len(data) == ENTRY.size and ENTRY.unpack(data)[3] < offset:
                break
            count -= 1
        return count * ENTRY.size

    def _load_last(self) -> None:
        self._last_offset = NO_OFFSET
        if self._file is not None and self._count:
            data = self._file.pread(ENTRY.size, (self._count - 1) * ENTRY.size)
            if len(data) == ENTRY.size:
                self._last_offset = ENTRY.unpack(data)[3]

    @property
    def writable(self) -> bool:
        return self._writable

    @property
    def entry_count(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The bytes of the entries."""
        return self._count * ENTRY.size

    @property
    def last_offset(self) -> int:
        """The last entry's last offset, NO_OFFSET without any."""
        return self._last_offset

    def append(self, transaction: AbortedTransaction) -> None:
        """Adds an entry; the first one creates the file.

        Raises: InvalidOffsetError (not above the last entry, below the base, ending before its start),
        CorruptIndexError (half an entry at the end), ReadOnlyError, DiskFullError, StorageError; nothing is added.
        """
        self._check_writable()
        self._check_whole()
        if transaction.last_offset <= self._last_offset or self._fault(transaction):
            raise InvalidOffsetError(
                f"{self.path}: {transaction} does not follow last offset {self._last_offset}"
                f" in an index of base offset {self.base_offset}"
            )
        if self._file is None:
            self._file = self._fs.open(self.path, write=True, create=True, mode=self._mode)
        try:
            self._file.write_all([ENTRY.pack(VERSION, *transaction)], self.size)
        except BaseException:
            # Readers would see half an entry as damage. If it stays, the next one overwrites it.
            with suppress(StorageError):
                self._file.truncate(self.size)
            raise
        self._last_offset = transaction.last_offset
        self._count += 1

    def collect_aborted(self, start_offset: int, stop_offset: int) -> AbortedTransactions:
        """The aborted transactions with records in [start_offset, stop_offset) (Kafka: collectAbortedTxns).

        Raises: CorruptIndexError, StorageError.
        """
        found: list[AbortedTransaction] = []
        for transaction in self.entries():
            if transaction.last_offset >= start_offset and transaction.first_offset < stop_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= stop_offset:
                return AbortedTransactions(found, is_complete=True)
        return AbortedTransactions(found, is_complete=False)

    def entries(self) -> Iterator[AbortedTransaction]:
        """The entries that exist when the iteration starts, in order.

        Raises: CorruptIndexError at the first impossible one; StorageError.
        """
        if self._closed:
            raise ClosedError(f"{self.path}: the index is closed")
        self._check_whole()
        file, stop = self._file, self.size
        if file is None:
            return
        previous = NO_OFFSET
        for at in range(0, stop, CHUNK_BYTES):
            data = file.pread(min(CHUNK_BYTES, stop - at), at)
            whole = len(data) - len(data) % ENTRY.size
            for delta, (version, *fields) in enumerate(ENTRY.iter_unpack(memoryview(data)[:whole])):
                transaction = AbortedTransaction(*fields)
                fault = self._fault(transaction)
                if version != VERSION:
                    fault = f"version {version}, expected {VERSION}"
                elif not fault and transaction.last_offset <= previous:
                    fault = f"last offset {transaction.last_offset}, expected one above {previous}"
                if fault:
                    raise CorruptIndexError(fault, path=self.path, position=at + delta * ENTRY.size)
                previous = transaction.last_offset
                yield transaction
            # Entries that our own truncation has just removed are no loss.
            if at + len(data) < min(stop, self.size, at + CHUNK_BYTES):
                raise CorruptIndexError(f"ends at {at + len(data)}, expected {stop} bytes", path=self.path)

    def check_versions(self) -> None:
        """Checks both bytes of every entry's version, where readers ignore the second one.

        Raises: CorruptIndexError at the first entry of another version; StorageError.
        """
        file, stop = self._file, self.size
        for at in range(0, stop if file is not None else 0, CHUNK_BYTES):
            assert file is not None
            data = file.pread(min(CHUNK_BYTES, stop - at), at)
            whole = len(data) - len(data) % ENTRY.size
            for delta, (version,) in enumerate(WHOLE_VERSION.iter_unpack(memoryview(data)[:whole])):
                if version != VERSION:
                    fault = f"version {version}, expected {VERSION}"
                    raise CorruptIndexError(fault, path=self.path, position=at + delta * ENTRY.size)

    def truncate_to(self, offset: int) -> None:
        """Keeps the entries whose last offset is below ``offset``. Raises: ReadOnlyError, CorruptIndexError."""
        self._check_writable()
        kept = sum(1 for transaction in self.entries() if transaction.last_offset < offset)
        if kept < self._count:
            self._cut_to(kept)

    def truncate(self) -> None:
        """Removes every entry; the file stays, empty. Raises: ReadOnlyError, StorageError."""
        self._check_writable()
        self._cut_to(0)

    def _cut_to(self, kept: int) -> None:
        if self._file is not None:
            self._file.truncate(kept * ENTRY.size)
        self._count = kept
        self._ragged = 0
        self._load_last()

    def flush(self) -> None:
        """Puts the entries on disk. Raises: SyncFailedError."""
        if self._file is not None and self._writable:
            self._file.fdatasync()

    def seal(self) -> None:
        """Makes the index read-only. There is nothing to cut: its file is never longer than its entries."""
        self._writable = False

    def close(self) -> None:
        """Ends all use; a second close does nothing. A reader inside a call continues to its end."""
        self._closed = True
        self._writable = False
        self._file = None

    def check(self) -> None:
        """Checks every entry against the rules (Kafka: sanityCheck). Raises: CorruptIndexError."""
        for _ in self.entries():
            pass

    def _check_whole(self) -> None:
        # Half an entry may be half of one that readers need.
        if self._ragged:
            raise CorruptIndexError(
                f"{self.size + self._ragged} bytes, expected a multiple of {ENTRY.size}", path=self.path
            )

    def _fault(self, transaction: AbortedTransaction) -> str:
        """What is wrong with an entry by itself; "" if nothing is."""
        if transaction.last_offset < self.base_offset:
            return f"last offset {transaction.last_offset}, expected at least {self.base_offset}"
        if not 0 <= transaction.first_offset <= transaction.last_offset:
            return f"first offset {transaction.first_offset}, expected one from 0 to {transaction.last_offset}"
        return ""

    def _check_writable(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: the index is closed")
        if not self._writable:
            raise ReadOnlyError(errno.EROFS, "the index is open for reading", os.fspath(self.path))


class TransactionIndexSizes:
    """Bytes by the base offset of the segment, which reveal the loss of an index; most logs have none.

    A lost index would show aborted records to readers of committed ones. ``kstore.state`` has the total size of those
    that recovery does not check after a crash: from the log's start up to the segment with the recovery point, which
    recovery scans. The sum is kept in memory, so no file's size is read after the open.

    Not thread-safe: the log's lock guards it.
    """

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
