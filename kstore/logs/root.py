"""A directory of many logs, laid out like a Kafka broker's: the contents of its root, except the logs themselves.

    .lock                        held by the one store, or broker, that writes
    meta.properties              ids; a broker's is kept
    kstore.topics                the topics and their settings (rules/topics); decides whether one exists
    kstore.producer-ids          which producer ids may have been assigned (transactions/producer_ids)
    <topic>-<partition>          a log, with the topic's id in partition.metadata
    *-offset-checkpoint          for a broker, and for its logs that kstore has not opened yet
    .kafka_cleanshutdown         exists only while no writer is open, and only if all logs were closed cleanly
    <topic>-<p>.<hex>-delete     a deleted topic's, until it is removed

``kstore.topics`` decides whether a topic exists. kstore owns no other name in the directory: it leaves such names
alone, and lists them.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kstore.clock import Clock
from kstore.engine.opening import ensure_directory, is_log
from kstore.errors import (
    CorruptFileError,
    NotALogError,
    StorageError,
    UnsupportedFormatError,
)
from kstore.files.checkpoint import (
    read_offset_checkpoint,
    read_small_file,
    read_topic_id,
)
from kstore.files.fs import FileSystem
from kstore.files.paths import (
    CHECKPOINTS,
    CLEAN_SHUTDOWN,
    DELETE_MARK,
    KSTORE_STATE,
    LOCK,
    LOG_START_OFFSETS,
    LOG_SUFFIX,
    META_PROPERTIES,
    METADATA_TOPIC,
    PARTITION_METADATA,
    PRODUCER_IDS,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    TopicPartition,
    classify,
    marked_topic_partition,
    segment_name,
    topic_partition,
)
from kstore.rules.retain import SegmentAge
from kstore.rules.topics import (
    KEEP_EVERYTHING,
    KSTORE_TOPICS,
    TOPICS_SIZE_MAX,
    TopicEntry,
    decode_topics,
)
from kstore.state.kafka_marks import KafkaMarks
from kstore.state.log_state import read_state
from kstore.types import NO_TIMESTAMP, OFFSET_MAX

__all__ = ["LogRoot"]

logger = logging.getLogger(__name__)

OWN_NAMES = frozenset({LOCK, META_PROPERTIES, KSTORE_TOPICS, PRODUCER_IDS, CLEAN_SHUTDOWN, *CHECKPOINTS})
DAMAGED_TOPICS = KSTORE_TOPICS + ".damaged"

Checkpoints = dict[str, dict[TopicPartition, int]]


class LogRoot:
    """The contents of a store's root, as last read. Thread-safe.

    ``topics`` and ``partitions`` are replaced as a whole when they change, so they may be read without a lock.
    """

    def __init__(self, fs: FileSystem, path: Path, clock: Clock, *, read_only: bool) -> None:
        self.fs = fs
        self.path = path
        self.clock = clock
        self.read_only = read_only
        self.topics: Mapping[str, TopicEntry] = {}
        self.partitions: Mapping[str, tuple[int, ...]] = {}
        self.ignored: list[str] = []
        self.notes: list[str] = []
        self.was_clean = False
        # The entries of topics are lost, or were when the store was last open.
        self._entries_lost = False
        # Guards every change of the root's contents.
        self._mutex = threading.RLock()
        self._marked: list[str] = []
        # As stored in the files.
        self._checkpoints: Checkpoints = {}

    def _ensure_store(self) -> None:
        ensure_directory(self.fs, self.path)
        if is_log(classify(self.fs.list(self.path))):
            raise NotALogError(errno.ENOTDIR, "one log, expected a directory of logs: open it with Log", str(self.path))

    def look(self) -> None:
        """Reads the directory again. Raises: LogNotFoundError, NotALogError, StorageError."""
        fs = self.fs
        if self.read_only:
            self._ensure_store()
        with self._mutex:
            self.notes = []
            entries = self._read_topics()
            names = fs.list(self.path)
            found: dict[str, list[int]] = {}
            marked: list[str] = []
            ignored: list[str] = []
            for name in names:
                owner = topic_partition(name)
                if owner is not None and owner.topic != METADATA_TOPIC and self._is_directory(name):
                    found.setdefault(owner.topic, []).append(owner.partition)
                elif (going := marked_topic_partition(name)) is not None and going[1] == DELETE_MARK:
                    marked.append(name)
                elif name not in OWN_NAMES and not name.endswith(TEMPORARY_SUFFIX):
                    ignored.append(name)
            if not (self._entries_lost or found.keys() <= entries.keys()):
                # Another process writes an entry first, and it is read first here: so what it describes exists now.
                late = self._read_topics()
                entries |= {topic: late[topic] for topic in found.keys() - entries.keys() if topic in late}
            for topic, entry in entries.items():
                lost = sorted(set(range(entry.made)) - set(found.get(topic, ())))
                if lost and not entry.deleting:
                    self._note(f"topic {topic} has lost its partitions {', '.join(map(str, lost[:10]))}")
            for topic in sorted(found.keys() - entries.keys()):
                entries[topic] = self._adopted(topic, found[topic])
            for topic, entry in entries.items():
                if entry.settings_lost:
                    self._note(f"topic {topic} has lost its settings: nothing of it is deleted until it is altered")
            self._marked = marked
            self.ignored = sorted(ignored)
            self.topics = entries
            self.partitions = {topic: tuple(sorted(numbers)) for topic, numbers in found.items()}

    def _note(self, text: str) -> None:
        self.notes.append(text)
        if not self.read_only:
            logger.warning("%s: %s", self.path, text)

    def _is_directory(self, name: str) -> bool:
        try:
            return self.fs.stat(self.path / name).is_dir
        except FileNotFoundError:
            return False

    def _adopted(self, topic: str, partitions: Sequence[int]) -> TopicEntry:
        """The entry of a topic that a broker or a lone log has created."""
        try:
            path = self.path / str(TopicPartition(topic, min(partitions))) / PARTITION_METADATA
            topic_id = read_topic_id(self.fs, path)
        except (CorruptFileError, StorageError):
            topic_id = None
        count = max(partitions) + 1
        if self._entries_lost:
            # The store's settings may delete what the topic's own have kept.
            return TopicEntry(count, count, topic_id, KEEP_EVERYTHING, settings_lost=True)
        return TopicEntry(count, count, topic_id)

    def _read_topics(self) -> dict[str, TopicEntry]:
        path = self.path / KSTORE_TOPICS
        self._entries_lost = False
        try:
            return decode_topics(read_small_file(self.fs, path, TOPICS_SIZE_MAX), path)
        except FileNotFoundError:
            # A crash came between setting it aside and rewriting it.
            self._entries_lost = self.fs.exists(self.path / DAMAGED_TOPICS)
            return {}
        except UnsupportedFormatError:
            raise
        except CorruptFileError as error:
            self._entries_lost = True
            self._note(f"{KSTORE_TOPICS} is damaged, the topics are those that have directories: {error.reason}")
            if not self.read_only:
                # Kept so that the old settings can be looked up.
                self.fs.rename(path, self.path / DAMAGED_TOPICS)
                self.fs.sync_dir(self.path)
            return {}

    def numbers(self, topic: str) -> tuple[int, ...]:
        """The usable partitions of a topic: those that exist, completely created."""
        entry = self.topics.get(topic)
        if entry is None or entry.deleting:
            return ()
        making = range(entry.made, entry.partitions)
        return tuple(number for number in self.partitions.get(topic, ()) if number not in making)

    def owners(self) -> list[TopicPartition]:
        """Every usable partition."""
        return [TopicPartition(name, number) for name in self.topics for number in self.numbers(name)]

    def partition_path(self, owner: TopicPartition) -> Path:
        return self.path / str(owner)

    def is_used(self, topic: str) -> bool:
        """Whether the topic was created here, or one of its logs written to; otherwise it is as a broker left it."""
        entry = self.topics.get(topic)
        if entry is None or entry.settings:
            return entry is not None
        paths = (self.partition_path(TopicPartition(topic, number)) / KSTORE_STATE for number in self.numbers(topic))
        return any(map(self.fs.exists, paths))

    def is_clean(self, owner: TopicPartition) -> bool:
        """Whether the log of a partition is known to be cleanly closed, so that opening it scans nothing."""
        try:
            return self._is_clean(owner)
        except (StorageError, UnsupportedFormatError):
            return False  # opening it reports the error

    def _is_clean(self, owner: TopicPartition) -> bool:
        fs, path = self.fs, self.partition_path(owner)
        names = classify(fs.list(path))
        bases = names.bases[LOG_SUFFIX]
        if KSTORE_STATE not in names.others:
            return not bases or (self.was_clean and owner in self._checkpoints[RECOVERY_POINTS])
        state = read_state(fs, path / KSTORE_STATE)
        if state is None or not bases:
            return False
        return state.fits(bases[-1], fs.stat(path / segment_name(bases[-1], LOG_SUFFIX)))

    def segment_ages(self, owner: TopicPartition) -> list[SegmentAge]:
        """The segments of a log, by their files; ignores the records' times, and where the last one ends."""
        fs, path = self.fs, self.partition_path(owner)
        bases = classify(fs.list(path)).bases[LOG_SUFFIX]
        ages = []
        for base, stop_offset in zip(bases, [*bases[1:], OFFSET_MAX], strict=False):
            try:
                stat = fs.stat(path / segment_name(base, LOG_SUFFIX))
            except FileNotFoundError:
                continue  # it has just been deleted
            ages.append(SegmentAge(stop_offset, stat.size, NO_TIMESTAMP, stat.mtime_ns // 1_000_000))
        return ages

    def marks(self, owner: TopicPartition) -> KafkaMarks:
        """The contents of the store's files about a log when it was opened."""
        points, starts = self._checkpoints[RECOVERY_POINTS], self._checkpoints[LOG_START_OFFSETS]
        return KafkaMarks(self.was_clean, points.get(owner), starts.get(owner))

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offset_checkpoint(self.fs, self.path / name)
        except CorruptFileError as error:
            self._note(f"{name} is ignored: {error.reason}")
            return {}
