"""The offset checkpoints in a store's root: for a broker, and for its logs that kstore has not opened yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kstore.errors import CorruptFileError
from kstore.files.checkpoint import read_offset_checkpoint, write_offset_checkpoint
from kstore.files.fs import FileSystem
from kstore.files.paths import CHECKPOINTS, LOG_START_OFFSETS, METADATA_TOPIC, RECOVERY_POINTS, TopicPartition


class Checkpoints:
    """The offsets of each checkpoint file, as stored. Not thread-safe: its owner's lock guards it."""

    def __init__(self, fs: FileSystem, path: Path, *, file_mode: int) -> None:
        """Nothing is read until ``read``."""
        self._fs = fs
        self._path = path
        self._mode = file_mode
        self._stored: dict[str, dict[TopicPartition, int]] = {name: {} for name in CHECKPOINTS}

    def read(self) -> list[str]:
        """Reads every file; returns a note for each one that is ignored because it is damaged. Raises: StorageError."""
        notes = []
        for name in CHECKPOINTS:
            try:
                self._stored[name] = read_offset_checkpoint(self._fs, self._path / name)
            except CorruptFileError as error:
                self._stored[name] = {}
                notes.append(f"{name} is ignored: {error.reason}")
        return notes

    def recovery_point(self, owner: TopicPartition) -> int | None:
        return self._stored[RECOVERY_POINTS].get(owner)

    def log_start_offset(self, owner: TopicPartition) -> int | None:
        return self._stored[LOG_START_OFFSETS].get(owner)

    def write(
        self, changes: Mapping[str, Mapping[TopicPartition, int | None]], has_log: Callable[[TopicPartition], bool]
    ) -> int:
        """Applies the changes of some logs (None: no entry), and drops entries without a log; returns the number of
        changed files. Raises: StorageError."""
        count = 0
        for name in CHECKPOINTS:
            merged = {**self._stored[name], **changes.get(name, {})}
            wanted = {
                owner: offset
                for owner, offset in merged.items()
                if offset is not None and (owner.topic == METADATA_TOPIC or has_log(owner))
            }
            count += self._store(name, wanted)
        return count

    def forget(self, owners: Iterable[TopicPartition]) -> None:
        """Removes partitions, durably: a later log of the same name must not start with their offsets.

        Raises: StorageError.
        """
        gone = set(owners)
        for name, offsets in self._stored.items():
            self._store(name, {owner: offset for owner, offset in offsets.items() if owner not in gone})

    def _store(self, name: str, offsets: dict[TopicPartition, int]) -> bool:
        """Replaces a file, if that changes it; whether it did."""
        if offsets == self._stored[name]:
            return False
        write_offset_checkpoint(self._fs, self._path / name, offsets, mode=self._mode)
        self._stored[name] = offsets
        return True
