"""What must, what may and what must not be in a simulated store.

A record is certain (an append that promised it has returned), in doubt (its append has started, but not returned) or
gone (the log was opened without it: it must never come back). A batch in doubt exists as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore.log import Log
from kstore.types import CorruptRange
from tests.support.harness.evidence import Lost, Wrong


class Entry(NamedTuple):
    """The contents of a record; a life has no two equal values."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch. Batches with the same ``write`` were written together."""

    first: int
    entries: tuple[Entry, ...]
    time_ms: int
    write: int

    @property
    def stop(self) -> int:
        return self.first + len(self.entries)

    def items(self) -> Iterator[tuple[int, Entry]]:
        return enumerate(self.entries, self.first)


@dataclass(slots=True)
class Found:
    """The result of one look at a log."""

    start: int
    end: int
    entries: dict[int, Entry]
    corrupt: Sequence[CorruptRange]

    @classmethod
    def of(cls, log: Log) -> Found:
        """Reads all of ``log``. Raises: Wrong for offsets that decrease; errors of reading."""
        entries: dict[int, Entry] = {}
        last = -1
        reader = log.read(on_corrupt="skip")
        for record in reader:
            if record.offset <= last:
                raise Wrong(f"offset {record.offset} after {last}")
            last = record.offset
            entries[last] = Entry(record.key, record.value)
        return cls(log.start_offset, log.end_offset, entries, tuple(reader.corrupt))

    def reports(self, offset: int) -> bool:
        return any(one.first <= offset <= one.last for one in self.corrupt)


@dataclass(slots=True)
class LogModel:
    """One log. ``lossless``: acknowledged records survive power cuts; else only those below ``durable`` do."""

    name: str
    lossless: bool = True
    compacted: bool = False
    certain: list[Batch] = field(default_factory=list)
    doubtful: list[Batch] = field(default_factory=list)
    gone: set[Entry] = field(default_factory=set)
    rotten: set[int] = field(default_factory=set)
    # By file and position: rotted bytes as they are, and as they were.
    flips: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    start_min: int = 0
    start_max: int = 0
    end: int = 0
    durable: int = 0
    compacted_to: int = 0
    # Unreported transaction markers may have taken up to this many offsets.
    slack: int = 0

    # --- what happens -----------------------------------------------------------------------------------------------

    def begin(self, batches: Iterable[Batch]) -> None:
        self.doubtful += batches

    def done(self, batches: Sequence[Batch], first: int) -> None:
        """The append returned the offset ``first``. Raises: Wrong."""
        if not self.end <= first <= max([self.end, *(batch.stop for batch in self.doubtful)]) + self.slack:
            raise Wrong(f"{self.name}: an append got offset {first}, but the log ended at {self.end}")
        shift = first - batches[0].first
        self.doubtful = [batch for batch in self.doubtful if batch not in batches]
        self.certain += [Batch(one.first + shift, one.entries, one.time_ms, one.write) for one in batches]
        self.end = self.certain[-1].stop
        # A failed append took no offset: this one has it now. All tombstones of a key are equal.
        taken = [batch for batch in self.doubtful if batch.first < self.end and batch.stop > first]
        self.doubtful = [batch for batch in self.doubtful if batch not in taken]
        self.gone.update(entry for batch in taken for entry in batch.entries if entry.value is not None)
        if self.lossless:
            self.durable = self.end

    def flushed(self) -> None:
        self.durable = self.end

    def begin_truncation(self, offset: int) -> None:
        """Records that end above ``offset`` may be gone from now on, each batch as a whole."""
        self.doubtful += [batch for batch in self.certain if batch.stop > offset]
        self.certain = [batch for batch in self.certain if batch.stop <= offset]
        self.durable = min(self.durable, offset)

    def truncated(self, offset: int) -> None:
        self.gone.update(entry for batch in self.doubtful for entry in batch.entries)
        self.doubtful = []
        self.end = offset
        # The removal is durable; the rest is as durable as before.
        if self.lossless:
            self.durable = offset

    def rot(self, offset: int) -> None:
        """The bytes of the batch with ``offset`` changed: everything written with it may be lost."""
        writes = {batch.write for batch in self.certain if batch.first <= offset < batch.stop}
        self.rotten.update(at for batch in self.certain if batch.write in writes for at, _ in batch.items())

    # --- what must hold -----------------------------------------------------------------------------------------------

    def hold(self, found: Found, *, power_cut: bool = False, readable: int | None = None) -> None:
        """Compares what was found with what must exist. Raises: Lost, Wrong.

        ``power_cut``: unsynced records may be lost. ``readable``: only offsets below this were read.
        """
        if not self.start_min <= found.start <= self.start_max:
            raise Wrong(f"{self.name} starts at {found.start}, expected {self.start_min} to {self.start_max}")
        known: dict[int, set[Entry]] = {}
        for batch in (*self.certain, *self.doubtful):
            for offset, entry in batch.items():
                known.setdefault(offset, set()).add(entry)
        for offset, entry in found.entries.items():
            if entry in self.gone:
                raise Wrong(f"{self.name}: offset {offset} has {_shown(entry)}, which was gone")
            if entry not in known.get(offset, ()):
                raise Wrong(f"{self.name}: offset {offset} has {_shown(entry)}, which was never written there")
        self._hold_certain(found, power_cut, found.end if readable is None else readable)
        for batch in self.doubtful:
            there = [found.entries.get(offset) == entry for offset, entry in batch.items() if offset >= found.start]
            if (
                readable is None
                and any(there)
                and not all(there)
                and not (self.compacted and batch.first < self.compacted_to)
            ):
                raise Wrong(f"{self.name}: part of the batch at offset {batch.first}: {there}")
        if self.compacted and readable is None:
            self._hold_table(found)

    def _hold_certain(self, found: Found, power_cut: bool, readable: int) -> None:
        lost_from: int | None = None
        for batch in self.certain:
            for offset, entry in batch.items():
                if offset < found.start or readable <= offset < found.end:
                    continue
                if found.entries.get(offset) == entry:
                    if lost_from is not None and not found.reports(lost_from):
                        raise Lost(f"{self.name}: offset {offset} is there, but the earlier {lost_from} is lost")
                elif offset in self.rotten:
                    if offset < found.end and not found.reports(offset) and entry not in found.entries.values():
                        raise Lost(f"{self.name}: offset {offset} rotted, and is missing without a report")
                elif self.compacted and offset < self.compacted_to:
                    continue
                elif not self.lossless and power_cut and offset >= self.durable:
                    lost_from = offset if lost_from is None else lost_from
                else:
                    raise Lost(
                        f"{self.name}: offset {offset} was acknowledged, and the log, from {found.start} to "
                        f"{found.end}, has {_shown(found.entries.get(offset))} there"
                    )

    def _hold_table(self, found: Found) -> None:
        """The last value of each key, and no key that was deleted."""
        expected: dict[bytes | None, tuple[int, bytes | None]] = {}
        for batch in self.certain:
            for offset, entry in batch.items():
                # A power cut removes only a part of the log's end above the last flush. Below the found end a record
                # exists, or a compaction, which flushes first, has removed it.
                if self.lossless or offset < max(self.durable, found.end):
                    expected[entry.key] = (offset, entry.value)
        table: dict[bytes | None, tuple[int, bytes | None]] = {}
        for offset, entry in found.entries.items():
            table[entry.key] = (offset, entry.value)
        for key, (offset, value) in expected.items():
            at, seen = table.get(key, (-1, None))
            if at <= offset and seen != value:
                raise Lost(f"{self.name}: key {key!r} is {_shown(Entry(key, seen))}, expected what offset {offset} has")

    def _is_lost(self, batch: Batch, found: Found) -> bool:
        """Whether a power cut took the batch, as ``hold`` accepted: it was not durable."""
        return (
            not self.lossless
            and not self.compacted
            and batch.first >= found.start
            and not any(offset in self.rotten or offset in found.entries for offset, _ in batch.items())
        )

    def settle(self, found: Found) -> None:
        """The log was opened: what exists stays, what does not exist never comes back."""
        there: list[Batch] = []
        missing: list[Batch] = []
        for batch in self.doubtful:
            is_there = any(found.entries.get(offset) == entry for offset, entry in batch.items())
            (there if is_there else missing).append(batch)
        kept = []
        for batch in self.certain:
            if batch.stop > found.end or self._is_lost(batch, found):
                missing.append(batch)
            elif batch.stop > found.start:
                kept.append(batch)
        # All tombstones of a key are equal.
        self.gone.update(entry for batch in missing for entry in batch.entries if entry.value is not None)
        self.certain = sorted([*kept, *there], key=lambda batch: batch.first)
        self.doubtful = []
        self.rotten = {offset for offset in self.rotten if found.start <= offset < found.end}
        self.start_min = self.start_max = found.start
        self.end = self.durable = found.end


@dataclass(slots=True)
class TopicModel:
    """A topic that exists, or is in doubt: created, grown or deleted by a step that has not returned."""

    logs: list[LogModel]
    may_be_missing: bool = False
    # The partition that is about to be added.
    growing: LogModel | None = None


def _shown(entry: Entry | None) -> str:
    return "nothing" if entry is None else f"({entry.key!r}, {(entry.value or b'')[:24]!r})"
