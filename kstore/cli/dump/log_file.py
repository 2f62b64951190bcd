"""Dumps a .log, or a snapshot of the metadata log, which has the same format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kstore.cli.decoders import PlainDecoder
from kstore.cli.dump._lines import CONTENTS, METADATA, RECORDS, UNKNOWN, plain_lines
from kstore.cli.dump.batches import DumpBatch, Message, V2DumpBatch, read_batch
from kstore.cli.dump.entries import Entry, EntryWalk, entry_at
from kstore.cli.dump.job import MAX_BYTES, DumpJob, FileProblem, base_offset_of
from kstore.cli.dump.printer import FileReport
from kstore.cli.dump.text import TextPrinter
from kstore.errors import CorruptBatchError, CorruptDataError
from kstore.files.paths import LOG_SUFFIX, classify
from kstore.record._codec import Record
from kstore.record._runs import Run, walk_run
from kstore.record.batch import MAGIC_V2
from kstore.record.scan import SearchBudget, find_next_batch, is_zero
from kstore.record.walk import SPACE
from kstore.types import OFFSET_MAX

BOOTSTRAP_NAME = "bootstrap.checkpoint"
SNAPSHOT_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)


def dump_log(job: DumpJob, path: str) -> None:
    """A line for each batch and, in a deep iteration, for each record; then the bytes without a whole batch."""
    base_offset = base_offset_of(path)
    if base_offset is not None:
        job.printer.log_start(base_offset)
    # Kafka's tool assumes a last offset of -1 before every file, so the start of all but the first is a gap.
    _LogDump(job, path, next_offset=base_offset or 0, last_offset=-1 if base_offset == 0 else UNKNOWN).run()


def dump_metadata_snapshot(job: DumpJob, path: str) -> None:
    """Dumps a ``.checkpoint`` of the metadata log, not one of the text files with the same suffix."""
    name = Path(path).name
    match = SNAPSHOT_NAME.fullmatch(name)
    if name == BOOTSTRAP_NAME:
        job.printer.bootstrap_start()
    elif match:
        job.printer.snapshot_start(int(match[1]), int(match[2]))
    else:
        raise FileProblem("not the name of a snapshot, expected <20 digits>-<10 digits>.checkpoint")
    _LogDump(job, path, next_offset=0, last_offset=-1).run()


class _LogDump:
    """The dump of one file."""

    def __init__(self, job: DumpJob, path: str, *, next_offset: int, last_offset: int) -> None:
        self._job = job
        self._path = path
        self._file = job.open(path)
        self._gaps = _Gaps(job.reports.of(path), last_offset)
        self._next_offset = next_offset
        self._budget = SearchBudget(self._file.size())

    def run(self) -> None:
        self._file.advise(0, 0, "sequential")
        stop = min(self._file.size(), self._job.options.max_bytes)
        position: int | None = 0
        while position is not None:
            position = self._behind(*self._walk(position, stop), stop)
        self._job.is_damaged |= self._gaps.goes_back

    def _walk(self, position: int, stop: int) -> tuple[int | None, bool]:
        """Prints entries from ``position``.

        Returns where the whole ones end, None if the dump ends, and whether a damaged size ends them.
        """
        walk = EntryWalk(self._file, position, stop)
        printer = self._job.printer
        try:
            for entry in walk:
                if isinstance(printer, TextPrinter) and (run := self._run_at(entry, stop)) is not None:
                    if not self._run(run, printer):
                        return None, False
                    walk.skip_to(run.position + run.stop)
                elif not self._entry(entry):
                    return None, False
        except CorruptBatchError as error:
            size = self._file.size()
            if is_zero(self._file, walk.position, size) and not self._is_sealed():
                self._job.printer.note(self._path, f"{size - walk.position} bytes after the last batch: {SPACE}")
                return None, False
            self._job.damage(self._path, error.reason, walk.position)
            return walk.position, True
        return walk.position, False

    def _is_sealed(self) -> bool:
        """Whether a later segment is in the same directory: then no space is left in this one."""
        bases = classify(self._job.names_beside(self._path)).bases[LOG_SUFFIX]
        return any(base > (base_offset_of(self._path) or 0) for base in bases)

    def _run_at(self, entry: Entry, stop: int) -> Run | None:
        """The run of more than one plain batch that begins with ``entry``, if there is one."""
        if entry.magic != MAGIC_V2 or not entry.is_whole:
            return None
        size_left, start = stop - entry.position, entry.position - entry.at
        run = walk_run(entry.data, entry.at, size_left, start, self._next_offset, size_left, OFFSET_MAX, 0, OFFSET_MAX)
        return run if run.batch_count > 1 else None

    def _run(self, run: Run, printer: TextPrinter) -> bool:
        """Prints the batches of a run, as ``_entry`` would one by one; returns whether the dump continues after it."""
        at, what = run.start, self._what(printer)
        while at < run.stop:
            start, last_offset, gaps = at, self._gaps.last_offset, list[tuple[int, int]]()
            if what is not None:
                text, at, last_offset = plain_lines(run.data, at, run.stop, run.position, what, last_offset, gaps)
                printer.lines(text)
                self._gaps.add(gaps, last_offset)
            if at == start:
                entry = entry_at(run.data, at, run.position + at)
                if not self._entry(entry):
                    return False
                at += entry.size
        self._next_offset = run.next_offset
        return True

    def _what(self, printer: TextPrinter) -> int | None:
        """What compiled code prints of a run; None if each batch needs Python."""
        options = self._job.options
        if not options.deep_iteration:
            return 0
        if not printer.is_raw:
            return None
        decoder = options.shown.decoder
        if decoder is None:
            return RECORDS | METADATA * options.shown.metadata
        is_text = isinstance(decoder, PlainDecoder) and decoder.is_text
        return RECORDS | CONTENTS | METADATA * options.shown.metadata if is_text else None

    def _entry(self, entry: Entry) -> bool:
        """Prints one entry; returns whether the dump continues after it."""
        job = self._job
        try:
            batch = read_batch(entry, self._file)
            computed = batch.computed_crc()
            job.printer.batch(batch, computed == batch.crc)
        except CorruptDataError as error:
            return self._goes_on_behind(entry, error.reason)
        for reason in _problems(batch, computed, self._next_offset):
            job.damage(self._path, f"{_name(batch)}: {reason}", entry.position)
        self._next_offset = max(self._next_offset, batch.last_offset + 1)
        if not job.options.deep_iteration:
            return True
        try:
            self._records(batch)
        except CorruptDataError as error:
            return self._goes_on_behind(entry, f"{_name(batch)}: {error.reason}")
        return True

    def _records(self, batch: DumpBatch) -> None:
        printer, shown = self._job.printer, self._job.options.shown
        if not isinstance(batch, V2DumpBatch):
            printer.messages(batch, self._gaps.follow_messages(batch.messages()), shown)
            return
        try:
            records = batch.records()
        except CorruptDataError as error:
            # Kafka's tool checks less of records, and reads one by one: it shows those before the damage.
            printer.records(batch, self._gaps.follow(batch.salvaged_records()), shown)
            self._job.damage(self._path, f"{_name(batch)}: {error.reason}", batch.entry.position)
            return
        printer.records(batch, self._gaps.follow(records), shown)

    def _goes_on_behind(self, entry: Entry, reason: str) -> bool:
        self._job.damage(self._path, reason, entry.position)
        if not self._job.options.past_damage:
            self._stopped(entry.position + entry.size)
        return self._job.options.past_damage

    def _behind(self, position: int | None, is_damaged: bool, stop: int) -> int | None:
        """Where to continue after the whole entries, which end at ``position``; None to end the dump."""
        job = self._job
        if position is None or position >= stop:
            return None
        if not is_damaged and job.options.max_bytes != MAX_BYTES:
            return None  # the user's own limit cuts the last batch
        found = find_next_batch(self._file, position + 1, stop, next_offset=self._next_offset, budget=self._budget)
        goes_on = found is not None and job.options.past_damage
        if not is_damaged and goes_on:
            job.damage(self._path, "an incomplete batch", position)
        elif not is_damaged:
            job.is_damaged = True
            job.printer.invalid_tail(stop - position, Path(self._path).name)
        if found is not None and not goes_on:
            self._stopped(found)
        return found if goes_on else None

    def _stopped(self, position: int) -> None:
        note = f"the dump of this file ends at the damage; with --past-damage it continues at position {position}"
        self._job.printer.note(self._path, note)


class _Gaps:
    """Records where the offsets of records are not consecutive. ``last_offset`` is UNKNOWN before the first record."""

    def __init__(self, report: FileReport, last_offset: int) -> None:
        self._report = report
        self.last_offset = last_offset
        # Compaction causes gaps; nothing sound repeats an earlier offset.
        self.goes_back = False

    def add(self, gaps: Iterable[tuple[int, int]], last_offset: int) -> None:
        """Records ``gaps``, each an offset and the next one, up to ``last_offset``."""
        for before, offset in gaps:
            self._report.gaps[before] = offset
            self.goes_back |= offset <= before
        self.last_offset = last_offset

    def follow(self, records: Iterator[Record]) -> Iterator[Record]:
        """Yields the records unchanged."""
        for record in records:
            self._note(record.offset)
            yield record

    def follow_messages(self, messages: Iterator[Message]) -> Iterator[Message]:
        """Yields the messages unchanged."""
        for message in messages:
            self._note(message.record.offset)
            yield message

    def _note(self, offset: int) -> None:
        before = self.last_offset
        self.add([(before, offset)] if before != UNKNOWN and offset != before + 1 else (), offset)


def _problems(batch: DumpBatch, computed_crc: int, next_offset: int) -> Iterator[str]:
    """The reasons why no log serves a batch, though its lines can be printed."""
    if batch.entry.magic > MAGIC_V2:
        yield f"magic {batch.entry.magic}, expected 0 to {MAGIC_V2}"
    if computed_crc != batch.crc:
        yield f"bad crc: stored {batch.crc}, computed {computed_crc}"
    if batch.entry.offset < next_offset:
        yield f"offset {batch.entry.offset}, expected {next_offset} or more"


def _name(batch: DumpBatch) -> str:
    if isinstance(batch, V2DumpBatch):
        return f"batch of offsets {batch.base_offset} to {batch.last_offset}"
    return f"message with offset {batch.last_offset}"
