"""The logs that a command works on: what a path stands for, and which of a directory's logs are selected.

A path is a segment file, a log, or a directory of logs, also in a backup or in an object store.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from kstore.archive.view import BackupFs, place_to_read
from kstore.cli.command import NO_SUCH_FILE
from kstore.errors import FileMissingError, LogNotFoundError, PathLike, StorageError
from kstore.files.fs import FileStat, FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, MANIFEST, topic_partition
from kstore.files.remote import is_remote
from kstore.files.stray import StrayFs
from kstore.log import Log
from kstore.rules.internal_topics import is_internal
from kstore.upkeep.verify import find_logs


class LogPlace(NamedTuple):
    """A log, the file system that shows it, and the text that ``log_places`` finds it by."""

    path: Path
    fs: FileSystem
    text: str

    @property
    def is_stray(self) -> bool:
        """Whether it is a segment file by itself."""
        return isinstance(self.fs, StrayFs)

    @property
    def can_grow(self) -> bool:
        return not isinstance(self.fs, StrayFs | BackupFs)


def log_places(path: str) -> list[LogPlace]:
    """The logs that ``path`` stands for, by name.

    Raises: LogNotFoundError for a path that does not exist, NotALogError for anything else; StorageError.
    """
    if not is_remote(path) and is_file(path) and not MANIFEST.fullmatch(Path(path).name):
        return [LogPlace(Path(path), StrayFs(Path(path), SYSTEM_FS), path)]
    fs, place = place_to_read(path)
    try:
        logs = find_logs(place, fs=fs)
    except FileMissingError:
        if fs is SYSTEM_FS and target_of(path) is not None:
            raise
        raise LogNotFoundError(errno.ENOENT, NO_SUCH_FILE, path) from None
    if not is_remote(path):
        return [LogPlace(log, fs, str(log)) for log in logs]
    url = path.rstrip("/")
    return [LogPlace(log, fs, url if log == place else f"{url}/{log.name}") for log in logs]


def places_of(paths: Iterable[str]) -> list[LogPlace]:
    """The logs of all ``paths``, each once. Raises: as ``log_places``."""
    return list({place.text: place for path in paths for place in log_places(path)}.values())


def target_of(path: PathLike) -> FileStat | None:
    """What ``path`` leads to; None if nothing is there. Raises: StorageError if that cannot be known."""
    try:
        return SYSTEM_FS.stat(path, follow_symlinks=True)
    except StorageError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise


def is_file(path: PathLike) -> bool:
    """Raises: as ``target_of``."""
    found = target_of(path)
    return found is not None and found.is_file


def open_place(place: LogPlace) -> Log:
    """The log for reading. Raises: as ``Log``."""
    return Log(place.path, read_only=True, fs=place.fs)


def log_bytes(place: LogPlace) -> int:
    """Bytes of the log's segments; one that disappears in the meantime counts as 0, and so does the log."""
    size = 0
    with suppress(FileNotFoundError):
        for name in place.fs.list(place.path):
            if name.endswith(LOG_SUFFIX):
                with suppress(FileNotFoundError):
                    size += place.fs.stat(place.path / name).size
    return size


class Selection(NamedTuple):
    """The logs of ``topics`` and ``partitions``; all if there are none, but not those of internal topics."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    internal: bool

    def takes(self, log: LogPlace, path: str) -> bool:
        """Whether it takes ``log``, found at ``path``, which names it if nothing else is there."""
        owner = topic_partition(log.path.name)
        if owner is None:
            return not (self.topics or self.partitions)
        if self.partitions and owner.partition not in self.partitions:
            return False
        if self.topics:
            return owner.topic in self.topics
        return self.internal or not is_internal(owner.topic) or log.text.rstrip("/") == path.rstrip("/")


def selection_options(function: Callable[..., int]) -> Callable[..., int]:
    """``--topic``, ``--partition`` and ``--internal``, as one argument ``selection``."""

    @wraps(function)
    def bundled(*, topics: tuple[str, ...], partitions: tuple[int, ...], internal: bool, **others: Any) -> int:
        return function(selection=Selection(topics, partitions, internal), **others)

    found: Callable[..., int] = bundled
    for option in (
        click.option("--internal", is_flag=True, help="Also topics that Kafka and kstore use internally."),
        click.option(
            "--partition",
            "-p",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            metavar="N",
            help="Only this partition. Repeatable.",
        ),
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic. Repeatable."),
    ):
        found = option(found)
    return found
