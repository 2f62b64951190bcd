"""The target of a mirrored log: a directory on a local disk, or one in an object store.

The order that makes a kill at any instruction harmless, on a local disk:

1. ``kstore.state`` loses its clean mark, durably, before anything changes.
2. A new segment's indexes come before its ``.log``; each file is synced under a temporary name, then renamed.
3. What was appended to the last ``.log`` is synced. What a killed run has left there is synced before it is compared.
4. The directory is synced; ``kstore.state`` then says how far the log is durable.

So the state never promises missing data, and a file that is longer than the state says is compared again. In an object
store each file is written atomically, and ``kstore.state``, written last, carries the log's start.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kstore.engine.directory import is_log, make_directory
from kstore.errors import NotALogError
from kstore.files.fs import File, FileStat, FileSystem
from kstore.files.linked import refuse_link
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_log
from kstore.files.paths import (
    INDEX_SUFFIX,
    KSTORE_STATE,
    LOCK,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    classify,
    segment_name,
)
from kstore.files.platform import boot_id
from kstore.files.remote import UPLOAD_SUFFIX, Location, put_file
from kstore.rules.losses import LossRanges, clipped
from kstore.rules.mirror import SegmentFile
from kstore.state.log_state import UNKNOWN_TXN_BYTES, LogState, StateFile, losses_of, read_state, state_file_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

STATE_GENERATION = 2
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


class Target(Protocol):
    """A log's copy. Its changes are durable after ``finish``."""

    # Whether a copy gets its source's modification time.
    same_times: bool
    before: LogState | None

    def files(self) -> dict[str, FileStat]: ...
    def open(self, name: str) -> File: ...
    def begin(self, start_offset: int, *, durable_end: int | None = None) -> None:
        """Called before the first change: makes ``kstore.state`` true at every later moment.

        ``durable_end`` lowers it, before segments from there on are removed.
        """
        ...

    def put_file(self, name: str, chunks: Iterable[bytes], mtime_ns: int) -> None: ...
    def put_segment(self, segment: SegmentFile, chunks: Iterable[bytes], start_offset: int) -> None:
        """Writes the ``.log``; the state is stored just before the file gets its name."""
        ...

    def extend(self, segment: SegmentFile, position: int, chunks: Iterable[bytes]) -> None:
        """Cuts the ``.log`` at ``position`` and writes what follows."""
        ...

    def sync(self, segment: SegmentFile) -> None:
        """Called before the bytes of the ``.log`` are compared: those that are read from now on are on disk."""
        ...

    def settle(self, segment: SegmentFile) -> None:
        """Called when the bytes were found to be the same: gives the ``.log`` its source's time."""
        ...

    def remove(self, names: Iterable[str]) -> None: ...
    def finish(
        self, segments: Sequence[SegmentFile], start_offset: int, end_offset: int, losses: LossRanges
    ) -> None: ...
    def close(self) -> None: ...


class LocalTarget:
    """A directory on a local disk, locked while the target is open."""

    same_times = True

    def __init__(self, fs: FileSystem, directory: Path, *, dry_run: bool) -> None:
        """Raises: LockedError, NotALogError for a directory with other contents, StorageError."""
        self._fs = fs
        self._directory = directory
        self._state: StateFile | None = None
        self._lock: DirectoryLock | None = None
        self._begun = False
        refuse_link(fs, directory)
        if not dry_run:
            make_directory(fs, directory, mode=DIRECTORY_MODE)
        _ensure_log_or_empty(self.files(), str(directory))
        if not dry_run:
            # A process that has the store open, a broker too, may write to all of its logs.
            self._lock = lock_log(directory, kind="mirror", mode=FILE_MODE)
        try:
            self.before = read_state(fs, directory / KSTORE_STATE)
        except BaseException:
            self.close()
            raise

    def files(self) -> dict[str, FileStat]:
        if not self._fs.exists(self._directory):
            return {}
        found = {}
        for name in self._fs.list(self._directory):
            with suppress(FileNotFoundError):
                found[name] = self._fs.stat(f"{self._directory}/{name}")
        return found

    def open(self, name: str) -> File:
        return self._fs.open(f"{self._directory}/{name}")

    def begin(self, start_offset: int, *, durable_end: int | None = None) -> None:
        if self._begun and durable_end is None:
            return
        if self._state is None:
            self._state = StateFile.open(self._fs, self._directory / KSTORE_STATE, mode=FILE_MODE)
        current = self._state.current or LogState(log_start_offset=start_offset, boot_id=boot_id())
        if durable_end is not None:
            current = current._replace(
                recovery_point=min(current.recovery_point, durable_end),
                durable_end=min(current.durable_end, durable_end),
                # Data that replaces removed data is not an accepted loss.
                accepted=clipped(current.accepted, 0, durable_end),
            )
        # The indexes of transactions are replaced on the way.
        state = current._replace(clean=False, txn_bytes=UNKNOWN_TXN_BYTES)
        if state != self._state.current:
            self._state.store(state)
        self._begun = True

    def put_file(self, name: str, chunks: Iterable[bytes], mtime_ns: int) -> None:
        put_file(self._fs, f"{self._directory}/{name}", chunks, mode=FILE_MODE, mtime_ns=mtime_ns)

    def put_segment(self, segment: SegmentFile, chunks: Iterable[bytes], start_offset: int) -> None:
        def then_begin() -> Iterator[bytes]:
            yield from chunks
            # Not earlier: a directory with only a state is a log that may be opened, and this one is not ready.
            self.begin(start_offset)

        mtime_ns = segment.mtime_ns if segment.sealed else 0
        self.put_file(segment_name(segment.base_offset, LOG_SUFFIX), then_begin(), mtime_ns)

    def extend(self, segment: SegmentFile, position: int, chunks: Iterable[bytes]) -> None:
        path = self._log_path(segment)
        file = self._fs.open(path, write=True)
        try:
            if file.size() > position:
                file.truncate(position)
            for chunk in chunks:
                file.write_all([chunk], position)
                position += len(chunk)
            file.fdatasync()
        finally:
            file.close()
        if segment.sealed:
            self._fs.set_mtime(path, segment.mtime_ns)

    def sync(self, segment: SegmentFile) -> None:
        # A mirror that was killed, or whose sync failed, may have left what only the page cache has.
        file = self._fs.open(self._log_path(segment), write=True)
        try:
            file.fdatasync()
            file.advise(0, 0, "dontneed")
        finally:
            file.close()

    def settle(self, segment: SegmentFile) -> None:
        if segment.sealed:
            self._fs.set_mtime(self._log_path(segment), segment.mtime_ns)

    def _log_path(self, segment: SegmentFile) -> str:
        return f"{self._directory}/{segment_name(segment.base_offset, LOG_SUFFIX)}"

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.unlink(f"{self._directory}/{name}")

    def finish(self, segments: Sequence[SegmentFile], start_offset: int, end_offset: int, losses: LossRanges) -> None:
        self._fs.sync_dir(self._directory)
        state = LogState(
            recovery_point=segments[-1].base_offset if segments else end_offset,
            log_start_offset=start_offset,
            durable_end=end_offset,
            boot_id=boot_id(),
            lost=losses.lost,
            accepted=losses.accepted,
            unconfirmed=losses.unconfirmed,
        )
        # A cleanly closed log in which nothing changed stays so.
        before = self.before
        kept = before is not None and (
            (before.log_start_offset, before.durable_end) == (start_offset, end_offset) and losses_of(before) == losses
        )
        if self._begun or not kept:
            self.begin(start_offset)
            assert self._state is not None
            self._state.store(state)

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
        if self._lock is not None:
            self._lock.release()


class RemoteTarget:
    """A directory in an object store. Nothing is locked: two mirrors of one log write the same."""

    same_times = False

    def __init__(self, at: Location, *, dry_run: bool) -> None:
        """Raises: NotALogError, StorageError."""
        self._fs = at.reading
        self._at = at
        _ensure_log_or_empty(self.files(), at.url)
        if not dry_run:
            at.fs.make_dirs(at.path)
        self.before = read_state(self._fs, at.path / KSTORE_STATE)

    def files(self) -> dict[str, FileStat]:
        try:
            return self._at.fs.list_stats(self._at.path)
        except FileNotFoundError:
            return {}

    def open(self, name: str) -> File:
        return self._at.fs.open(self._at.path / name)

    def begin(self, start_offset: int, *, durable_end: int | None = None) -> None:
        """Does nothing: the state promises nothing that a shorter log would break, since no writer recovers there."""

    def put_file(self, name: str, chunks: Iterable[bytes], mtime_ns: int) -> None:
        self._put(name, chunks)

    def _put(self, name: str, chunks: Iterable[Buffer]) -> None:
        self._at.fs.put(self._at.path / name, chunks)

    def put_segment(self, segment: SegmentFile, chunks: Iterable[bytes], start_offset: int) -> None:
        self._put(segment_name(segment.base_offset, LOG_SUFFIX), chunks)

    def extend(self, segment: SegmentFile, position: int, chunks: Iterable[bytes]) -> None:
        assert position == 0, "files in an object store are written whole"
        self._put(segment_name(segment.base_offset, LOG_SUFFIX), chunks)

    def sync(self, segment: SegmentFile) -> None:
        """Does nothing: a file in an object store is whole."""

    def settle(self, segment: SegmentFile) -> None:
        """Does nothing: the time of a file in an object store is that of its upload."""

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._at.fs.unlink(self._at.path / name)

    def finish(self, segments: Sequence[SegmentFile], start_offset: int, end_offset: int, losses: LossRanges) -> None:
        state = LogState(
            generation=STATE_GENERATION,
            recovery_point=end_offset,
            log_start_offset=start_offset,
            durable_end=end_offset,
            lost=losses.lost,
            accepted=losses.accepted,
            unconfirmed=losses.unconfirmed,
        )
        if state != self.before:
            self._put(KSTORE_STATE, [state_file_bytes(state)])

    def close(self) -> None:
        """Does nothing: nothing is open."""


def files_of(base_offset: int) -> list[str]:
    """The names of a segment's files, in the order of removal: an index without a log does no harm."""
    return [
        segment_name(base_offset, suffix) for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
    ]


def leftovers(names: Iterable[str]) -> list[str]:
    """The files that a killed mirror left half written."""
    return [name for name in names if name.endswith(UPLOAD_SUFFIX)]


def snapshots_from(names: Iterable[str], offset: int) -> list[str]:
    """The producers' snapshots above ``offset``."""
    return [segment_name(at, SNAPSHOT_SUFFIX) for at in classify(names).bases[SNAPSHOT_SUFFIX] if at > offset]


def _ensure_log_or_empty(files: dict[str, FileStat], where: str) -> None:
    names = classify(files)
    foreign = sorted(name for name in names.others if name != LOCK and not name.endswith(UPLOAD_SUFFIX))
    if foreign and not is_log(names):
        raise NotALogError(errno.ENOTDIR, f"not a log: it holds {', '.join(foreign[:3])}, and no segment", where)
