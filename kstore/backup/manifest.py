"""The manifest of one backup: which files make up the store at one moment. No I/O here.

``backup-<time, 15 digits>.manifest`` in the target; FORMAT.md describes its content. The file that it names for byte
``size`` and CRC of a segment's ``.log``, an index or a snapshot is ``<topic>-<partition>/<base>-<size>-<crc><suffix>``:
the name follows from the content, so a file is never replaced by another one, and backups share what is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kstore.errors import CorruptFileError, PathLike
from kstore.files.checked_text import CheckedText
from kstore.files.checkpoint import EpochEntry
from kstore.files.paths import LOG_SUFFIX, SNAPSHOT_SUFFIX, TopicPartition, topic_partition
from kstore.rules.losses import LossRanges, OffsetSpan
from kstore.types import OFFSET_MAX

__all__ = [
    "LogEntry",
    "Manifest",
    "SegmentEntry",
    "StoredFile",
    "decode_manifest",
    "encode_manifest",
    "manifest_name",
    "manifest_time",
]

FORM = CheckedText("kstore-backup", 1)
NAME = re.compile(r"backup-([0-9]{15})\.manifest")
SUFFIX = re.compile(r"\.[a-z]{1,20}")
CRC_MAX = (1 << 32) - 1


class StoredFile(NamedTuple):
    """A file of a log in the target; ``base`` is the number in its name in the log."""

    base: int
    suffix: str
    size: int
    crc: int

    @property
    def name(self) -> str:
        """Its name in the target."""
        return f"{self.base:020d}-{self.size}-{self.crc:08x}{self.suffix}"


class SegmentEntry(NamedTuple):
    """One segment. ``inode`` and ``mtime_ns`` are those of its ``.log`` in the store; inode 0 says that the next backup
    must not take them for a proof that the file is unchanged."""

    base: int
    inode: int
    mtime_ns: int
    files: tuple[StoredFile, ...]

    @property
    def log_size(self) -> int:
        return sum(file.size for file in self.files if file.suffix == LOG_SUFFIX)


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


def manifest_name(time_ms: int) -> str:
    return f"backup-{time_ms:015d}.manifest"


def manifest_time(name: str) -> int | None:
    """The time in a manifest's name; None for any other name."""
    match = NAME.fullmatch(name)
    return None if match is None else int(match[1])


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
                    {"base": one.base, "inode": one.inode, "mtime_ns": one.mtime_ns, "files": _rows(one.files)}
                    for one in log.segments
                ],
                "snapshots": _rows(log.snapshots),
            }
            for log in manifest.logs
        ],
    }
    return FORM.encode(json.dumps(rows, separators=(",", ":")).encode("ascii") + b"\n")


def decode_manifest(data: bytes, path: PathLike) -> Manifest:
    """Raises: CorruptFileError; UnsupportedFormatError for another version."""
    body = FORM.decode(data, path)
    try:
        rows = json.loads(body)
        return Manifest(
            _number(rows["time_ms"]),
            rows["topics"].encode("latin-1"),
            {name: text.encode("latin-1") for name, text in rows["root"].items()},
            tuple(_log(row) for row in rows["logs"]),
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CorruptFileError(f"not the manifest of a backup: {error}", path=path) from error


def _rows(files: tuple[StoredFile, ...]) -> list[list[object]]:
    return [[file.base, file.suffix, file.size, file.crc] for file in files]


def _log(row: Mapping[str, Any]) -> LogEntry:
    owner = topic_partition(row["log"])
    if owner is None:
        raise ValueError(f"{row['log']!r:.80} is not the name of a log")
    losses = LossRanges(_spans(row["lost"]), _spans(row["accepted"]), _spans(row["unconfirmed"]))
    segments = tuple(_segment(one) for one in row["segments"])
    bases = [segment.base for segment in segments]
    if not bases or bases != sorted(set(bases)):
        raise ValueError(f"{owner} has segments {bases!r:.80}, expected at least one, with rising offsets")
    snapshots = _files(row["snapshots"])
    if any(file.suffix != SNAPSHOT_SUFFIX for file in snapshots):
        raise ValueError(f"{owner} lists a file that is not a snapshot among its snapshots")
    epochs = tuple(EpochEntry(_number(epoch), _number(start)) for epoch, start in row["epochs"])
    return LogEntry(owner, _number(row["start"]), _number(row["end"]), losses, epochs, segments, snapshots)


def _segment(row: Mapping[str, Any]) -> SegmentEntry:
    base, inode, mtime_ns, files = _number(row["base"]), row["inode"], row["mtime_ns"], _files(row["files"])
    if type(inode) is not int or type(mtime_ns) is not int:
        raise ValueError(f"inode {inode!r:.80} and time {mtime_ns!r:.80}, expected whole numbers")
    found = [file.suffix for file in files if file.base == base]
    if len(found) != len(files) or len(set(found)) != len(found) or LOG_SUFFIX not in found:
        raise ValueError(f"segment {base} has the files {[file.name for file in files]!r:.200}")
    return SegmentEntry(base, inode, mtime_ns, files)


def _files(rows: list[list[Any]]) -> tuple[StoredFile, ...]:
    files = tuple(StoredFile(_number(base), suffix, _number(size), crc) for base, suffix, size, crc in rows)
    for file in files:
        # The names become paths.
        if SUFFIX.fullmatch(file.suffix) is None or type(file.crc) is not int or not 0 <= file.crc <= CRC_MAX:
            raise ValueError("an invalid file")
    return files


def _spans(rows: list[list[Any]]) -> tuple[OffsetSpan, ...]:
    return tuple((_number(first), _number(last)) for first, last in rows)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value!r:.80} is not an offset, size or time")
    return value
