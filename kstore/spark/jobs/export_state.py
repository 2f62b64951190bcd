"""The state of an export directory, in ``_kstore_export``, which Spark ignores: plans, receipts, manifests.

    settings.json            what is exported, and how: the same in every run
    000007.plan.json         the stretches of run 7, fixed before any of them is read
    000007.00000042.json     the receipt of its stretch 42: all its files are in place
    000007.json              run 7 is committed: its files, and the offsets where run 8 starts

Each of these is written atomically. A file of records is named after the offsets of its stretch, so that repeating a
stretch replaces its files and adds none. A stopped run continues by its plan, whatever the log has gained since; so at
any time at most one file holds a record, and exactly one when a run is committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kstore.errors import ConfigError, CorruptFileError, FileMissingError, StorageError
from kstore.files.fs import read_file
from kstore.files.lock import DirectoryLock
from kstore.files.remote import UPLOAD_SUFFIX, Location

STATE_DIRECTORY = "_kstore_export"
SETTINGS = "settings.json"
RUN_NAME = re.compile(r"([0-9]{6})(?:\.(plan|[0-9]{8}))?\.json", re.ASCII)


class Planned(NamedTuple):
    """Offsets ``start`` to ``stop`` (exclusive) of a partition."""

    topic: str
    partition: int
    start: int
    stop: int
    size: int


class ExportedFile(NamedTuple):
    """A file of records, by its path below the export directory."""

    path: str
    rows: int
    size: int


class Receipt(NamedTuple):
    """A completed stretch. ``corrupt`` lists the skipped damage, a line each."""

    number: int
    files: list[ExportedFile]
    corrupt: list[str]


def file_name(planned: Planned, part: int) -> str:
    """The name of a stretch's file; it does not start with "_" or ".", since Spark ignores such files."""
    return f"part-{planned.topic}-{planned.partition}-{planned.start:020d}-{planned.stop:020d}-{part:04d}.parquet"


class ExportState:
    """The state of the export in ``out``. Only one export may work there at a time: on local disks a lock ensures
    that."""

    def __init__(self, out: Location) -> None:
        """Reads the existing state. Raises: LockedError, CorruptFileError, StorageError."""
        self.out = out
        self._directory = out / STATE_DIRECTORY
        self._lock: DirectoryLock | None = None
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.run = 0
        self.plan: list[Planned] | None = None
        self.receipts: dict[int, Receipt] = {}

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Prepares the directory, and finds where to continue.

        Raises: ConfigError if an export with other settings exists; LockedError, CorruptFileError, StorageError.
        """
        fs = self.out.fs
        fs.make_dirs(self._directory.path)
        if self.out.local is not None:
            self._lock = DirectoryLock(self._directory.path, kind="export")
        known = self._read(SETTINGS)
        wanted = json.loads(json.dumps(settings))
        if known is None:
            self._write(SETTINGS, wanted)
        elif known != wanted:
            name = next(name for name in sorted({*known, *wanted}) if known.get(name) != wanted.get(name))
            raise ConfigError(
                f"{self.out.url} has an export with {name} {known.get(name)!r}, not {wanted.get(name)!r}:"
                " use another directory"
            )
        self._load()

    def end(self) -> None:
        """Releases the directory."""
        if self._lock is not None:
            self._lock.release()

    def _load(self) -> None:
        committed, plans, receipts, rest = [], [], [], []
        for name in self.out.fs.list(self._directory.path):
            match = RUN_NAME.fullmatch(name)
            if match is None:
                rest.append(name)
            elif match[2] is None:
                committed.append(int(match[1]))
            elif match[2] == "plan":
                plans.append(int(match[1]))
            else:
                receipts.append((int(match[1]), int(match[2])))
        self.run = max(committed, default=-1) + 1
        if committed:
            manifest = self._require(f"{self.run - 1:06d}.json")
            self.next_offsets = {(topic, partition): offset for topic, partition, offset in manifest["next_offsets"]}
        if self.run in plans:
            plan = self._require(f"{self.run:06d}.plan.json")
            self.plan = [Planned(*each) for each in plan["stretches"]]
            for run, number in receipts:
                if run == self.run:
                    self.receipts[number] = self._receipt(number)
        # Left by a run that stopped after its commit, or in the middle of a file.
        stale = [f"{run:06d}.plan.json" for run in plans if run != self.run]
        stale += [f"{run:06d}.{number:08d}.json" for run, number in receipts if run != self.run]
        stale += [name for name in rest if name.startswith("part-") or name.endswith(UPLOAD_SUFFIX)]
        self._remove(stale)

    def fix(self, plan: list[Planned]) -> None:
        """Fixes ``plan`` for this run, and for a run that continues it."""
        self._write(f"{self.run:06d}.plan.json", {"stretches": plan})
        self.plan = plan

    def commit(self, receipts: Mapping[int, Receipt]) -> None:
        """All stretches are done: makes the run part of the export."""
        assert self.plan is not None, "a run has a plan"
        assert sorted(receipts) == list(range(len(self.plan))), "a receipt for each stretch"
        for planned in self.plan:
            owner = (planned.topic, planned.partition)
            self.next_offsets[owner] = max(planned.stop, self.next_offsets.get(owner, 0))
        self._write(
            f"{self.run:06d}.json",
            {
                "next_offsets": [[*owner, offset] for owner, offset in sorted(self.next_offsets.items())],
                "files": [file for number in sorted(receipts) for file in receipts[number].files],
                "corrupt": [line for number in sorted(receipts) for line in receipts[number].corrupt],
            },
        )
        done = [f"{self.run:06d}.{number:08d}.json" for number in receipts]
        self._remove([*done, f"{self.run:06d}.plan.json"])

    def _receipt(self, number: int) -> Receipt:
        found = self._require(f"{self.run:06d}.{number:08d}.json")
        return Receipt(number, [ExportedFile(*file) for file in found["files"]], found["corrupt"])

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with suppress(FileMissingError):
                self.out.fs.unlink((self._directory / name).path)

    def _write(self, name: str, content: Any) -> None:
        write_json(self._directory / name, content)

    def _read(self, name: str) -> Any:
        at = self._directory / name
        try:
            return json.loads(read_file(at.reading, at.path))
        except FileMissingError:
            return None
        except ValueError as error:
            raise CorruptFileError(f"no JSON: {error}", path=at.url) from None

    def _require(self, name: str) -> Any:
        found = self._read(name)
        if found is None:
            raise StorageError(None, "it has disappeared: another export is at work", (self._directory / name).url)
        return found


def write_receipt(out: Location, run: int, receipt: Receipt) -> None:
    """Records that a stretch is done: its files are in place."""
    content = {"files": receipt.files, "corrupt": receipt.corrupt}
    write_json(out / STATE_DIRECTORY / f"{run:06d}.{receipt.number:08d}.json", content)


def write_json(at: Location, content: Any) -> None:
    at.fs.put(at.path, [json.dumps(content, indent=1).encode()])
