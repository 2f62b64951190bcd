"""What the dumps of all files share: the options, the printer, and the findings so far."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from kstore.cli.dump.printer import Printer, Shown
from kstore.cli.dump.reports import Reports
from kstore.errors import KstoreError
from kstore.files.fs import File, FileSystem

__all__ = ["DumpOptions", "FileProblem", "Job", "base_offset_of"]

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
class Job:
    """One run. ``is_damaged`` decides the exit status. Not thread-safe."""

    fs: FileSystem
    options: DumpOptions
    printer: Printer
    reports: Reports = field(default_factory=Reports)
    is_damaged: bool = False

    def open(self, path: str) -> File:
        """Opens a file for reading. Raises StorageError."""
        return self.fs.open(self.real(path))

    def real(self, path: str) -> str:
        """Where ``path`` leads: a symbolic link is followed, because the user named it."""
        return os.path.realpath(path)

    def sibling(self, path: str, suffix: str) -> File:
        """Opens the file of the same segment with another suffix. Raises FileProblem if there is none."""
        target = Path(path).with_name(Path(path).name.split(".")[0] + suffix)
        if not self.fs.exists(target):
            raise FileProblem(f"cannot be checked without {target.name}, which does not exist")
        return self.open(str(target))

    def damage(self, path: str, reason: str, position: int | None = None) -> None:
        """Reports a problem of a file, and records that there is one."""
        self.is_damaged = True
        self.printer.damage(path, reason, position)


def base_offset_of(path: str) -> int | None:
    """The offset in a file's name, None if it does not start with one."""
    digits = Path(path).name.split(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else None
