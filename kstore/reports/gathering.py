"""What a report is made of: the statistics, findings and damaged bytes of each log. Reads files, and writes none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kstore.engine.directory import is_log
from kstore.errors import CorruptDataError, KstoreError, StorageError
from kstore.files.checkpoint import read_small_file
from kstore.files.fs import FileSystem, size_of_files
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, classify, parse_segment_name
from kstore.log import Log
from kstore.record.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES
from kstore.record.headers import READ_BATCH_BYTES_MAX
from kstore.reports.hexview import ENTRY_SIZES, VIEW_BYTES, HexView, batch_view, entry_view
from kstore.reports.names import topic_of
from kstore.reports.readers import Readers, readers_of
from kstore.reports.savings import Savings, savings_of
from kstore.rules.compact import Dirt, SegmentFacts, measure_dirt, start_of_dirt
from kstore.rules.internal_topics import is_internal
from kstore.rules.topics import KSTORE_TOPICS, TOPICS_SIZE_MAX, decode_topics
from kstore.scan.visits import Advance, no_advance
from kstore.state.compaction_state import remembered_dirt
from kstore.types import NO_TIMESTAMP, OFFSET_MAX, ProducerInfo, RecoveryReport
from kstore.upkeep.observed.keys import KeySummary
from kstore.upkeep.observed.observations import Observations
from kstore.upkeep.observed.timeline import Timeline
from kstore.upkeep.observed.transactions import Transactions
from kstore.upkeep.recover import plan_recovery
from kstore.upkeep.stats import Stats, log_stats
from kstore.upkeep.verify import Finding, LogVerification, find_logs, verify_log, verify_store_files
from kstore.upkeep.verify.findings import NO_POSITION
from kstore.upkeep.verify.partition import LogHead, verify_head

# The largest logs; to compress a sample of one takes some 50 ms.
SAMPLED_MAX = 50
# For each log. More findings are counted, and listed without their bytes.
VIEWS_MAX = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, with the bytes at its place if it has one."""

    finding: Finding
    view: HexView | None = None


@dataclass(slots=True)
class GatheredLog:
    """One log. Only if all bytes were read: ``verification``, ``keys``, and ``recovery``, what an open would do about
    damage. ``savings`` only if a sample was measured. ``is_compacted``: it was, or its topic's policy says so; ``dirt``
    is measured in any case. ``is_deleted``: since it was found; what is known of it is no damage.
    """

    path: Path
    stats: Stats
    found: list[Found] = field(default_factory=list)
    verification: LogVerification | None = None
    recovery: RecoveryReport | None = None
    recovery_problem: str = ""
    timeline: Timeline = field(default_factory=Timeline)
    transactions: Transactions = field(default_factory=Transactions)
    producers: list[ProducerInfo] = field(default_factory=list)
    keys: KeySummary | None = None
    savings: Savings | None = None
    dirt: Dirt | None = None
    is_compacted: bool = False
    is_deleted: bool = False

    @property
    def end_offset(self) -> int:
        """Where the log ends: its last segment may be empty, and the only one. NO_OFFSET if it has none."""
        bases = [int(Path(segment.path).stem) for segment in self.stats.segments[-1:]]
        return max([self.stats.end_offset, *bases])

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
    found = logs_of(paths, fs=fs)
    measured = largest(found, [size_of_files(fs, log) for log in found])
    logs = (
        examined(log, deep=deep, with_payload=with_payload, with_savings=log in measured, fs=fs, advance=advance)
        for log in found
    )
    return gathered_from(logs, paths, deep=deep, with_payload=with_payload, fs=fs)


def largest(logs: Sequence[Path], sizes: Sequence[int]) -> set[Path]:
    """The logs of which a sample is measured, for what another codec would save."""
    by_size = sorted(zip(sizes, logs, strict=True), reverse=True)
    return {log for _, log in by_size[:SAMPLED_MAX]}


def gathered_from(
    logs: Iterable[GatheredLog], paths: Sequence[Path], *, deep: bool, with_payload: bool, fs: FileSystem = SYSTEM_FS
) -> Gathered:
    """``gather`` for logs that were ``examined``, in other processes perhaps; deleted ones are left out.

    Raises: NotALogError, StorageError.
    """
    gathered = Gathered(list(paths), [], deep=deep, with_payload=with_payload)
    for path in paths:
        if not is_log(classify(fs.list(path))):
            gathered.found += [(path, Found(finding)) for finding in verify_store_files(path, fs=fs).findings]
    gathered.logs.extend(log for log in logs if not log.is_deleted)
    _mark_compacted(gathered.logs, fs)
    for path in dict.fromkeys(paths):
        # A path to one partition does not include its neighbours.
        if any(log.path.parent == path and is_internal(topic_of(log.path)) for log in gathered.logs):
            gathered.readers.append(readers_of(path, with_queues=deep))
    return gathered


def _head(log: Path, fs: FileSystem) -> LogHead | StorageError:
    """``verify_head``, or the error, of which the statistics may find out more."""
    try:
        return verify_head(log, fs=fs)
    except StorageError as error:
        return error


def examined(
    log: Path,
    *,
    deep: bool = False,
    with_payload: bool = False,
    with_savings: bool = False,
    fs: FileSystem = SYSTEM_FS,
    advance: Advance = no_advance,
) -> GatheredLog:
    """Everything about one log; the arguments are those of ``gather``. ``with_savings``: measure a sample of it."""
    observations = Observations(with_keys=deep)
    # Before the statistics: what is appended in the meantime must not seem to be missing.
    head = _head(log, fs)
    stats = log_stats(log, deep=deep, with_segments=True, fs=fs, advance=advance, observations=observations)
    gathered = GatheredLog(log, stats, timeline=observations.timeline, transactions=observations.transactions)
    gathered.keys = observations.keys
    _measure_dirt(gathered, fs)
    if stats.producer_batch_count or with_savings:
        _ask(gathered, with_savings, fs)
    findings = gathered.stats.findings
    try:
        if deep:
            gathered.verification = verify_log(log, fs=fs, advance=advance)
            findings = gathered.verification.findings
        else:
            if isinstance(head, StorageError):
                raise head
            # The listing and the small files cost little; what both found of them is said once.
            head.log.end_offset = max(gathered.stats.end_offset, head.log.start_offset)
            head.hold_against_end(fs)
            findings = [each for each in findings if each.kind not in ("state", "name")] + head.log.findings
    except StorageError as error:
        # The statistics continue where a verification ends, and have named the file.
        findings = findings or [Finding("damage", "name", str(log), f"cannot be read: {error}")]
    gathered.found = list(with_bytes(findings, fs=fs, with_payload=with_payload))
    gathered.is_deleted = bool(gathered.damage_count) and not fs.exists(log)
    if deep and gathered.damage_count:
        try:
            gathered.recovery = plan_recovery(log, fs=fs)
        except KstoreError as error:
            gathered.recovery_problem = str(error)
    return gathered


def with_bytes(findings: Iterable[Finding], *, fs: FileSystem, with_payload: bool) -> Iterator[Found]:
    """The findings about one log, the first ones with the bytes at their places."""
    view_of = _Views(fs, with_payload)
    for finding in findings:
        yield Found(finding, view_of(finding))


def _measure_dirt(log: GatheredLog, fs: FileSystem) -> None:
    """As a compaction that begins now would, without the settings of the topic."""
    remembered = remembered_dirt(fs, log.path)
    log.is_compacted = remembered is not None
    bases = [int(Path(segment.path).stem) for segment in log.stats.segments]
    if len(bases) < 2:
        log.dirt = Dirt(0, 0, NO_TIMESTAMP)
        return
    sealed = [
        SegmentFacts(base, stop, segment.size)
        for base, stop, segment in zip(bases, bases[1:], log.stats.segments, strict=False)
    ]
    stable = min([offset for offset, _ in log.transactions.opened.values()], default=OFFSET_MAX)
    first = start_of_dirt(remembered, start_offset=bases[0], end_offset=max(log.stats.end_offset, bases[-1]))
    stop = max(min(stable, bases[-1]), first)
    log.dirt = measure_dirt(sealed, first, stop)


def _mark_compacted(logs: Sequence[GatheredLog], fs: FileSystem) -> None:
    """Finds the logs whose topics kstore compacts, by the lists of topics next to them."""
    for root in dict.fromkeys(log.path.parent for log in logs):
        path = root / KSTORE_TOPICS
        with suppress(CorruptDataError, StorageError):  # missing: a broker's; damaged: the findings say so
            topics = decode_topics(read_small_file(fs, path, TOPICS_SIZE_MAX), path)
            for log in logs:
                entry = topics.get(topic_of(log.path))
                if log.path.parent == root and entry is not None:
                    log.is_compacted |= "compact" in entry.settings.get("cleanup_policy", "")


def _ask(log: GatheredLog, with_savings: bool, fs: FileSystem) -> None:
    """Adds what a reader knows; nothing if it cannot open the log, of which the findings say more."""
    with suppress(KstoreError), Log(log.path, read_only=True, fs=fs) as opened:
        if log.stats.producer_batch_count:
            log.producers = opened.producers()
        if with_savings:
            log.savings = savings_of(opened)


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
            # If the size fits no number of entries, the rest is wrong; the head of a snapshot says what it should be.
            position = 0 if finding.kind == "snapshot" else size - size % entry_size
        data = file.pread(entry_size, position)
        return entry_view(finding.kind, data, position, size - position) if data else None
