"""The names of files and directories: Kafka's grammar, and kstore's few additions to it. No I/O here.

    in a partition's directory
      <base>.log .index .timeindex .txnindex      a segment; <base> is its base offset in 20 digits
      <offset>.snapshot                           producer state below the offset
      ... .deleted  .cleaned  .swap               one more suffix: awaiting removal, being written, being swapped in
      <base>.log.cut-<position>                   what recovery cut from a .log at that byte (kstore's)
      <base>.index.cut-<number>  ...              an index or a snapshot that proved a loss (kstore's)
      leader-epoch-checkpoint  partition.metadata  kstore.state  .lock
      kstore.groups                               where members of groups meet, a directory (consumer/group_files)

    in a store's directory
      <topic>-<partition>                         a partition's directory, split at the last "-"
      <topic>-<partition>.<32 hex digits>-delete  and -stray, -future: being removed, unknown, arriving
      *-offset-checkpoint  meta.properties  .kafka_cleanshutdown  .lock  kstore.producer-ids

    where backups are
      backup-<time, 15 digits>.manifest           one for each backup; replica-... for those of a replicator

A name must match exactly: digits are ASCII, an offset has 63 bits. Every other name is foreign and left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kstore.errors import ConfigError
from kstore.types import OFFSET_MAX

PARTITION_MAX = (1 << 31) - 1

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"

KSTORE_STATE = "kstore.state"
KSTORE_GROUPS = "kstore.groups"
LOCK = ".lock"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
REPLICATION_OFFSETS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, REPLICATION_OFFSETS, CLEANER_OFFSETS)
META_PROPERTIES = "meta.properties"
PRODUCER_IDS = "kstore.producer-ids"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
# A broker's own log of its cluster's metadata: not a topic, and never written by kstore.
METADATA_TOPIC = "__cluster_metadata"

DELETE_MARK = "-delete"
STRAY_MARK = "-stray"
FUTURE_MARK = "-future"
DIR_NAME_LENGTH_MAX = 255

MANIFEST = re.compile(r"(backup|replica)-([0-9]{15})\.manifest", re.ASCII)
_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap|)", re.ASCII
)
_CUT_FILE = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)\.cut-(0|[1-9][0-9]*)", re.ASCII)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_PARTITION_DIR = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})"
    r"(?:\.(?P<unique>[0-9a-f]{32})(?P<mark>-delete|-stray|-future))?",
    re.ASCII,
)


class SegmentName(NamedTuple):
    """The parts of a segment file's name; ``state`` is "", ".deleted", ".cleaned" or ".swap".

    For a ``.snapshot``, ``base_offset`` is the offset up to which it is valid.
    """

    base_offset: int
    suffix: str
    state: str

    def __str__(self) -> str:
        return segment_name(self.base_offset, self.suffix + self.state)


class DirectoryNames(NamedTuple):
    """A partition directory's names, sorted by kind.

    ``bases`` maps each of ``SEGMENT_SUFFIXES`` to the offsets of its files, increasing. ``unfinished`` are the segment
    files with another suffix, ``cuts`` what recovery set aside, ``others`` all the rest, as listed.
    """

    bases: dict[str, list[int]]
    unfinished: list[SegmentName]
    cuts: list[str]
    others: list[str]

    @property
    def indexed(self) -> set[int]:
        """The base offsets for which both searchable indexes exist."""
        return set(self.bases[INDEX_SUFFIX]).intersection(self.bases[TIME_INDEX_SUFFIX])


class TopicPartition(NamedTuple):
    """A topic and one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def segment_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's file: ``segment_name(42, ".log")`` -> ``"00000000000000000042.log"``."""
    assert 0 <= base_offset <= OFFSET_MAX, f"base offset {base_offset}"
    return f"{base_offset:020d}{suffix}"


def cut_name(base_offset: int, position: int) -> str:
    """The name of the file that keeps what was cut from a ``.log`` at ``position``."""
    return segment_name(base_offset, f"{LOG_SUFFIX}.cut-{position}")


def aside_name(name: str, number: int) -> str:
    """The name of a copy of file ``name``, an index or a snapshot that proved a loss."""
    return f"{name}.cut-{number}"


def parse_segment_name(name: str) -> SegmentName | None:
    """The parts of ``name``, or None if it is not a segment file's."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or (base_offset := int(match[1])) >= OFFSET_MAX:
        return None
    return SegmentName(base_offset, match[2], match[3])


def classify(names: Iterable[str]) -> DirectoryNames:
    """Sorts a directory listing by kind; about 0.5 us a name, because a log may have tens of thousands."""
    bases: dict[str, list[int]] = {suffix: [] for suffix in SEGMENT_SUFFIXES}
    unfinished: list[SegmentName] = []
    cuts: list[str] = []
    others: list[str] = []
    for name in names:
        # isdigit() alone would let other scripts' digits through.
        if (suffix := name[20:]) in bases and (digits := name[:20]).isascii() and digits.isdigit():
            bases[suffix].append(int(digits))
        elif (parsed := parse_segment_name(name)) is not None:
            unfinished.append(parsed)
        else:
            (cuts if _CUT_FILE.fullmatch(name) else others).append(name)
    for suffix, offsets in bases.items():
        offsets.sort()
        while offsets and offsets[-1] >= OFFSET_MAX:
            others.append(f"{offsets.pop():020d}{suffix}")
    return DirectoryNames(bases, unfinished, cuts, others)


def topic_partition(dir_name: str) -> TopicPartition | None:
    """The topic and partition whose directory has this name; None for any other name, a marked one included.

    ``"a-b-7"`` -> ``("a-b", 7)``; ``"a-b"``, ``"a-07"`` and ``"a-7.<32 hex digits>-delete"`` -> None.
    """
    match = _PARTITION_DIR.fullmatch(dir_name)
    return None if match is None or match["mark"] else _topic_partition(match)


def marked_topic_partition(dir_name: str) -> tuple[TopicPartition, str] | None:
    """The topic and partition of a directory marked as leaving or arriving, with its mark; None for any other name.

    The topic may have lost its end: a name has at most 255 characters.
    """
    match = _PARTITION_DIR.fullmatch(dir_name)
    if match is None or not match["mark"] or (parsed := _topic_partition(match)) is None:
        return None
    return parsed, match["mark"]


def marked_dir_name(owner: TopicPartition, unique: str, mark: str) -> str:
    """The name for a leaving or arriving directory; ``unique`` is 32 hex digits.

    The topic is cut so that the name fits a directory entry. A future log's is not cut, since it must be found again
    (Kafka: LocalLog).
    """
    end = f"-{owner.partition}.{unique}{mark}"
    room = DIR_NAME_LENGTH_MAX - len(end)
    return (owner.topic if mark == FUTURE_MARK else owner.topic[:room]) + end


def validate_topic(topic: str) -> str:
    """Returns ``topic``. Raises: ConfigError if Kafka would refuse the name."""
    if not isinstance(topic, str) or topic in (".", "..") or not _TOPIC.fullmatch(topic):
        raise ConfigError(
            f"topic name {topic!r}: expected 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..'"
        )
    return topic


def _topic_partition(match: re.Match[str]) -> TopicPartition | None:
    topic, partition = match["topic"], int(match["partition"])
    return TopicPartition(topic, partition) if partition <= PARTITION_MAX and topic not in (".", "..") else None
