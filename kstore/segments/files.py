"""The files of one segment, by their names: they are created, renamed and removed together.

    <base>.log            the batches
    <base>.index          the offset index
    <base>.timeindex      the time index
    <base>.txnindex       the aborted transactions; exists only after the first of them

One more suffix after these marks a segment that is not in use: ".cleaned" while it is written, ".swap" while it is
swapped in, ".deleted" until it is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kstore.files.checkpoint import replace_file
from kstore.files.fs import File, FileSystem
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from kstore.index import TransactionIndex
from kstore.types import AbortedTransaction

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class SegmentFiles(NamedTuple):
    """The names of a segment's files, and what is done to all of them. ``state`` is their second suffix."""

    fs: FileSystem
    directory: Path
    base_offset: int
    state: str
    file_mode: int

    def path(self, suffix: str) -> Path:
        return self.directory / segment_name(self.base_offset, suffix + self.state)

    def path_text(self, suffix: str) -> str:
        # Joining Paths costs as much as the open that needs the result.
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}{self.state}"

    def create(self) -> None:
        """Creates the ``.log``, empty; the caller syncs the directory before it acknowledges anything in it."""
        self.open_new().close()

    def open_new(self) -> File:
        """``create``, for a caller that continues with the file."""
        return self.fs.open(self.path_text(LOG_SUFFIX), write=True, create=True, mode=self.file_mode)

    def delete(self, suffixes: Sequence[str] = SUFFIXES) -> None:
        """Unlinks every file, the ``.log`` first: an index without a log is removed at the next open. ``suffixes``: of
        those that exist."""
        name = f"{self.directory}/{segment_name(self.base_offset, '')}"
        unlink = self.fs.unlink
        for suffix in suffixes:
            try:
                unlink(name + suffix + self.state)
            except FileNotFoundError:
                pass  # there is rarely a transaction index, and a crash may have left fewer files

    def set_aside(self, path: Path) -> None:
        """Renames the ``.log`` to ``path``, which is not a segment's name, and removes its indexes; not yet durable."""
        self.fs.rename(self.path(LOG_SUFFIX), path)
        self.delete()

    def rename(self, to_suffix: str, suffixes: Sequence[str] = SUFFIXES) -> None:
        """Renames every file to its name plus ``to_suffix``; not yet durable. ``suffixes``: of those that exist."""
        name = f"{self.directory}/{segment_name(self.base_offset, '')}"
        rename = self.fs.rename
        for suffix in suffixes:
            path = name + suffix + self.state
            try:
                rename(path, path + to_suffix)
            except FileNotFoundError:
                pass

    # --- the transaction index ----------------------------------------------------------------------------------------

    def transaction_index(self, *, writable: bool = False) -> TransactionIndex:
        """The index of aborted transactions, opened on each call."""
        path = self.path(TXN_INDEX_SUFFIX)
        return TransactionIndex.open(self.fs, path, self.base_offset, writable=writable, mode=self.file_mode)

    def replace_transaction_index(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Replaces the existing index with one of ``aborted``, durably."""
        replace_file(self.fs, self.path(TXN_INDEX_SUFFIX), TransactionIndex.encode(aborted), mode=self.file_mode)

    def sync_transaction_index(self) -> None:
        """Puts the index on disk as it is. Raises: SyncFailedError, StorageError."""
        index = self.transaction_index(writable=True)
        try:
            index.flush()
        finally:
            index.close()

    def truncate_transactions_to(self, offset: int) -> int:
        """Keeps the aborted transactions that ended below ``offset``, on disk; returns the size of the index then."""
        index = self.transaction_index(writable=True)
        try:
            index.truncate_to(offset)
            index.flush()
            return index.size
        finally:
            index.close()
