"""A single segment file, shown as a log of one segment: so kstore reads ``.log`` files that were copied from a broker.

    fs = StrayFs(Path("copy.log"), SYSTEM_FS)
    Log("copy.log", read_only=True, fs=fs)      # a directory with one file, to everything that reads it

The directory has the file's path. Nothing in it can be written.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kstore.errors import NotALogError, PathLike, ReadOnlyError
from kstore.files.fs import File, FileStat, FileSystem
from kstore.files.paths import LOG_SUFFIX, parse_segment_name, segment_name
from kstore.files.read_only import ReadOnlyFiles, missing

OFFSET_BYTES = 8
# The fields up to the magic of an entry, which any file of records has.
ENTRY_BYTES_MIN = 17
MAGIC_MAX = 2


class StrayFs(ReadOnlyFiles):
    """A file system in which ``path``, a file of records, is a directory with one segment. Thread-safe."""

    def __init__(self, path: Path, fs: FileSystem) -> None:
        """Raises: NotALogError for a file that does not begin with records, StorageError."""
        self._fs = fs
        self._directory = path.absolute()
        self._file = os.path.realpath(path)
        self._name = segment_name(self._base_offset(path), LOG_SUFFIX)

    def _base_offset(self, path: Path) -> int:
        """The offset in the file's name, or of its first batch."""
        named = parse_segment_name(path.name)
        if named is not None and named.suffix == LOG_SUFFIX and not named.state:
            return named.base_offset
        head = self._fs.open(self._file).pread(ENTRY_BYTES_MIN, 0)
        offset = int.from_bytes(head[:OFFSET_BYTES], "big", signed=True)
        if len(head) < ENTRY_BYTES_MIN or head[-1] > MAGIC_MAX or offset < 0:
            raise NotALogError(errno.ENOTDIR, "neither a log nor a segment's .log", str(path))
        return offset

    def _is_file(self, path: PathLike) -> bool:
        return Path(path).name == self._name and Path(path).absolute().parent == self._directory

    def _is_directory(self, path: PathLike) -> bool:
        return Path(path).absolute() == self._directory

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        if write or create:
            raise self.refused(path)
        if not self._is_file(path):
            raise missing(path)
        return self._fs.open(self._file)

    def list(self, path: PathLike) -> list[str]:
        if not self._is_directory(path):
            raise missing(path)
        return [self._name]

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        found = self._fs.stat(self._file)
        if self._is_directory(path):
            return found._replace(is_file=False, is_dir=True)
        if self._is_file(path):
            return found
        raise missing(path)

    def exists(self, path: PathLike) -> bool:
        return self._is_directory(path) or self._is_file(path)

    def refused(self, path: PathLike) -> ReadOnlyError:
        return ReadOnlyError(errno.EROFS, "a segment by itself is only read", os.fspath(path))
