"""What the files in a store's root say: a directory of many logs, laid out like a Kafka broker's.

    .lock                        held by the one store, or broker, that writes
    meta.properties              ids; a broker's is kept
    kstore.topics                the topics and their settings (rules/topics); decides whether one exists
    kstore.producer-ids          which producer ids may have been assigned (transactions/producer_ids)
    <topic>-<partition>          a log, with the topic's id in partition.metadata
    *-offset-checkpoint          for a broker, and for its logs that kstore has not opened yet (logs/checkpoints)
    .kafka_cleanshutdown         exists only while no writer is open, and only if all logs were closed cleanly
    <topic>-<p>.<hex>-delete     a deleted topic's, until it is removed

``kstore.topics`` decides whether a topic exists. kstore owns no other name in the directory: it leaves such names
alone, and lists them.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from kstore.engine.directory import ensure_directory, is_log
from kstore.errors import CorruptFileError, LogNotFoundError, NotALogError, StorageError, UnsupportedFormatError
from kstore.files.checkpoint import read_small_file, read_topic_id
from kstore.files.fs import FileSystem
from kstore.files.linked import directories_in
from kstore.files.paths import (
    CHECKPOINTS,
    CLEAN_SHUTDOWN,
    DELETE_MARK,
    KSTORE_STATE,
    LOCK,
    LOG_SUFFIX,
    MANIFEST,
    META_PROPERTIES,
    METADATA_TOPIC,
    PARTITION_METADATA,
    PRODUCER_IDS,
    TEMPORARY_SUFFIX,
    TopicPartition,
    classify,
    marked_topic_partition,
    segment_name,
    topic_partition,
)
from kstore.rules.retain import SegmentAge
from kstore.rules.topics import KEEP_EVERYTHING, KSTORE_TOPICS, TOPICS_SIZE_MAX, TopicEntry, decode_topics
from kstore.state.log_state import read_state
from kstore.types import NO_TIMESTAMP, OFFSET_MAX

logger = logging.getLogger(__name__)

OWN_NAMES = frozenset({LOCK, META_PROPERTIES, KSTORE_TOPICS, PRODUCER_IDS, CLEAN_SHUTDOWN, *CHECKPOINTS})
DAMAGED_TOPICS = KSTORE_TOPICS + ".damaged"


def ensure_root(fs: FileSystem, path: Path) -> None:
    """Raises: NotALogError if ``path`` is not a directory, is the directory of one log, or holds backups."""
    ensure_directory(fs, path)
    names = fs.list(path)
    if is_log(classify(names)):
        raise NotALogError(errno.ENOTDIR, "one log, expected a directory of logs: open it with Log", str(path))
    if KSTORE_TOPICS not in names and any(map(MANIFEST.fullmatch, names)):
        raise NotALogError(
            errno.ENOTDIR,
            "backups, expected a directory of logs: read them with kstore.open(..., read_only=True), or restore one",
            str(path),
        )


def ensure_store(fs: FileSystem, path: Path) -> None:
    """Raises: LogNotFoundError if ``path`` does not exist, or holds neither a log nor a file of a store; as
    ``ensure_root``."""
    if fs.exists(path):
        ensure_root(fs, path)
        names = fs.list(path)
        if not (OWN_NAMES - {LOCK}).isdisjoint(names) or any(map(topic_partition, names)):
            return
    raise LogNotFoundError(errno.ENOENT, "there is no store", str(path))


def ensure_unused(fs: FileSystem, path: Path) -> None:
    """Called where no store was yet. Raises: NotALogError if other programs' files are there, and no log."""
    names = fs.list(path)
    if not (OWN_NAMES - {LOCK}).isdisjoint(names) or any(
        topic_partition(one) or marked_topic_partition(one) for one in names
    ):
        return
    # What is hidden says nothing about what a directory is for, and a new disk has the directory for lost files.
    foreign = sorted(name for name in names if not name.startswith(".") and name != "lost+found")
    foreign = [name for name in foreign if not name.endswith((TEMPORARY_SUFFIX, DAMAGED_TOPICS))]
    if foreign:
        held = ", ".join(foreign[:3])
        raise NotALogError(errno.ENOTDIR, f"not a directory of logs: it holds {held}, and no log", str(path))


class RootContents:
    """The topics and directories of a root, read once. Not changed afterwards.

    Damaged topics are set aside, so that their settings can be looked up, unless the root is only read.
    """

    def __init__(self, fs: FileSystem, path: Path, *, read_only: bool) -> None:
        """Raises: UnsupportedFormatError, StorageError."""
        self._fs = fs
        self._path = path
        self._read_only = read_only
        # What a person should know of the contents.
        self.notes: list[str] = []
        # The entries of topics are lost, or were when the store was last open.
        self.entries_lost: bool = False
        # The directories of deleted topics.
        self.deleted: list[str] = []
        # Names that kstore does not own.
        self.ignored: list[str] = []
        # The names of partitions that are links to nothing.
        self.broken: list[str] = []
        entries, found = self._read_topics(), self._listed()
        while not self.entries_lost and (unknown := found.keys() - entries.keys()):
            late = self._read_topics()
            if unknown.isdisjoint(late):
                break
            # Another process has just created one. It makes the directories before the entry says that all exist, so
            # they are listed after the entry is read: else a topic would seem to lack those that came in between.
            entries, found = late, self._listed()
        self._note_lost_partitions(entries, found)
        for name in self.broken:
            self._note(f"{name} is a symbolic link that leads to no directory")
        for topic in sorted(found.keys() - entries.keys()):
            entries[topic] = self._adopted(topic, found[topic])
        for topic, entry in entries.items():
            if entry.settings_lost:
                self._note(f"topic {topic} has lost its settings: nothing of it is deleted until it is altered")
        self.topics: Mapping[str, TopicEntry] = entries
        self.partitions: Mapping[str, tuple[int, ...]] = {
            topic: tuple(sorted(numbers)) for topic, numbers in found.items()
        }

    def _listed(self) -> dict[str, list[int]]:
        """The partitions that have a directory, by topic."""
        found: dict[str, list[int]] = {}
        self.deleted, ignored = [], []
        names = self._fs.list(self._path)
        owners = {name: owner for name in names if (owner := topic_partition(name)) and owner.topic != METADATA_TOPIC}
        directories = directories_in(self._fs, self._path, owners)
        self.broken = directories.broken
        there = set(directories.names)
        for name in names:
            if name in there:
                owner = owners[name]
                found.setdefault(owner.topic, []).append(owner.partition)
            elif (going := marked_topic_partition(name)) is not None and going[1] == DELETE_MARK:
                self.deleted.append(name)
            elif name not in OWN_NAMES and not name.endswith(TEMPORARY_SUFFIX):
                ignored.append(name)
        self.ignored = sorted(ignored)
        return found

    def _note(self, text: str) -> None:
        self.notes.append(text)
        if not self._read_only:
            logger.warning("%s: %s", self._path, text)

    def _note_lost_partitions(self, entries: Mapping[str, TopicEntry], found: Mapping[str, Sequence[int]]) -> None:
        for topic, entry in entries.items():
            lost = sorted(set(range(entry.made)) - set(found.get(topic, ())))
            if lost and not entry.deleting:
                self._note(f"topic {topic} has lost its partitions {', '.join(map(str, lost[:10]))}")

    def _adopted(self, topic: str, partitions: Sequence[int]) -> TopicEntry:
        """The entry of a topic that a broker or a lone log has created."""
        try:
            path = self._path / str(TopicPartition(topic, min(partitions))) / PARTITION_METADATA
            topic_id = read_topic_id(self._fs, path)
        except (CorruptFileError, StorageError):
            topic_id = None
        count = max(partitions) + 1
        if self.entries_lost:
            # The store's settings may delete what the topic's own have kept.
            return TopicEntry(count, count, topic_id, KEEP_EVERYTHING, settings_lost=True)
        return TopicEntry(count, count, topic_id)

    def _read_topics(self) -> dict[str, TopicEntry]:
        path = self._path / KSTORE_TOPICS
        self.entries_lost = False
        try:
            return decode_topics(read_small_file(self._fs, path, TOPICS_SIZE_MAX), path)
        except FileNotFoundError:
            # A crash came between setting it aside and rewriting it.
            self.entries_lost = self._fs.exists(self._path / DAMAGED_TOPICS)
            return {}
        except UnsupportedFormatError:
            raise
        except CorruptFileError as error:
            self.entries_lost = True
            self._note(f"{KSTORE_TOPICS} is damaged, the topics are those that have directories: {error.reason}")
            if not self._read_only:
                # Kept so that the old settings can be looked up.
                self._fs.rename(path, self._path / DAMAGED_TOPICS)
                self._fs.sync_dir(self._path)
            return {}


def was_closed_cleanly(fs: FileSystem, path: Path, *, if_never_opened: bool) -> bool:
    """Whether ``kstore.state`` shows that the log at ``path`` was closed cleanly, so that opening it scans nothing.

    ``if_never_opened`` is the answer for a log that kstore has not opened yet, if it has segments.
    Raises: UnsupportedFormatError, StorageError.
    """
    names = classify(fs.list(path))
    bases = names.bases[LOG_SUFFIX]
    if KSTORE_STATE not in names.others:
        return not bases or if_never_opened
    state = read_state(fs, path / KSTORE_STATE)
    if state is None or not bases:
        return False
    return state.fits(bases[-1], fs.stat(path / segment_name(bases[-1], LOG_SUFFIX)))


def segment_ages(fs: FileSystem, path: Path) -> list[SegmentAge]:
    """The segments of the log at ``path``, by their files; ignores the records' times, and where the last one ends."""
    bases = classify(fs.list(path)).bases[LOG_SUFFIX]
    ages = []
    for base, stop_offset in zip(bases, [*bases[1:], OFFSET_MAX], strict=False):
        try:
            stat = fs.stat(path / segment_name(base, LOG_SUFFIX))
        except FileNotFoundError:
            continue  # it has just been deleted
        ages.append(SegmentAge(stop_offset, stat.size, NO_TIMESTAMP, stat.mtime_ns // 1_000_000))
    return ages
