"""Where a path to read leads: to a directory on this machine, a URL, or a backup. Only the last two load more code."""

from __future__ import annotations

import os
from pathlib import Path

from kstore.engine.directory import ensure_present, is_marked
from kstore.errors import PathLike
from kstore.files.fs import FileSystem
from kstore.files.remote import RemoteFiles, is_remote, local_path
from kstore.rules.topics import KSTORE_TOPICS


def log_to_read(path: PathLike, fs: FileSystem) -> tuple[FileSystem, Path]:
    """Where the directory of a log is that ``path`` leads to.

    Raises: LogNotFoundError if nothing is there, NotALogError for a file; CorruptFileError, UnsupportedFormatError for
    the manifest of a backup; ConfigError, StorageError.
    """
    if isinstance(fs, RemoteFiles):
        place = Path(path)
    elif is_remote(os.fspath(path)):
        fs, place = _place_to_read(path, fs)
    else:
        place = local_path(path, "a log")
        if is_marked(fs, place.absolute()):
            return fs, place
        fs, place = _place_to_read(place, fs)
    ensure_present(fs, place.absolute())
    return fs, place


def store_to_read(path: PathLike, fs: FileSystem) -> tuple[FileSystem, Path]:
    """Where the directory of a store is that ``path`` leads to; it need not exist. Raises: as ``place_to_read``."""
    if is_remote(os.fspath(path)):
        return _place_to_read(path, fs)
    place = local_path(path, "a store")
    return (fs, place) if fs.exists(place / KSTORE_TOPICS) else _place_to_read(place, fs)


def _place_to_read(path: PathLike, fs: FileSystem) -> tuple[FileSystem, Path]:
    from kstore.archive.view import place_to_read

    return place_to_read(path, fs)
