"""The directory to hand over: its holders, its contents, one change after another, and the report of all that.

A change goes through ``HandoverStore.do``, which lists it and, except in a dry run, makes it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from kstore.engine.directory import ensure_directory, is_log
from kstore.errors import CorruptFileError, LogNotFoundError
from kstore.files._locks import block
from kstore.files.checkpoint import read_broker_epoch, read_offset_checkpoint, write_offset_checkpoint
from kstore.files.fs import FileSystem
from kstore.files.linked import directories_in
from kstore.files.lock import DirectoryLock, probe_lock
from kstore.files.modes import access
from kstore.files.paths import CLEAN_SHUTDOWN, LOCK, LOG_SUFFIX, TopicPartition, classify, segment_name, topic_partition
from kstore.rules.handover import StoreNames, sort_store
from kstore.types import CorruptRange, CutRange

Direction = Literal["to-broker", "from-broker"]

PRIVATE_MODE = 0o600
MODE_BITS = 0o777


class Change(NamedTuple):
    """One change: ``kind`` is "write", "remove", "open", "roll", "rebuild", "start" or "mode"."""

    kind: str
    path: str
    detail: str


class PartitionReport(NamedTuple):
    """One partition as handed over; ``topic_id`` is "" if unknown."""

    name: str
    start_offset: int
    end_offset: int
    topic_id: str


class ForgottenLoss(NamedTuple):
    """Offsets ``first`` to ``last`` (both inclusive) of partition ``name`` that ``kstore.state`` listed as lost, or as
    accepted. No file lists them after the handover, and a broker passes over them."""

    name: str
    first: int
    last: int
    is_accepted: bool


@dataclass(slots=True)
class HandoverReport:
    """What was found and done.

    ``refused`` says why nothing was handed over; ``damage`` is what the logs have lost, ``cut`` what recovery set
    aside; ``losses`` are those that only ``kstore.state`` listed; ``left`` names unchanged files; ``notes`` are tasks
    for the user.
    """

    directory: str
    direction: Direction
    dry_run: bool
    refused: list[str] = field(default_factory=list)
    damage: list[CorruptRange] = field(default_factory=list)
    cut: list[CutRange] = field(default_factory=list)
    losses: list[ForgottenLoss] = field(default_factory=list)
    steps: list[Change] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether everything was handed over, without damage."""
        return not self.refused and not self.damage


class HandoverStore:
    """The store at ``root``, of which ``owners`` are handed over: all its partitions, or the named one."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str | os.PathLike[str],
        direction: Direction,
        *,
        dry_run: bool,
        mode: int | None,
    ) -> None:
        """Examines ``directory``, a store or one partition of it; changes nothing.

        Raises: LogNotFoundError, NotALogError (not a directory), StorageError.
        """
        self.fs = fs
        self.dry_run = dry_run
        self.mode = mode
        path = Path(directory).absolute()
        self.report = HandoverReport(str(path), direction, dry_run)
        if not fs.exists(path):
            raise LogNotFoundError(errno.ENOENT, "there is no such directory", str(path))
        ensure_directory(fs, path)
        named = is_log(classify(fs.list(path)))
        self.root = path.parent if named else path
        directories, self.files = self._listing()
        self.names: StoreNames = sort_store(directories)
        self.owners = self.names.partitions
        if named:
            owner = topic_partition(path.name)
            self.owners = [owner] if owner in self.names.partitions and owner is not None else []
            if not self.owners:
                self.report.refused.append(
                    f"{path.name} is not the name of a partition: a broker expects <topic>-<partition>, so rename it"
                )
        elif not self.owners:
            self.report.refused.append(f"{path} holds no directory named <topic>-<partition>")

    def _listing(self) -> tuple[list[str], list[str]]:
        names = sorted(self.fs.list(self.root))
        directories = directories_in(self.fs, self.root, names).names
        return directories, sorted(set(names).difference(directories))

    @property
    def is_whole(self) -> bool:
        """Whether every log of the root is handed over, so that one marker can cover all of them."""
        return len(self.owners) == len(self.names.partitions) and not any(
            name.endswith("-future") for name in self.names.marked
        )

    def path(self, owner: TopicPartition) -> Path:
        return self.root / str(owner)

    @block
    def locked(self) -> Iterator[None]:
        """Keeps brokers and kstore's writers out of the root; a dry run only checks for them.

        Each partition's own lock is taken when it is opened. Raises: LockedError.
        """
        for owner in self.owners:
            probe_lock(self.path(owner))
        if self.dry_run:
            probe_lock(self.root)
            yield
            return
        lock_path = self.root / LOCK
        was_there = self.fs.exists(lock_path)
        with DirectoryLock(self.root, kind="handover", mode=self.mode or PRIVATE_MODE):
            try:
                yield
            finally:
                if not was_there:
                    # As a broker does: a broker of another user could not open a remaining file.
                    self.fs.unlink(lock_path)

    def do(self, kind: str, path: Path, detail: str, action: Callable[[], object]) -> None:
        """Makes one change, or in a dry run only lists it."""
        self.report.steps.append(Change(kind, str(path), detail))
        if not self.dry_run:
            action()

    def remove(self, path: Path, why: str) -> None:
        """Removes a name durably."""

        def action() -> None:
            self.fs.unlink(path)
            self.fs.sync_dir(path.parent)

        self.do("remove", path, why, action)

    # --- the marker and the checkpoints -----------------------------------------------------------------------------

    @property
    def marker(self) -> Path:
        return self.root / CLEAN_SHUTDOWN

    def broker_epoch(self) -> int | None:
        """The epoch in the marker of a clean stop, None without a marker."""
        return read_broker_epoch(self.fs, self.marker)

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """None if it cannot be read; a broker treats such a checkpoint as empty."""
        try:
            return read_offset_checkpoint(self.fs, self.root / name)
        except CorruptFileError as error:
            self.report.notes.append(f"{error}: it counts as empty")
            return None

    def update_checkpoint(self, name: str, changes: Mapping[TopicPartition, int | None]) -> None:
        """Sets the entries of some partitions, None to remove one, and keeps those of all others."""
        path = self.root / name
        found = self.read_checkpoint(name)
        wanted = {owner: offset for owner, offset in {**(found or {}), **changes}.items() if offset is not None}
        if wanted == found:
            return
        count = len(changes)
        detail = ", ".join(
            f"{owner} {'-' if offset is None else offset}" for owner, offset in sorted(changes.items())[:4]
        )
        more = f" and {count - 4} more" if count > 4 else ""
        mode = self.mode_for(path)
        self.do("write", path, detail + more, lambda: write_offset_checkpoint(self.fs, path, wanted, mode=mode))

    # --- modes ------------------------------------------------------------------------------------------------------

    def mode_for(self, path: Path) -> int:
        """The mode for a file to be written: the requested one, the old one, or that of its logs."""
        if self.mode is not None:
            return self.mode
        if self.fs.exists(path):
            return access(path).mode & MODE_BITS | PRIVATE_MODE
        directory = path.parent if path.parent != self.root else self.path(self.owners[0])
        return self.log_mode(directory)

    def log_mode(self, directory: Path) -> int:
        """The mode of a partition's newest ``.log``."""
        if self.mode is not None:
            return self.mode
        bases = classify(self.fs.list(directory)).bases[LOG_SUFFIX]
        if not bases:
            return PRIVATE_MODE
        return access(directory / segment_name(bases[-1], LOG_SUFFIX)).mode & MODE_BITS | PRIVATE_MODE
