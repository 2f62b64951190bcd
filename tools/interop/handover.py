"""Puts partition directories that kstore wrote in place of a stopped broker's own.

The broker's topics exist already, so that its cluster knows their names. A partition keeps the broker's
``partition.metadata``, which holds the topic's id; every other file comes from the given directory. The log start
offset, which kstore keeps inside the directory, goes into the checkpoint of the broker's root.

After a clean stop the root has a mark, and the broker trusts the files. Without the mark it recovers everything above
its checkpoint's recovery points; without a checkpoint, every segment.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import kstore
from tools.interop.broker import CLEAN_SHUTDOWN

PARTITION_METADATA = "partition.metadata"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
CHECKPOINT_VERSION = 0


def put_in_place(data: Path, directories: Mapping[str, Path], *, clean: bool) -> None:
    """Puts the files of ``directories`` (by topic) into the log directory ``data`` of a cleanly stopped broker.

    ``clean``: the broker opens them as after its own clean stop, else as after a crash. Raises: CorruptBatchError,
    before any change, if a log is damaged: a broker that recovers it deletes everything after the damage.
    """
    starts = {topic: whole_log_start(directory) for topic, directory in directories.items()}
    for topic, directory in directories.items():
        place = data / f"{topic}-0"
        for path in place.iterdir():
            if path.name != PARTITION_METADATA:
                path.unlink()
        for path in directory.iterdir():
            if path.is_file() and path.name != PARTITION_METADATA:
                shutil.copy2(path, place)
    lines = [str(CHECKPOINT_VERSION), str(len(starts)), *(f"{topic} 0 {start}" for topic, start in starts.items())]
    (data / LOG_START_CHECKPOINT).write_text("".join(f"{line}\n" for line in lines))
    if not clean:
        (data / CLEAN_SHUTDOWN).unlink()
        (data / RECOVERY_POINT_CHECKPOINT).unlink()


def whole_log_start(directory: Path) -> int:
    """The start offset of a log that can be read to its end. Raises: CorruptBatchError if it cannot."""
    with kstore.Log(directory, read_only=True) as log:
        for _ in log.read():
            pass
        return log.start_offset
