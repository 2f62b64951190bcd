"""The manifest of one backup: which files make up the store at one moment. No I/O here.

``backup-<time, 15 digits>.manifest`` in the target, or ``replica-<time>.manifest`` if a replicator wrote it, which
removes it later; FORMAT.md describes the content. The files that it names hold a segment's ``.log``, an index or a
snapshot, as ``<topic>-<partition>/<base>-<size>-<crc><suffix>``. A ``.log`` may be in several pieces: those that do not
start at its first byte have their position before the size. The name follows from the content, so a file is never
replaced by another one, and backups share what is the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kstore.errors import CorruptFileError, PathLike
from kstore.files.checkpoint import CheckedText, EpochEntry
from kstore.files.paths import (
    LOG_SUFFIX,
    MANIFEST,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    topic_partition,
)
from kstore.rules.losses import LossRanges, OffsetSpan, are_ranges
from kstore.rules.topics import KSTORE_TOPICS, decode_topics
from kstore.state.log_state import ACCEPTED_MAX, LOST_MAX, UNCONFIRMED_MAX
from kstore.types import OFFSET_MAX

# Version 2 has logs in several pieces; a manifest without any is of version 1.
FORM = CheckedText("kstore-backup", 2, oldest=1)
STORED_NAME = re.compile(r"[0-9]{20}(-[0-9]{1,19}){1,2}-[0-9a-f]{8}\.[a-z]{1,20}")
SUFFIXES = frozenset(SEGMENT_SUFFIXES) - {SNAPSHOT_SUFFIX}
CRC_MAX = (1 << 32) - 1
# More digits would make a name that no listing takes for a manifest.
TIME_MS_MAX = 10**15 - 1


class StoredFile(NamedTuple):
    """A file of a log in the target: all of one in the store, or ``size`` bytes of a ``.log`` from ``position`` on.

    ``base`` is the number in its name in the log.
    """

    base: int
    suffix: str
    size: int
    crc: int
    position: int = 0

    @property
    def name(self) -> str:
        """Its name in the target."""
        place = f"{self.base:020d}-{self.position}" if self.position else f"{self.base:020d}"
        return f"{place}-{self.size}-{self.crc:08x}{self.suffix}"

    @property
    def stop(self) -> int:
        return self.position + self.size


class SegmentEntry(NamedTuple):
    """One segment. ``inode`` and ``mtime_ns`` are those of its ``.log`` in the store, ``index_ns`` is the greatest
    modification time of its other files; inode 0 says that the next backup must not take them as proof that the
    files are unchanged."""

    base: int
    inode: int
    mtime_ns: int
    files: tuple[StoredFile, ...]
    index_ns: int = 0

    @property
    def pieces(self) -> tuple[StoredFile, ...]:
        """Its ``.log``: each piece continues the one before it."""
        return tuple(file for file in self.files if file.suffix == LOG_SUFFIX)

    @property
    def log_size(self) -> int:
        return self.pieces[-1].stop


class LogEntry(NamedTuple):
    """One log from offset ``start`` to ``end``, exclusive. The last segment is the active one."""

    owner: TopicPartition
    start: int
    end: int
    losses: LossRanges
    epochs: tuple[EpochEntry, ...]
    segments: tuple[SegmentEntry, ...]
    snapshots: tuple[StoredFile, ...]

    @property
    def files(self) -> list[StoredFile]:
        return [*(file for segment in self.segments for file in segment.files), *self.snapshots]


class Manifest(NamedTuple):
    """A store at ``time_ms``: the text of ``kstore.topics``, other small files of the root, and its logs."""

    time_ms: int
    topics: bytes
    root: Mapping[str, bytes]
    logs: tuple[LogEntry, ...]


def manifest_name(time_ms: int, *, replica: bool = False) -> str:
    return f"{'replica' if replica else 'backup'}-{time_ms:015d}.manifest"


def manifest_time(name: str) -> int | None:
    """The time in a manifest's name; None for any other name."""
    match = MANIFEST.fullmatch(name)
    return None if match is None else int(match[2])


def is_replica(name: str) -> bool:
    """Whether a replicator wrote the manifest of this name."""
    return name.startswith("replica-")


def is_stored_name(name: str) -> bool:
    """Whether a file of this name, in the directory of a log, is a ``StoredFile``."""
    return STORED_NAME.fullmatch(name) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    rows = {
        "time_ms": manifest.time_ms,
        "topics": manifest.topics.decode("latin-1"),
        "root": {name: data.decode("latin-1") for name, data in manifest.root.items()},
        "logs": [
            {
                "log": str(log.owner),
                "start": log.start,
                "end": log.end,
                "lost": log.losses.lost,
                "accepted": log.losses.accepted,
                "unconfirmed": log.losses.unconfirmed,
                "epochs": log.epochs,
                "segments": [
                    {
                        "base": one.base,
                        "inode": one.inode,
                        "mtime_ns": one.mtime_ns,
                        "index_ns": one.index_ns,
                        "files": _rows(one.files),
                    }
                    for one in log.segments
                ],
                "snapshots": _rows(log.snapshots),
            }
            for log in manifest.logs
        ],
    }
    in_pieces = any(file.position for log in manifest.logs for file in log.files)
    return FORM.encode(json.dumps(rows, separators=(",", ":")).encode("ascii") + b"\n", None if in_pieces else 1)


def decode_manifest(data: bytes, path: PathLike) -> Manifest:
    """Raises: CorruptFileError; UnsupportedFormatError for another version."""
    body = FORM.decode(data, path)
    try:
        rows = json.loads(body)
        manifest = Manifest(
            _number(rows["time_ms"]),
            rows["topics"].encode("latin-1"),
            {name: text.encode("latin-1") for name, text in rows["root"].items()},
            _logs(rows["logs"]),
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CorruptFileError(f"not the manifest of a backup: {error}", path=path) from error
    _check_topics(manifest, path)
    return manifest


def _check_topics(manifest: Manifest, path: PathLike) -> None:
    """A restored store would create partitions that its topics have and the backup lacks, and finish deletions."""
    counts: dict[str, int] = {}
    for log in manifest.logs:
        counts[log.owner.topic] = max(counts.get(log.owner.topic, 0), log.owner.partition + 1)
    topics = decode_topics(manifest.topics, f"{os.fspath(path)}: {KSTORE_TOPICS}")
    for name in sorted(counts.keys() | topics.keys()):
        count, entry = counts.get(name, 0), topics.get(name)
        if entry is None or entry.deleting or not count == entry.partitions == entry.made:
            stated = None if entry is None or entry.deleting else (entry.partitions, entry.made)
            reason = (
                f"it has {count} partitions of topic {name}, expected as many as its topics state and have: {stated}"
            )
            raise CorruptFileError(reason, path=path)


def _rows(files: tuple[StoredFile, ...]) -> list[list[object]]:
    return [list(file if file.position else file[:4]) for file in files]


def _logs(rows: list[Mapping[str, Any]]) -> tuple[LogEntry, ...]:
    logs = tuple(_log(row) for row in rows)
    owners = [log.owner for log in logs]
    if len(set(owners)) < len(owners):
        raise ValueError(f"{max(owners, key=owners.count)} is listed twice")
    return logs


def _log(row: Mapping[str, Any]) -> LogEntry:
    owner = topic_partition(row["log"])
    if owner is None:
        raise ValueError(f"{row['log']!r:.80} is not the name of a log")
    losses = LossRanges(
        _spans(row["lost"], LOST_MAX),
        _spans(row["accepted"], ACCEPTED_MAX),
        _spans(row["unconfirmed"], UNCONFIRMED_MAX),
    )
    segments = tuple(_segment(one) for one in row["segments"])
    bases = [segment.base for segment in segments]
    if not bases or not _rises(bases):
        raise ValueError(f"{owner} has segments {bases!r:.80}, expected at least one, with rising offsets")
    start, end = _number(row["start"]), _number(row["end"])
    if not (start <= end and bases[-1] <= end):
        raise ValueError(f"{owner} has offsets {start} to {end} (exclusive), and segments {bases!r:.80}")
    snapshots = _files(row["snapshots"], frozenset({SNAPSHOT_SUFFIX}))
    if not _rises([file.base for file in snapshots]):
        raise ValueError(f"{owner} has snapshots {[file.name for file in snapshots]!r:.200}, expected rising offsets")
    total_bytes = sum(file.size for segment in segments for file in segment.files)
    if total_bytes > OFFSET_MAX:
        raise ValueError(f"{owner} has {total_bytes} bytes, expected at most {OFFSET_MAX}")
    epochs = tuple(EpochEntry(_number(epoch), _number(start)) for epoch, start in row["epochs"])
    return LogEntry(owner, start, end, losses, epochs, segments, snapshots)


def _segment(row: Mapping[str, Any]) -> SegmentEntry:
    base, inode, mtime_ns, index_ns = _number(row["base"]), row["inode"], row["mtime_ns"], row["index_ns"]
    files = _files(row["files"], SUFFIXES)
    for number in (mtime_ns, index_ns):
        if type(inode) is not int or type(number) is not int or not -OFFSET_MAX <= number <= OFFSET_MAX:
            raise ValueError(f"inode {inode!r:.80} and time {number!r:.80}, expected whole numbers, of 64 bits")
    entry = SegmentEntry(base, inode, mtime_ns, files, index_ns)
    others = [file.suffix for file in files if file.suffix != LOG_SUFFIX]
    stops = [0, *(piece.stop for piece in entry.pieces)]
    if (
        any(file.base != base for file in files)
        or len(set(others)) != len(others)
        or not entry.pieces
        or (len(entry.pieces) > 1 and not all(piece.size for piece in entry.pieces))
        or stops[:-1] != [piece.position for piece in entry.pieces]
    ):
        raise ValueError(f"segment {base} has the files {[file.name for file in files]!r:.200}")
    return entry


def _files(rows: list[list[Any]], suffixes: frozenset[str]) -> tuple[StoredFile, ...]:
    files = []
    for base, suffix, size, crc, *positions in rows:
        file = StoredFile(_number(base), suffix, _number(size), crc, *map(_number, positions))
        # The names become paths.
        if file.suffix not in suffixes or type(file.crc) is not int or not 0 <= file.crc <= CRC_MAX:
            raise ValueError(f"a file with suffix {file.suffix!r:.40} and CRC {file.crc!r:.40}")
        if file.position and suffix != LOG_SUFFIX:
            raise ValueError(f"{file.name} is a piece of a file, expected one of a log")
        files.append(file)
    return tuple(files)


def _spans(rows: list[list[Any]], count_max: int) -> tuple[OffsetSpan, ...]:
    spans = tuple((_number(first), _number(last)) for first, last in rows)
    if not are_ranges(spans, count_max):
        raise ValueError(f"{spans!r:.80}, expected at most {count_max} rising ranges of offsets")
    return spans


def _rises(numbers: Sequence[int]) -> bool:
    return all(one < two for one, two in pairwise(numbers))


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value!r:.80} is not an offset, size or time")
    return value
