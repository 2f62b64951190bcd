"""What a store's listings said at one moment, so that a reader of many logs asks for nothing twice.

A plan asks the same things of each log many times: its names, their sizes, whether they exist. Each question is a
request where a store is far away. A ``RemoteFiles`` with a ``Moment`` answers them from the listings that it has, until
the moment ends (``begin``), or a reader that has met a contradiction forgets a directory.

Bytes are always read from the store. Only files of a few bytes are kept, and only as long as their stat tells that they
have not changed.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Mapping
from posixpath import dirname, split

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import FileMissingError, PathLike
from kstore.files.fs import FileStat

# A partition's topic id has 43 bytes, a checkpoint a few more.
SMALL_BYTES_MAX = 512
# No store that is trusted counts time in larger steps, unless it gives whole seconds.
SETTLED_NS = 2_000_000_000
SECOND_NS = 1_000_000_000


def is_telling(stat: FileStat, now_ns: int) -> bool:
    """Whether every later content of the file will have another stat than the one that was asked for after ``now_ns``.

    So it is with a store's own mark of a content (an ETag). Without one only the time tells: not if it is younger than
    two seconds, or in the future, where a second change may have the same one, nor if it is of whole seconds.
    """
    return bool(stat.tag) or (stat.mtime_ns % SECOND_NS != 0 and stat.mtime_ns <= now_ns - SETTLED_NS)


class Moment:
    """The listings of one store's directories, by path. Thread-safe: each step is one operation of a dictionary."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._listings: dict[str, Mapping[str, FileStat]] = {}
        # Those of the moment before, and of them those that tell of every change.
        self._before: dict[str, Mapping[str, FileStat]] = {}
        self._small: dict[str, tuple[FileStat, bytes]] = {}
        self._begun_ns = 0
        self.begin()

    def begin(self) -> None:
        """Ends the moment: from now on each directory is listed again."""
        begun_ns, self._begun_ns = self._begun_ns, self._clock.now_ms() * 1_000_000
        self._before = {path: entries for path, entries in self._listings.items() if _are_telling(entries, begun_ns)}
        self._listings = {}

    def forget(self, directory: PathLike) -> None:
        """One directory is listed again, since what was read contradicts its listing."""
        path = _plain(directory)
        self._listings.pop(path, None)
        self._before.pop(path, None)

    def listing(self, directory: PathLike) -> Mapping[str, FileStat] | None:
        """The stats of a directory's names; None if it was not listed.

        It is the same object in the next moment if no file of the directory can have changed.
        """
        return self._listings.get(_plain(directory))

    def note(self, directory: PathLike, entries: Mapping[str, FileStat]) -> None:
        """A directory was listed."""
        path = _plain(directory)
        before = self._before.get(path)
        self._listings[path] = before if before == entries and before is not None else entries

    def note_tree(self, top: PathLike, files: Mapping[str, FileStat]) -> None:
        """Everything below ``top`` was listed: ``files`` by their paths from there. Empty directories do not show."""
        found: defaultdict[str, dict[str, FileStat]] = defaultdict(dict)
        root = _plain(top)
        found[root] = {}
        for path, stat in files.items():
            directory, name = split(path)
            above = f"{root.rstrip('/')}/{directory}" if directory else root
            is_new = above not in found
            found[above][name] = stat
            while is_new:
                above, name = split(above)
                is_new = above not in found
                found[above][name] = DIRECTORY
        for path, entries in found.items():
            self.note(path, entries)

    def stat(self, path: PathLike) -> FileStat | None:
        """The stat of a name; None if nothing is known of it. Raises: FileMissingError if a listing lacks it."""
        text = _plain(path)
        if text in self._listings:
            return DIRECTORY
        directory, name = split(text)
        entries = self._listings.get(directory)
        if entries is None:
            return None
        found = entries.get(name)
        if found is None:
            raise FileMissingError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return found

    def telling(self, path: PathLike) -> FileStat | None:
        """The stat of a name that was listed, if every other content of the file would have another one."""
        directory, name = split(_plain(path))
        found = self._listings.get(directory, {}).get(name)
        return found if found is not None and is_telling(found, self._begun_ns) else None

    def content(self, path: str, stat: FileStat) -> bytes | None:
        """The bytes of a small file whose stat is still ``stat``; None if they are not known."""
        kept = self._small.get(path)
        return kept[1] if kept is not None and kept[0] == stat else None

    def keep(self, path: str, stat: FileStat, data: bytes) -> None:
        """Keeps the bytes of a file that is small, if its stat tells of every change."""
        if len(data) == stat.size <= SMALL_BYTES_MAX and is_telling(stat, self._begun_ns):
            self._small[path] = stat, data


DIRECTORY = FileStat(0, 0, 0, 0, False, True)


def _are_telling(entries: Mapping[str, FileStat], now_ns: int) -> bool:
    return all(is_telling(stat, now_ns) for stat in entries.values() if not stat.is_dir)


def _plain(path: PathLike) -> str:
    text = os.fspath(path)
    return text.rstrip("/") or "/"


def parent(path: str) -> str:
    """The directory of a path."""
    return dirname(_plain(path))
