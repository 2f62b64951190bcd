"""Verifies one log: its segments in order, and what its small files say about them."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from kstore.archive.view import BackupFs
from kstore.config import LogConfig
from kstore.engine.directory import OWN_NAMES
from kstore.engine.open.evidence import find_evidence
from kstore.engine.segments import LogSegments
from kstore.errors import CorruptDataError, FileMissingError, StorageError, UnsupportedFormatError
from kstore.files.checkpoint import read_leader_epochs, read_topic_id
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import (
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    DirectoryNames,
    classify,
    segment_name,
)
from kstore.files.platform import boot_id
from kstore.record._runs import Run, falling_epoch
from kstore.record.batch import Batch
from kstore.rules.losses import LossRanges, holes, joined
from kstore.scan.visits import Advance, Visitor, no_advance
from kstore.segment import LogSegment, SegmentContext
from kstore.state.kafka_marks import elsewhere, read_kafka_marks, remote_start
from kstore.state.log_state import LogState, losses_of, read_state
from kstore.types import NO_TIMESTAMP, OFFSET_MAX
from kstore.upkeep.verify.changing import (
    TRIES_MAX,
    Sight,
    generation_of,
    has_changed,
    is_live,
    look,
    settled_bases,
    with_swaps_ended,
)
from kstore.upkeep.verify.findings import Finding, LogVerification, Severity
from kstore.upkeep.verify.producers import ProducerCheck
from kstore.upkeep.verify.segment_files import SegmentFiles, verify_segment

# How many names of one kind are reported.
NAMES_SHOWN = 5


def verify_log(
    directory: Path,
    *,
    fs: FileSystem = SYSTEM_FS,
    config: LogConfig | None = None,
    advance: Advance = no_advance,
) -> LogVerification:
    """Reads every file of the log in ``directory``, a partition's; writes nothing and takes no lock.

    Args:
        config: for ``max_batch_bytes_uncompressed``.
        advance: receives the number of further ``.log`` bytes read.

    Another program may compact or truncate the log meanwhile: a segment that seems damaged is looked at again, and
    read again if it is no longer the same. Batches of segments that were read before and after count twice.

    Raises: StorageError if the directory cannot be listed or a segment cannot be read.
    """
    limit = (config or LogConfig()).max_batch_bytes_uncompressed
    found: list[Finding] = []
    if not is_live(fs, directory):
        settled = with_swaps_ended(fs, directory)
        if settled is not fs:
            found, fs = _names(directory, classify(fs.list(directory))), settled
    log = _verified_settled(directory, fs, limit, advance)
    log.findings += [finding for finding in found if finding not in log.findings]
    return log


def _verified_settled(directory: Path, fs: FileSystem, limit: int, advance: Advance) -> LogVerification:
    for _ in range(TRIES_MAX):
        log = _verified(directory, fs, limit, advance, is_final=False)
        if log is not None:
            return log
    log = _verified(directory, fs, limit, advance, is_final=True)
    assert log is not None
    return log


def _verified(
    directory: Path, fs: FileSystem, limit: int, advance: Advance, *, is_final: bool
) -> LogVerification | None:
    """The result; None if segments that were read before were replaced since, and something contradicts them."""
    head = verify_head(directory, fs=fs)
    live = is_live(fs, directory)
    producers = ProducerCheck(fs, directory, head.snapshots, head.first_base, head.log.start_offset, is_live=live)
    reading = _Reading(head, producers)
    seen: list[tuple[int, Sight]] = []
    number = tries = 0
    while number < len(reading.bases):
        base_offset, following = reading.span(number)
        before, kept = look(fs, directory, base_offset, following), reading.copy()
        live_end = following == OFFSET_MAX and is_live(fs, directory)
        files = SegmentFiles(fs, directory, base_offset, following, live_end, limit, head.losses, head.known_end)
        is_missing = False
        try:
            reading.read(files, advance)
        except FileMissingError:
            is_missing = True
        if is_missing or reading.damage_count > kept.damage_count:
            bases = settled_bases(fs, directory)
            tries += 1
            if tries < TRIES_MAX and has_changed(fs, directory, before, base_offset, bases):
                reading, number = kept, kept.go_on(bases)
                continue
            if is_missing:
                raise FileMissingError(errno.ENOENT, "no such segment", files.path(LOG_SUFFIX))
            if not is_final and any(has_changed(fs, directory, sight, base, bases) for base, sight in seen):
                return None
        seen.append((base_offset, before))
        number, tries = number + 1, 0
    return reading.finish(fs)


class _Reading(Visitor):
    """The segments of a log read so far, in order, and what they say together."""

    def __init__(self, head: LogHead, producers: ProducerCheck) -> None:
        self._head = head
        self._producers = producers
        self.bases = head.bases
        self._log = head.log
        self._log.end_offset = self._log.start_offset
        self._epochs = EpochOrder(self._log.path)
        # Everything below it was read. Where another program merges segments it may lie within one.
        self._done = head.first_base

    def copy(self) -> _Reading:
        """The same at this moment, to go back to."""
        other = copy(self)
        other._log = replace(self._log, findings=self._log.findings.copy())
        other._head = self._head._replace(log=other._log)
        other._producers = self._producers.copy()
        other._epochs = copy(self._epochs)
        return other

    @property
    def damage_count(self) -> int:
        return len(self._log.damages) + len(self._producers.findings)

    def span(self, number: int) -> tuple[int, int]:
        """The base offset of a segment, and of the one that follows."""
        return self.bases[number], self.bases[number + 1] if number + 1 < len(self.bases) else OFFSET_MAX

    def go_on(self, bases: list[int]) -> int:
        """Takes other segments for those read from; returns the number of the one to read next."""
        self.bases = bases
        if not bases or bases[0] > self._done:
            # What came next was deleted: it may have held anything.
            self._producers.lose_track()
            self._done = bases[0] if bases else self._done
        return max(bisect_right(bases, self._done) - 1, 0)

    def read(self, files: SegmentFiles, advance: Advance) -> None:
        """Reads one segment. Raises: FileMissingError, StorageError; then half of it may have been read."""
        log = self._log
        before = lost_batches(log)
        log.end_offset = verify_segment(files, log, advance, self)
        if lost_batches(log) != before:
            self._producers.lose_track()
        self._producers.end_segment(files.base_offset)
        self._done = files.offset_stop

    def note(self, position: int, batch: Batch) -> None:
        if batch.base_offset >= self._done:
            self._producers.note(position, batch)
            self._epochs.note(position, batch)

    def note_run(self, run: Run) -> None:
        if run.base_offset < self._done:
            super().note_run(run)
        else:
            self._producers.note_run(run)
            self._epochs.note_run(run)

    def finish(self, fs: FileSystem) -> LogVerification:
        """The result, after the last segment."""
        log, producers = self._log, self._producers
        producers.end(log.end_offset)
        log.findings += [*producers.findings, *self._epochs.findings]
        unstable = producers.first_unstable_offset
        log.last_stable_offset = log.end_offset
        if unstable is not None:
            log.last_stable_offset = max(min(unstable, log.end_offset), log.start_offset)
        self._head.hold_against_end(fs)
        return log


def lost_batches(log: LogVerification) -> int:
    """How much of the damage found so far concerns batches, and not only indexes and other files."""
    # Batches are missing whether or not the loss is accepted.
    accepted = sum(note.kind in ("batch", "lost") for note in log.notes)
    return accepted + sum(damage.kind in ("batch", "tail", "lost") for damage in log.damages)


class LogHead(NamedTuple):
    """What the listing of a log and its small files say, before a batch is read.

    ``bases`` are those of its segments, ``snapshots`` the offsets of its snapshots, both increasing. ``log`` has the
    problems of all that, and the start offset.
    """

    log: LogVerification
    bases: list[int]
    snapshots: list[int]
    state: LogState | None
    recovery_point: int | None

    @property
    def first_base(self) -> int:
        return self.bases[0] if self.bases else 0

    @property
    def losses(self) -> LossRanges:
        return losses_of(self.state)

    @property
    def known_end(self) -> int:
        """Everything below it was durable, according to ``kstore.state``."""
        return 0 if self.state is None else max(self.state.recovery_point, self.state.durable_end)

    def hold_against_end(self, fs: FileSystem) -> None:
        """Adds durable offsets that are missing to ``log``, whose end is now known."""
        log, state = self.log, self.state
        missing = _missing_durable(log, state, self.recovery_point)
        if missing and state is not None and generation_of(fs, Path(log.path)) != state.generation:
            reason = f"the log ended at {log.end_offset}, and may have been truncated while it was read: not checked"
            log.findings.append(Finding("note", "state", f"{log.path}/{KSTORE_STATE}", reason))
        else:
            log.findings += missing
        directory = Path(log.path)
        if state is None and self.bases and not (isinstance(fs, BackupFs) or is_live(fs, directory)):
            # A backup's manifest names each of its files. While a program writes, the files differ from what was read.
            _add_evidence(fs, directory, self.bases, self.snapshots, self.recovery_point, log)


def verify_head(directory: Path, *, fs: FileSystem = SYSTEM_FS) -> LogHead:
    """The first step of ``verify_log``. Raises: StorageError if the directory cannot be listed."""
    log = LogVerification(str(directory))
    # Before the listing of the segments: what is appended after it must not seem to be missing.
    state = _state(fs, directory, classify(fs.list(directory)), log)
    bases = settled_bases(fs, directory)
    names = classify(fs.list(directory))
    marks = read_kafka_marks(fs, directory)
    log.findings.extend(_names(directory, names))
    log.start_offset = max((state.log_start_offset if state else marks.log_start_offset) or 0, bases[0] if bases else 0)
    _check_epochs(fs, directory, log)
    start = remote_start(marks.log_start_offset, bases[0], has_state=state is not None) if bases else None
    if start is not None:
        log.findings.append(Finding("note", "checkpoint", log.path, elsewhere(start, bases[0])))
    return LogHead(log, bases, names.bases[SNAPSHOT_SUFFIX], state, marks.recovery_point)


def _state(fs: FileSystem, directory: Path, names: DirectoryNames, log: LogVerification) -> LogState | None:
    if KSTORE_STATE not in names.others:
        return None
    try:
        state = read_state(fs, directory / KSTORE_STATE)
    except UnsupportedFormatError as error:
        log.findings.append(Finding("note", "state", str(directory / KSTORE_STATE), f"not checked: {error.reason}"))
        return None
    if state is None:
        log.findings.append(
            Finding("damage", "state", str(directory / KSTORE_STATE), "neither of its two records is valid")
        )
    return state


def _names(directory: Path, names: DirectoryNames) -> list[Finding]:
    """The unexpected names in the listing, a finding for each kind."""
    bases = set(names.bases[LOG_SUFFIX])
    orphans = [
        segment_name(offset, suffix)
        for suffix, offsets in names.bases.items()
        if suffix not in (LOG_SUFFIX, SNAPSHOT_SUFFIX)
        for offset in sorted(set(offsets) - bases)
    ]
    kinds = (
        ("not a log's", [name for name in names.others if name not in OWN_NAMES]),
        ("left by work that did not end", [str(name) for name in names.unfinished]),
        ("set aside by a recovery", names.cuts),
        ("an index without its segment", orphans),
    )
    found = []
    for what, listed in kinds:
        if listed:
            shown = ", ".join(sorted(listed)[:NAMES_SHOWN])
            more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
            found.append(Finding("note", "name", str(directory), f"{what}: {shown}{more}"))
    return found


def _missing_durable(log: LogVerification, state: LogState | None, recovery_point: int | None) -> list[Finding]:
    """What was durable and is not there."""
    path = f"{log.path}/{KSTORE_STATE}"
    # After a restart of the machine only "sync" promises more than a prefix.
    is_binding = state is not None and (state.clean or state.durability == "sync" or state.boot_id == boot_id())
    if state is not None and is_binding and state.durable_end > log.end_offset:
        reason = f"the log was durable up to offset {state.durable_end}, but ends at {log.end_offset}"
        # Known losses were reported with their segments.
        missing = holes(log.end_offset, state.durable_end - 1, joined(state.lost, state.accepted))
        return [
            Finding("damage", "state", path, reason, first=first, last=last, after_ms=log.last_ms)
            for first, last in missing
        ]
    if state is None and recovery_point is not None and recovery_point > log.end_offset:
        reason = f"the store's recovery point is {recovery_point}, but the log ends at {log.end_offset}"
        return [Finding("damage", "checkpoint", log.path, reason, first=log.end_offset, last=recovery_point - 1)]
    return []


def _check_epochs(fs: FileSystem, directory: Path, log: LogVerification) -> None:
    """The leader epochs of the checkpoint must increase; the topic's id next to it must be valid."""
    path = str(directory / LEADER_EPOCHS)
    try:
        entries = read_leader_epochs(fs, directory / LEADER_EPOCHS)
        for one, two in pairwise(entries):
            if two.epoch <= one.epoch or two.start_offset < one.start_offset:
                reason = f"epoch {two.epoch} from {two.start_offset} follows {one}"
                log.findings.append(Finding("damage", "epochs", path, reason))
    except (CorruptDataError, StorageError) as error:
        log.findings.append(Finding("damage", "epochs", path, str(error)))
    try:
        if fs.exists(directory / PARTITION_METADATA):
            read_topic_id(fs, directory / PARTITION_METADATA)
    except (CorruptDataError, StorageError) as error:
        log.findings.append(Finding("damage", "name", str(directory / PARTITION_METADATA), str(error)))


class EpochOrder(Visitor):
    """The leader epochs of a log's batches, which should increase: the first one that does not is a note."""

    def __init__(self, log_path: str) -> None:
        self._path = f"{log_path}/{LEADER_EPOCHS}"
        # The greatest one so far.
        self.last = -1
        self.findings: tuple[Finding, ...] = ()

    def note(self, position: int, batch: Batch) -> None:
        self.take(batch.leader_epoch, batch.base_offset)

    def take(self, epoch: int, offset: int) -> None:
        """Like ``note``, for the batch at ``offset``."""
        if 0 <= epoch < self.last:
            self._report(epoch, offset, self.last)
        self.last = max(self.last, epoch)

    def note_run(self, run: Run) -> None:
        falling = None if self.findings else falling_epoch(run, self.last)
        if falling is not None:
            self._report(*falling)
        self.last = max(self.last, run.leader_epoch_max)

    def _report(self, epoch: int, offset: int, last: int) -> None:
        if not self.findings:
            reason = f"the batch at offset {offset} has epoch {epoch}, after epoch {last}"
            self.findings = (Finding("note", "epochs", self._path, reason),)


# --- what small files prove beyond the batches, without ``kstore.state`` ----------------------------------------------


def _add_evidence(
    fs: FileSystem,
    directory: Path,
    bases: Sequence[int],
    snapshots: Sequence[int],
    recovery_point: int | None,
    log: LogVerification,
) -> None:
    """Adds what recovery would call lost, or skip, in a log that no program is writing. Raises: StorageError."""
    if classify(fs.list(directory)).unfinished:
        return  # the next open first ends what a crash has interrupted: its files are not those of whole segments yet
    context = SegmentContext.alone(fs, directory)
    segments = LogSegments(LogSegment(context, base) for base in bases)
    evidence = find_evidence(context, segments, snapshots, recovery_point)
    told = joined((found.first, found.last) for found in log.damages if found.kind in ("batch", "lost"))

    def add(first: int, last: int, base: int, reason: str, *, is_damage: bool) -> None:
        path = str(directory / segment_name(base, LOG_SUFFIX))
        severity: Severity = "damage" if is_damage else "note"
        after = log.last_ms if first >= log.end_offset else NO_TIMESTAMP
        for part in holes(max(first, log.start_offset), last, told):
            log.findings.append(Finding(severity, "lost", path, reason, first=part[0], last=part[1], after_ms=after))

    for first, last, base, what in evidence.holes:
        add(first, last, base, f"the segment ends at offset {first}, but {what} shows more", is_damage=True)
    end = max(evidence.log_end, log.start_offset)
    reason = (
        f"the log ends at offset {end}, but {evidence.proof} proves that it was durable up to {evidence.proven_end}"
    )
    add(end, evidence.proven_end - 1, bases[-1], reason, is_damage=True)
    for first, last in evidence.untold:
        count = last - max(first, end) + 1
        reason = f"{count:,} offsets were used, as {evidence.sign} shows, and nothing shows that they were durable"
        add(max(first, end), last, bases[-1], reason, is_damage=False)
    if evidence.untold and not evidence.is_loss:
        _excuse_entries(log, segment_name(bases[-1], ""))


def _excuse_entries(log: LogVerification, last_segment: str) -> None:
    """Makes notes of the index entries of the last segment that lie beyond its batches: the next open removes them.
    The notes say what they show."""
    log.findings[:] = [
        found._replace(severity="note")
        if found.kind in ("index", "timeindex")
        and Path(found.path).name.startswith(f"{last_segment}.")
        and "after the last batch" in found.reason
        else found
        for found in log.findings
    ]
