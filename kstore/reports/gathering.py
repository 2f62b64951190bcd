"""What a report is made of: the statistics, findings and damaged bytes of each log. Reads files, and writes none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kstore.engine.directory import is_log
from kstore.errors import KstoreError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, classify, parse_segment_name, topic_partition
from kstore.log import Log
from kstore.record.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, Batch
from kstore.record.headers import READ_BATCH_BYTES_MAX
from kstore.reports.hexview import ENTRY_SIZES, VIEW_BYTES, HexView, batch_view, entry_view
from kstore.reports.readers import Readers, readers_of
from kstore.reports.timeline import Timeline
from kstore.rules.internal_topics import is_internal
from kstore.types import ProducerInfo, RecoveryReport
from kstore.upkeep.recover import plan_recovery
from kstore.upkeep.stats import Stats, find_logs, log_stats
from kstore.upkeep.verify import Finding, LogVerification, verify_log, verify_store_files
from kstore.upkeep.verify.findings import NO_POSITION, Advance
from kstore.upkeep.verify.partition import no_advance, verify_head

__all__ = ["Found", "Gathered", "GatheredLog", "gather", "logs_of"]

# Of one log. More findings are counted and listed without their bytes.
VIEWS_MAX = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, with the bytes at its place if it has one."""

    finding: Finding
    view: HexView | None = None


@dataclass(slots=True)
class GatheredLog:
    """One log. ``verification`` and ``recovery``, what an open would do about damage, only if all bytes were read."""

    path: Path
    stats: Stats
    found: list[Found] = field(default_factory=list)
    verification: LogVerification | None = None
    recovery: RecoveryReport | None = None
    recovery_problem: str = ""
    timeline: Timeline = field(default_factory=Timeline)
    producers: list[ProducerInfo] = field(default_factory=list)

    @property
    def damage_count(self) -> int:
        """The number of all damages, listed or not: statistics keep only the first findings."""
        left_out = 0 if self.verification is not None else self.stats.damage_count - len(self.stats.findings)
        return sum(each.finding.severity == "damage" for each in self.found) + left_out

    @property
    def note_count(self) -> int:
        return sum(each.finding.severity == "note" for each in self.found)


@dataclass(slots=True)
class Gathered:
    """Everything that a report shows. ``found`` is what is wrong with the directories themselves."""

    paths: list[Path]
    logs: list[GatheredLog]
    found: list[tuple[Path, Found]] = field(default_factory=list)
    readers: list[Readers] = field(default_factory=list)
    deep: bool = False
    with_payload: bool = False


def logs_of(paths: Sequence[Path], *, fs: FileSystem = SYSTEM_FS) -> list[Path]:
    """The logs in ``paths``, each once. Raises: NotALogError, StorageError."""
    return list(dict.fromkeys(log for path in paths for log in find_logs(path, fs=fs)))


def gather(
    paths: Sequence[Path],
    *,
    deep: bool = False,
    with_payload: bool = False,
    fs: FileSystem = SYSTEM_FS,
    advance: Advance = no_advance,
) -> Gathered:
    """Examines the logs in ``paths``, one after another; a log that cannot be read becomes a finding.

    Args:
        deep: check, decompress and count every record, verify every file, and plan a recovery where there is damage.
        with_payload: also keep bytes of records that a finding's view shows.
        advance: receives the number of further ``.log`` bytes read; ``deep`` reads everything twice.

    Raises: NotALogError, StorageError.
    """
    gathered = Gathered(list(paths), [], deep=deep, with_payload=with_payload)
    for path in paths:
        if not is_log(classify(fs.list(path))):
            gathered.found += [(path, Found(finding)) for finding in verify_store_files(path, fs=fs).findings]
    for log in logs_of(paths, fs=fs):
        gathered.logs.append(_examined(log, deep, with_payload, fs, advance))
    for path in dict.fromkeys(paths):
        # A path to one partition does not include its neighbours.
        if any(log.path.parent == path and is_internal(_topic(log.path)) for log in gathered.logs):
            gathered.readers.append(readers_of(path, with_queues=deep))
    return gathered


def _topic(log: Path) -> str:
    owner = topic_partition(log.name)
    return log.name if owner is None else owner.topic


def _examined(log: Path, deep: bool, with_payload: bool, fs: FileSystem, advance: Advance) -> GatheredLog:
    timeline = Timeline()

    def observe(batch: Batch, record_count: int) -> None:
        timeline.add(batch.max_timestamp, batch.size, record_count)

    stats = log_stats(log, deep=deep, with_segments=True, fs=fs, advance=advance, observe=observe)
    gathered = GatheredLog(log, stats, timeline=timeline)
    if stats.producer_batch_count:
        gathered.producers = _producers(log)
    findings = gathered.stats.findings
    try:
        if deep:
            gathered.verification = verify_log(log, fs=fs, advance=advance)
            findings = gathered.verification.findings
        else:
            # The listing and the small files cost little; what both found of them is said once.
            head = verify_head(log, fs=fs)
            head.log.end_offset = max(gathered.stats.end_offset, head.log.start_offset)
            head.hold_against_end()
            findings = [each for each in findings if each.kind not in ("state", "name")] + head.log.findings
    except StorageError as error:
        # The statistics continue where a verification ends, and have named the file.
        findings = findings or [Finding("damage", "name", str(log), f"cannot be read: {error}")]
    view_of = _Views(fs, with_payload)
    gathered.found = [Found(finding, view_of(finding)) for finding in findings]
    if deep and gathered.damage_count:
        try:
            gathered.recovery = plan_recovery(log, fs=fs)
        except KstoreError as error:
            gathered.recovery_problem = str(error)
    return gathered


def _producers(log: Path) -> list[ProducerInfo]:
    """What a reader would know of the producers; none if it cannot open the log, of which the findings say more."""
    try:
        with Log(log, read_only=True) as opened:
            return opened.producers()
    except KstoreError:
        return []


class _Views:
    """Reads the bytes at the first findings of one log."""

    def __init__(self, fs: FileSystem, with_payload: bool) -> None:
        self._fs = fs
        self._with_payload = with_payload
        self._left = VIEWS_MAX

    def __call__(self, finding: Finding) -> HexView | None:
        readers: dict[str, Callable[[Finding], HexView | None]] = {"batch": self._batch, "tail": self._batch}
        readers |= dict.fromkeys(ENTRY_SIZES, self._entry)
        read = readers.get(finding.kind)
        if finding.severity != "damage" or read is None or not self._left:
            return None
        try:
            view = read(finding)
        except StorageError:
            return None  # missing, or out of reach: the finding says so
        self._left -= view is not None
        return view

    def _batch(self, finding: Finding) -> HexView | None:
        name = parse_segment_name(Path(finding.path).name)
        if name is None or name.suffix != LOG_SUFFIX or finding.position == NO_POSITION:
            return None
        file = self._fs.open(finding.path)
        size_left = file.size() - finding.position
        data = file.pread(min(VIEW_BYTES, size_left), finding.position)
        size = int.from_bytes(data[8:LOG_OVERHEAD_BYTES], "big", signed=True) + LOG_OVERHEAD_BYTES
        if BATCH_HEADER_BYTES <= size <= min(size_left, READ_BATCH_BYTES_MAX):
            data = file.pread(max(size, len(data)), finding.position)  # whole, for its CRC
        return batch_view(
            data,
            finding.position,
            size_left,
            first_offset=finding.first,
            base_offset=name.base_offset,
            with_payload=self._with_payload,
        )

    def _entry(self, finding: Finding) -> HexView | None:
        file = self._fs.open(finding.path)
        size, entry_size = file.size(), ENTRY_SIZES[finding.kind]
        position = finding.position
        if position == NO_POSITION:
            # Of a size that fits no number of entries the rest is wrong; of a snapshot its head says what it should be.
            position = 0 if finding.kind == "snapshot" else size - size % entry_size
        data = file.pread(entry_size, position)
        return entry_view(finding.kind, data, position, size - position) if data else None
