"""What the dumps of all files share: the options, the printer, and the findings so far."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from kstore.archive.view import place_to_read
from kstore.cli.dump.printer import Printer, Reports, Shown
from kstore.errors import KstoreError
from kstore.files.fs import File, FileSystem, read_file
from kstore.files.local import SYSTEM_FS
from kstore.files.remote import SCHEME

MAX_MESSAGE_SIZE = 5 * 1024 * 1024
MAX_BYTES = 2**31 - 1


class FileProblem(KstoreError):
    """A problem that makes it pointless to continue with a file; the message says why, ``position`` where."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The options of ``kstore dump-log``, by Kafka's names for them; sizes in bytes."""

    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_size: int = MAX_MESSAGE_SIZE
    max_bytes: int = MAX_BYTES
    past_damage: bool = False
    kafka_status: bool = False
    shown: Shown = field(default_factory=Shown)


@dataclass(slots=True)
class DumpJob:
    """One run. ``is_damaged`` decides the exit status. Not thread-safe."""

    options: DumpOptions
    printer: Printer
    reports: Reports = field(default_factory=Reports)
    is_damaged: bool = False
    # What was named may be in a backup or at a URL: where each directory is.
    _directories: dict[str, tuple[FileSystem, Path]] = field(default_factory=dict)

    def open(self, path: str) -> File:
        """Opens a file for reading. Raises: StorageError, CorruptFileError; ConfigError for a URL."""
        fs, place = self._place_of(path)
        return fs.open(place)

    def read(self, path: str) -> bytes:
        """The content of a file. Raises: as ``open``."""
        fs, place = self._place_of(path)
        return read_file(fs, place)

    def exists(self, path: str) -> bool:
        fs, place = self._place_of(path)
        return fs.exists(place)

    def names_beside(self, path: str) -> list[str]:
        """The names in the file's directory. Raises: as ``open``."""
        fs, place = self._place_of(path)
        return fs.list(Path(place).parent)

    def sibling(self, path: str, suffix: str) -> str:
        """The file of the same segment with another suffix. Raises FileProblem if it does not exist."""
        directory, name = _parted(path)
        target = joined(directory, name.split(".")[0] + suffix)
        if not self.exists(target):
            raise FileProblem(f"cannot be checked without {_parted(target)[1]}, which does not exist")
        return target

    def place_of_directory(self, path: str) -> tuple[FileSystem, Path]:
        """Where ``path`` leads to, if it is a directory. Raises: as ``open``."""
        if path not in self._directories:
            self._directories[path] = place_to_read(path)
        return self._directories[path]

    def _place_of(self, path: str) -> tuple[FileSystem, str]:
        """A symbolic link is followed, because the user named it."""
        if not Path(path).exists():
            directory, name = _parted(path)
            fs, place = self.place_of_directory(directory)
            if fs is not SYSTEM_FS or _is_url(path):
                return fs, str(place / name)
        return SYSTEM_FS, os.path.realpath(path)

    def damage(self, path: str, reason: str, position: int | None = None) -> None:
        """Reports a problem of a file, and records that there is one."""
        self.is_damaged = True
        self.printer.damage(path, reason, position)


def base_offset_of(path: str) -> int | None:
    """The offset in a file's name, None if it does not start with one."""
    digits = Path(path).name.split(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def joined(directory: str, name: str) -> str:
    """The path of ``name`` in a directory, which may be a URL."""
    return f"{directory.rstrip('/')}/{name}" if _is_url(directory) else str(Path(directory, name))


def _parted(path: str) -> tuple[str, str]:
    """The directory of a file, and its name there."""
    if _is_url(path):
        directory, _, name = path.rpartition("/")
        return directory, name
    return str(Path(path).parent), Path(path).name


def _is_url(path: str) -> bool:
    return SCHEME.fullmatch(path) is not None
