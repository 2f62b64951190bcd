"""How much of the disk partitions take, from their directories: no log is opened."""

from __future__ import annotations

from pathlib import Path

from kstore.errors import FileMissingError
from kstore.files.fs import FileSystem


def size_of_files(fs: FileSystem, directory: Path) -> int:
    """The bytes of all files in ``directory``; 0 if it does not exist. Files that disappear meanwhile are left out.

    Raises: StorageError.
    """
    size = 0
    try:
        for name in fs.list(directory):
            try:
                found = fs.stat(directory / name)
            except FileMissingError:
                continue
            size += found.size if found.is_file else size_of_files(fs, directory / name) if found.is_dir else 0
    except FileMissingError:
        pass
    return size
