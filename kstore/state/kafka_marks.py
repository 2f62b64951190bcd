"""What Kafka's own files next to a partition's directory say about it: the checkpoints and the store's clean marker."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CorruptFileError, StorageError
from kstore.files.checkpoint import read_offset_checkpoint
from kstore.files.fs import FileSystem
from kstore.files.paths import CLEAN_SHUTDOWN, LOG_START_OFFSETS, RECOVERY_POINTS, TopicPartition, topic_partition

logger = logging.getLogger(__name__)


class KafkaMarks(NamedTuple):
    """``clean``: the store was closed cleanly. Offsets are None if no checkpoint names the partition."""

    clean: bool = False
    recovery_point: int | None = None
    log_start_offset: int | None = None


def read_kafka_marks(fs: FileSystem, directory: Path) -> KafkaMarks:
    """The marks for the partition in ``directory``; a checkpoint that cannot be read counts as absent (LogManager)."""
    owner = topic_partition(directory.name)
    if owner is None:
        return KafkaMarks()
    store = directory.parent
    clean = fs.exists(store / CLEAN_SHUTDOWN)
    return KafkaMarks(clean, _offsets(fs, store / RECOVERY_POINTS).get(owner), read_log_starts(fs, store).get(owner))


def read_log_starts(fs: FileSystem, store: Path) -> dict[TopicPartition, int]:
    """The log starts that the store's checkpoint names; empty if it cannot be read."""
    return _offsets(fs, store / LOG_START_OFFSETS)


def _offsets(fs: FileSystem, path: Path) -> dict[TopicPartition, int]:
    try:
        return read_offset_checkpoint(fs, path)
    except (CorruptFileError, StorageError) as error:
        logger.warning("%s: ignored: %s", path, error)
        return {}


def remote_start(stored: int | None, first_base: int, *, has_state: bool) -> int | None:
    """Where the topic starts if its records below ``first_base``, the first local segment, are in remote storage.

    A broker stores a log start below the first segment only if it keeps older records there. With ``kstore.state``,
    kstore's own start counts.
    """
    return None if has_state or stored is None or stored >= first_base else stored


def elsewhere(start: int, first_base: int) -> str:
    """What ``remote_start`` means for the user."""
    return (
        f"records from offset {start} to {first_base - 1} are elsewhere: the topic starts there, as"
        f" {LOG_START_OFFSETS} says, but the first local segment does not (tiered storage)"
    )


def forget_clean_shutdown(fs: FileSystem, directory: Path) -> None:
    """Removes the store's clean marker, durably: the partition in ``directory`` is about to change.

    A broker that finds the marker assumes that every log next to it is whole, and checks none. Raises: StorageError.
    """
    if topic_partition(directory.name) is None or not fs.exists(directory.parent / CLEAN_SHUTDOWN):
        return
    fs.unlink(directory.parent / CLEAN_SHUTDOWN)
    fs.sync_dir(directory.parent)
    logger.info("%s: removed, since a log next to it changes", directory.parent / CLEAN_SHUTDOWN)
