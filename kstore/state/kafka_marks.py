"""What Kafka's own files beside a partition's directory say about it: the checkpoints and the store's clean marker."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CorruptFileError, StorageError
from kstore.files.checkpoint import read_offset_checkpoint
from kstore.files.fs import FileSystem
from kstore.files.paths import CLEAN_SHUTDOWN, LOG_START_OFFSETS, RECOVERY_POINTS, topic_partition

__all__ = ["KafkaMarks", "forget_clean_shutdown", "read_kafka_marks"]

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

    def offset_in(name: str) -> int | None:
        try:
            return read_offset_checkpoint(fs, store / name).get(owner)
        except (CorruptFileError, StorageError) as error:
            logger.warning("%s: ignored: %s", store / name, error)
            return None

    return KafkaMarks(fs.exists(store / CLEAN_SHUTDOWN), offset_in(RECOVERY_POINTS), offset_in(LOG_START_OFFSETS))


def forget_clean_shutdown(fs: FileSystem, directory: Path) -> None:
    """Removes the store's clean marker, durably: the partition in ``directory`` is about to change.

    A broker that finds the marker assumes that every log beside it is whole, and checks none. Raises: StorageError.
    """
    if topic_partition(directory.name) is None or not fs.exists(directory.parent / CLEAN_SHUTDOWN):
        return
    fs.unlink(directory.parent / CLEAN_SHUTDOWN)
    fs.sync_dir(directory.parent)
    logger.info("%s: removed, since a log beside it changes", directory.parent / CLEAN_SHUTDOWN)
