"""The common part of the two searchable indexes: sorted entries of one size, in mapped memory or in bytes.

A writable index is memory that grows in small steps, each with its blocks allocated first; the file shrinks only at
``seal()`` and ``close()``. It keeps no descriptor: each step opens the file by name. A read-only one is bytes, read
once. Changes need the log's lock. Lookups do not: an entry is stored before the count that covers it, a grown mapping
is in place before that count too, and a reader that meets a mapping just sealed looks again. Nothing is on disk before
``flush()``.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final, Generic, Protocol, Self, TypeVar

from kstore.errors import (
    ClosedError,
    CorruptDataError,
    CorruptIndexError,
    FileMissingError,
    IndexFullError,
    PathLike,
    ReadOnlyError,
    StorageError,
)
from kstore.files.fs import READ_FILE_SIZE_MAX, FileSystem, Mapping, read_file
from kstore.indexes._search import floor_slot

# What a lookup may raise: then its caller continues without the index. An index is closed under its readers when its
# segment is deleted, or is the active one and is reopened.
INDEX_FAILURES: Final = (StorageError, CorruptDataError, ClosedError)

# An offset is stored as an int32 relative to the segment's base.
DELTA_MAX = (1 << 31) - 1

# Lookups near the end, by far the most, stay within this many bytes: two or three pages that are always in memory
# (Kafka: AbstractIndex, KAFKA-6432).
WARM_BYTES = 8192

# A mapping starts with a page and doubles up to this step: few remaps for a busy log, few blocks for a quiet one.
GROWTH_BYTES_MIN = 4096
GROWTH_BYTES_MAX = 64 * 1024

# Only the start of a larger file is read: a sparse giant is not worth its memory. Kafka's default size is 10 MiB; 64
# MiB index the offsets of 32 GiB of log.
READ_BYTES_MAX = READ_FILE_SIZE_MAX

Entry = TypeVar("Entry")


class EntryBytes(Protocol):
    """Where entries are read from: bytes or a mapping."""

    def __getitem__(self, at: slice, /) -> bytes: ...


class _Closed:
    """The source of a closed index."""

    def __getitem__(self, at: slice, /) -> bytes:
        raise ClosedError("the index is closed")


class EntryIndex(Generic[Entry]):
    """The common part of the two searchable indexes: fixed-size entries, sorted, in a mapping or in bytes."""

    suffix: ClassVar[str]
    entry_size: ClassVar[int]

    __slots__ = (
        "_capacity",
        "_closed",
        "_count",
        "_fs",
        "_is_new",
        "_is_trimmed",
        "_mapping",
        "_ragged",
        "_source",
        "base_offset",
        "max_entry_count",
        "path",
        "was_cut",
    )

    def __init__(self, path: PathLike, base_offset: int, data: bytes, *, fs: FileSystem | None, bytes_max: int) -> None:
        self.path: PathLike = path
        self.base_offset: int = base_offset
        self.max_entry_count: int = bytes_max // self.entry_size
        # Opens the file; None if the index is only read.
        self._fs = fs
        self._mapping: Mapping | None = None
        self._source: EntryBytes = data
        self._count, self._ragged = divmod(len(data), self.entry_size)
        # How many entries fit the mapping; 0 if nothing is mapped.
        self._capacity = 0
        self._closed = False
        # Whether the file is known to end with the entries: then there is nothing to cut.
        self._is_trimmed = False
        # Whether the file that was opened to be continued had more than its entries and the zeros of a mapping.
        self.was_cut = False
        # Whether it was created here and nothing was written to it: then there is nothing to sync.
        self._is_new = False
        self._load_last()

    @classmethod
    def create(
        cls, fs: FileSystem, path: PathLike, base_offset: int, *, index_bytes_max: int, mode: int = 0o600
    ) -> Self:
        """A new, empty, writable index.

        Raises: FileInTheWayError, DiskFullError, StorageError.
        """
        fs.open(path, write=True, create=True, mode=mode).close()
        index = cls(path, base_offset, b"", fs=fs, bytes_max=index_bytes_max)
        index._is_trimmed = index._is_new = True
        return index

    @classmethod
    def open_writable(
        cls,
        fs: FileSystem,
        path: PathLike,
        base_offset: int,
        *,
        index_bytes_max: int,
        entry_count: int | None = None,
        mode: int = 0o600,
    ) -> Self:
        """An existing index to continue, or a new one.

        Whatever follows its entries (the zeros of a crash, half an entry) is cut off. ``entry_count`` is their number;
        without it they are the increasing ones from the start.

        Raises: CorruptIndexError if the file is shorter than ``entry_count`` says; StorageError.
        """
        try:
            file = fs.open(path, write=True)
        except FileMissingError:
            return cls.create(fs, path, base_offset, index_bytes_max=index_bytes_max, mode=mode)
        size = file.size()
        assert entry_count is None or entry_count >= 0, "a count of entries"
        if entry_count is None:
            data = file.pread(min(size, max(index_bytes_max, READ_BYTES_MAX)), 0)
            entry_count = cls._rising_count(data)
        else:
            data = file.pread(min(size, entry_count * cls.entry_size), 0)
        kept = entry_count * cls.entry_size
        if len(data) < kept:
            raise CorruptIndexError(
                f"holds {size} bytes, expected {entry_count} entries of {cls.entry_size}", path=path
            )
        if size != kept:
            file.truncate(kept)
        file.close()
        index = cls(path, base_offset, data[:kept], fs=fs, bytes_max=index_bytes_max)
        index._is_trimmed = True
        index.was_cut = any(data[kept:])
        return index

    @classmethod
    def join(cls, fs: FileSystem, path: PathLike, base_offset: int, *, index_bytes_max: int, entry_count: int) -> Self:
        """An index with ``entry_count`` entries that other processes write too. The file is not changed, and only its
        last entry is read.

        Raises: FileMissingError; CorruptIndexError as ``take_in``; StorageError.
        """
        fs.stat(path)
        index = cls(path, base_offset, b"", fs=fs, bytes_max=index_bytes_max)
        index.take_in(entry_count)
        return index

    @classmethod
    def open_read_only(
        cls, fs: FileSystem, path: PathLike, base_offset: int, *, live: bool = False, size_max: int = READ_BYTES_MAX
    ) -> Self:
        """An index to search, read once. ``live``: a writer may be using it, so the zeros at its end are space for
        entries, and the last entry may be half stored.

        Raises: FileMissingError, StorageError.
        """
        return cls.from_bytes(read_file(fs, path, size_max), base_offset, path=path, live=live)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, *, path: PathLike = "", live: bool = False) -> Self:
        """A read-only index over the content of a file."""
        if live:
            data = data[: cls._stored_count(data) * cls.entry_size]
        return cls(path, base_offset, data, fs=None, bytes_max=len(data))

    @classmethod
    def _used_count(cls, data: bytes) -> int:
        """The number of whole entries before the zeros at the end."""
        return min(len(data) // cls.entry_size, -(-len(data.rstrip(b"\0")) // cls.entry_size))

    @classmethod
    def _rising_count(cls, data: bytes) -> int:
        """The number of ordered entries from the start. O(entries)."""
        return cls._first_disorder(data[: cls._used_count(data) * cls.entry_size])

    @classmethod
    def _stored_count(cls, data: bytes) -> int:
        """The number of entries stored by a possibly active writer; it stores one at a time, so only the last may be
        torn."""
        entries = cls._used_count(data)
        last_two = data[max(entries - 2, 0) * cls.entry_size : entries * cls.entry_size]
        return entries if cls._first_disorder(last_two) * cls.entry_size == len(last_two) else max(entries - 1, 0)

    @classmethod
    @abstractmethod
    def _first_disorder(cls, data: bytes) -> int:
        """The slot of the first entry that is out of order; their count if all are in order."""

    @abstractmethod
    def _load_last(self) -> None:
        """Reads the values that the next append is compared with."""

    @abstractmethod
    def _decode(self, data: bytes) -> Entry:
        """The entry in ``entry_size`` bytes, right or wrong."""

    @abstractmethod
    def _entry_or_start(self, slot: int) -> Entry:
        """Entry number ``slot``, or the segment's start if it does not exist."""

    @property
    def writable(self) -> bool:
        return self._fs is not None

    @property
    def entry_count(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The bytes of the entries."""
        return self._count * self.entry_size

    @property
    def memory_bytes(self) -> int:
        """The memory that the index itself holds; mapped bytes belong to the page cache."""
        return 0 if self._mapping is not None else self.size

    @property
    def slots_left(self) -> int:
        """How many entries more it may get before the segment must roll; below 0 if its maximum is less than that."""
        return self.max_entry_count - self._count

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll before the next entry."""
        return self.slots_left <= 0

    @property
    def last_entry(self) -> Entry:
        """The last entry; without any, the result of a lookup that finds none."""
        return self._entry_or_start(self._count - 1)

    def entry(self, slot: int) -> Entry:
        """Entry number ``slot``. Raises: IndexError."""
        if not 0 <= slot < self._count:
            raise IndexError(f"entry {slot} of an index that has {self._count}")
        return self._entry_or_start(slot)

    def entries(self) -> Iterator[Entry]:
        """Every entry at the time of the call, right or wrong."""
        size = self.entry_size
        data = self._read(0, self.size)
        return (self._decode(data[at : at + size]) for at in range(0, len(data), size))

    def _entry_bytes(self, slot: int) -> bytes:
        """One entry; empty, or zeros, if a truncation has just removed it."""
        return self._read(slot * self.entry_size, (slot + 1) * self.entry_size) if slot >= 0 else b""

    def _read(self, start: int, stop: int) -> bytes:
        while True:
            source = self._source
            try:
                return source[start:stop]
            except ClosedError:
                self._look_again(source)

    def _look_again(self, source: EntryBytes) -> None:
        """Lets the reader of a closed source continue with its replacement. Raises: ClosedError if there is none."""
        if self._closed or self._source is source:
            raise ClosedError(f"{self.path}: the index is closed") from None

    def _floor_slot(self, key: bytes, key_at: int) -> int:
        """The last slot whose column at byte ``key_at`` is <= ``key``, -1 if none is.

        Keys are compared as bytes, which is the order of non-negative big-endian numbers.
        """
        while True:
            # The count first: every source seen after it holds at least that many entries.
            entries = self._count
            source = self._source
            if entries == 0 and self._closed:
                self._look_again(source)
            try:
                return _floor_slot(source, entries, self.entry_size, key, key_at)
            except ClosedError:
                self._look_again(source)

    def _grow(self) -> None:
        """Maps more of the file, at least one more entry.

        Raises: IndexFullError, ReadOnlyError, DiskFullError, StorageError; then the index is unchanged.
        """
        fs = self._check_room()
        size = min(self._next_mapped_size(), self.max_entry_count * self.entry_size)
        # The previous mapping is dropped, not closed: a reader may be searching it, and both show the same pages.
        self._map(fs, size)

    def _check_room(self) -> FileSystem:
        """The file system for an index that takes one more entry. Raises: IndexFullError, ReadOnlyError."""
        if self._closed:
            raise ClosedError(f"{self.path}: the index is closed")
        if self._fs is None:
            raise ReadOnlyError(errno.EROFS, "the index is open for reading", os.fspath(self.path))
        if self._count >= self.max_entry_count:
            raise IndexFullError(f"{self.path}: all {self.max_entry_count} entries are used")
        return self._fs

    def _write_last(self, entry: bytes) -> None:
        """Writes ``entry`` after all others, without a mapping, of an index that is about to be sealed.

        Raises: IndexFullError, ReadOnlyError, DiskFullError, StorageError; then nothing was added, as far as known.
        """
        fs = self._check_room()
        self._is_trimmed = self._is_new = False
        file = fs.open(self.path, write=True)
        file.write_all([entry], self.size)
        file.close()
        self._source = self._source[0 : self.size] + entry
        self._is_trimmed = True

    def _map(self, fs: FileSystem, size: int) -> None:
        self._is_trimmed = self._is_new = False  # first: a failure may leave the file longer
        # The file is not closed explicitly: the substitute for a mapping may need it.
        self._source = self._mapping = fs.open(self.path, write=True).map(size)
        self._capacity = size // self.entry_size

    def _next_mapped_size(self) -> int:
        if self._mapping is None:
            # Space for one more entry: pages are not a multiple of every entry's size.
            pages = (self.size + self.entry_size - 1) // GROWTH_BYTES_MIN + 1
            return pages * GROWTH_BYTES_MIN
        return self._mapping.size + min(self._mapping.size, GROWTH_BYTES_MAX)

    def take_in(self, entries: int) -> None:
        """Continues with the file, which is not mapped, as another process has left it with ``entries`` entries.

        Raises: CorruptIndexError if the file does not hold them: then it must be rebuilt.
        """
        self._is_new = False  # another process may have cut what it wrote
        if entries == self._count or self._fs is None:
            return
        self._is_trimmed = False
        source, mapping = self._source, None
        if entries > self._capacity:
            size = (entries * self.entry_size // GROWTH_BYTES_MIN + 1) * GROWTH_BYTES_MIN
            source = mapping = self._fs.open(self.path, write=True).map(size)
        if entries and not self._is_stored(source[(entries - 1) * self.entry_size : entries * self.entry_size]):
            raise CorruptIndexError(
                f"{self._fs.stat(self.path).size} bytes, expected {entries} entries in them", path=self.path
            )
        if mapping is not None:
            self._source = self._mapping = mapping
            self._capacity = mapping.size // self.entry_size
        self._count = entries
        self._load_last()

    @classmethod
    def _is_stored(cls, data: bytes) -> bool:
        """Whether ``data`` can be an entry: whole, and not the content of an empty slot."""
        return len(data) == cls.entry_size

    def _cut_to(self, entries: int) -> None:
        """Keeps the first ``entries`` entries; the rest of the mapping reads as zeros, as if never written."""
        if entries >= self._count:
            return
        if self._fs is None:
            raise ReadOnlyError(errno.EROFS, "the index is open for reading", os.fspath(self.path))
        kept, size = entries * self.entry_size, self.size
        self._count = entries
        self._load_last()
        if self._mapping is not None:
            self._mapping.store(kept, bytes(size - kept))
        else:
            self._source = self._source[0:kept]
            file = self._fs.open(self.path, write=True)
            file.truncate(kept)
            file.close()

    def truncate(self) -> None:
        """Removes every entry. Raises: ReadOnlyError, StorageError."""
        self._cut_to(0)

    def flush(self) -> None:
        """Puts the entries on disk. Raises: SyncFailedError."""
        if self._mapping is not None:
            self._mapping.sync()
        elif self._fs is not None:
            self._fs.open(self.path, write=True).fdatasync()

    def seal(self, *, sync: bool = False) -> None:
        """Makes the index read-only and its file as long as its entries, durably with ``sync``. Idempotent.

        Raises: StorageError if the file could not be cut or synced; the index is read-only anyway.
        """
        fs, mapping = self._fs, self._mapping
        if fs is None:
            return
        self._fs = self._mapping = None
        self._capacity = 0
        if mapping is not None:
            self._source = mapping[0 : self.size]
            # Closed before the file shrinks: no reader may reach memory beyond a file's end.
            mapping.close()
        if self._is_trimmed and (self._is_new or not sync):
            return
        file = fs.open(self.path, write=True)
        try:
            if not self._is_trimmed and file.size() != self.size:
                file.truncate(self.size)
            self._is_trimmed = True
            if sync:
                file.fdatasync()
        finally:
            file.close()

    def close(self, *, trim: bool = True) -> None:
        """Ends all use. ``trim`` False leaves the file unchanged: for one that is deleted, or must not be touched.

        Raises: StorageError as ``seal()``; the index is closed anyway. A second close does nothing.
        """
        if self._closed:
            return
        try:
            if trim:
                self.seal()
        finally:
            self._closed = True
            self._source = _Closed()
            if self._mapping is not None:
                self._mapping.close()
            self._fs = self._mapping = None
            self._capacity = 0

    def check(self) -> None:
        """Checks every entry against the rules. Raises: CorruptIndexError. O(entries)."""
        if self._closed:
            raise ClosedError(f"{self.path}: the index is closed")
        if self._ragged:
            raise CorruptIndexError(
                f"{self.size + self._ragged} bytes, expected a multiple of {self.entry_size}", path=self.path
            )
        data = self._source[0 : self.size]
        slot = self._first_disorder(data)
        if slot < self._count:
            raise CorruptIndexError(
                f"entry {slot} does not follow the previous one", path=self.path, position=slot * self.entry_size
            )
        assert self._capacity == 0 or self._count <= self._capacity, "entries beyond the mapping"
        assert self._mapping is None or self._fs is not None, "a mapping in a read-only index"


def _floor_slot(source: EntryBytes, entries: int, entry_size: int, key: bytes, key_at: int) -> int:
    """The last of ``entries`` slots whose column at byte ``key_at`` is <= ``key``, -1 if none is."""
    if isinstance(source, bytes) and len(source) >= entries * entry_size:
        return floor_slot(source, entries, entry_size, key, key_at)
    # A mapping is searched in two steps: down to a range that is worth a copy, then within it.
    key_size = len(key)
    copied = WARM_BYTES // entry_size
    low, high = 0, entries
    if high > copied:
        at = (high - copied) * entry_size + key_at
        if source[at : at + key_size] <= key:
            low = high - copied
        else:
            high -= copied
    while high - low > copied:
        middle = (low + high) >> 1
        at = middle * entry_size + key_at
        if source[at : at + key_size] <= key:
            low = middle
        else:
            high = middle
    data = source[low * entry_size : high * entry_size]
    # Fewer than were counted if a truncation has just removed them.
    found = floor_slot(data, min(high - low, len(data) // entry_size), entry_size, key, key_at)
    return low + found
