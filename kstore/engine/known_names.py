"""What a reader knows of the names in a log's directory, and what spares it another listing.

A listing of ten thousand segments takes 40 ms, and a reader looks before each answer. It need not list again if

    the directory's times   are those before the last listing, and were so old then that no later change can have the
                            same ones (``is_settled``)
    the writer's word       in ``kstore.state`` says that nothing but rolls came since, and which segments those began
                            (``RollSlot``). It is believed only while the times are too young to tell: so what
                            another program has changed is noticed as soon as the directory rests

The directory of another writer than kstore is always listed.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from kstore.errors import LogNotFoundError, NotALogError, StorageError
from kstore.files.fs import File, FileStat
from kstore.files.paths import INDEX_SUFFIX, KSTORE_STATE, LOG_SUFFIX, TIME_INDEX_SUFFIX, DirectoryNames, classify
from kstore.files.platform import foreign_type
from kstore.files.remote import RemoteFiles
from kstore.segment import SegmentContext
from kstore.state.log_state import StateLook, look_at_state
from kstore.state.roll_slot import RollSlot

# A listing that keeps changing is used after this many tries: each one was true when it was made.
LISTINGS_MAX = 10
# No file system that is trusted counts time in larger steps.
SETTLED_NS = 2_000_000_000
SECOND_NS = 1_000_000_000


class NamesLook(NamedTuple):
    """The names at one moment. ``shown`` is what ``kstore.state`` showed after them, None if it was not read."""

    names: DirectoryNames
    # The segments that were begun since the look before; None if the directory was listed.
    begun: tuple[int, ...] | None
    shown: StateLook | None
    # Whether no name can have changed since the listing before.
    is_same: bool


class _Listed(NamedTuple):
    """The last listing: what the directory and the writer showed before it."""

    names: DirectoryNames
    directory: FileStat
    is_settled: bool
    rolls: RollSlot | None


def is_settled(directory: FileStat, now_ns: int) -> bool:
    """Whether every change of a name that comes after ``directory`` was shown will show other times.

    Not if one is younger than two seconds, or in the future, where a second change may have the same one; nor if one is
    of whole seconds, as where a file system stores no more.
    """
    mtime_ns, ctime_ns = directory.mtime_ns, directory.ctime_ns
    return bool(mtime_ns % SECOND_NS and ctime_ns % SECOND_NS) and max(mtime_ns, ctime_ns) <= now_ns - SETTLED_NS


class KnownNames:
    """The names in one log's directory. Not thread-safe: the view's lock guards it."""

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        self._listed: _Listed | None = None
        # Whether the directory's times can be trusted; None before anyone asked.
        self._has_times: bool | None = None
        self._state_key = (object(), KSTORE_STATE)
        self._shown: StateLook | None = None

    def forget(self) -> None:
        """The next look lists the directory, and takes no name for unchanged."""
        self._listed = None

    def look(self) -> NamesLook:
        """Raises: LogNotFoundError, NotALogError, StorageError."""
        context, listed = self._context, self._listed
        # Before the times are read: a thread may wait long in between.
        now_ns = context.clock.now_ms() * 1_000_000
        directory = self._directory()
        if listed is not None and not self._trusts_times():
            listed = None
        is_same = listed is not None and listed.is_settled and directory == listed.directory
        if not is_same:
            context.handles.drop(self._state_key)  # the name may stand for another file now
        if listed is not None and directory is not None:
            shown = self.state()
            begun = _begun_since(listed, directory, shown, is_same=is_same, is_young=not is_settled(directory, now_ns))
            if begun is not None:
                assert shown is not None
                self._note(listed, begun, shown.rolls)
                return NamesLook(listed.names, begun, shown, is_same)
        # Before the listing, as the directory's times: what comes after it is seen at the next look.
        shown = None if directory is None else self.state()
        names = classify(self.list())
        self._listed = None
        if directory is not None:
            rolls = None if shown is None else shown.rolls
            self._listed = _Listed(names, directory, is_settled(directory, now_ns), rolls)
        return NamesLook(names, None, None, is_same)

    def _note(self, listed: _Listed, begun: tuple[int, ...], rolls: RollSlot | None) -> None:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            bases = listed.names.bases[suffix]
            # The listing may have seen what the slot did not show yet.
            bases += [base for base in begun if not bases or base > bases[-1]]
        if rolls != listed.rolls:
            self._listed = listed._replace(rolls=rolls)

    def list(self) -> list[str]:
        """The names, listed until they stay the same. Raises: LogNotFoundError, NotALogError, StorageError."""
        fs, directory = self._context.fs, self._context.directory
        try:
            names = fs.list(directory)
            for _ in range(LISTINGS_MAX):
                again = fs.list(directory)
                if set(again) == set(names):
                    break
                names = again
        except FileNotFoundError as error:
            raise LogNotFoundError(errno.ENOENT, "there is no log", str(directory)) from error
        except NotADirectoryError as error:
            raise NotALogError(errno.ENOTDIR, "not a directory", str(directory)) from error
        return names

    def state(self) -> StateLook | None:
        """What ``kstore.state`` shows now; None without that file. Raises: StorageError, UnsupportedFormatError."""
        context = self._context
        try:
            file = context.handles.get(self._state_key, self._open_state)
            self._shown = look_at_state(file, self._shown)
        except FileNotFoundError:
            self._shown = None
        return self._shown

    def _open_state(self) -> File:
        return self._context.fs.open(self._context.directory / KSTORE_STATE)

    def _directory(self) -> FileStat | None:
        """What tells one state of the directory from another; None if that is not known, as of a remote one."""
        if isinstance(self._context.fs, RemoteFiles):
            return None
        try:
            return self._context.fs.stat(self._context.directory, follow_symlinks=True)
        except StorageError:
            return None  # the listing says why

    def _trusts_times(self) -> bool:
        """Not those of a network's file system. Asked at the second look: many logs are opened for one."""
        if self._has_times is None:
            self._has_times = not foreign_type(self._context.directory)
        return self._has_times


def _begun_since(
    listed: _Listed, directory: FileStat, shown: StateLook | None, *, is_same: bool, is_young: bool
) -> tuple[int, ...] | None:
    """The segments that were begun since ``listed``; None if only a listing can tell."""
    if shown is None or shown.state is None:
        return None
    if is_same:
        return ()
    is_the_one = (listed.directory.device, listed.directory.inode) == (directory.device, directory.inode)
    if not (is_the_one and is_young) or listed.rolls is None or shown.rolls is None:
        return None
    return shown.rolls.begun_since(listed.rolls)
