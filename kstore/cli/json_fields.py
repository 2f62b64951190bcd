"""JSON for programs: one name for one thing in all commands. docs/commands.schema.json lists every name.

A name of an earlier release stays along with the new one until the next minor release: ``OLD_NAMES`` has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from kstore.files.paths import topic_partition
from kstore.types import CorruptRange
from kstore.upkeep.stat_fields import with_old_names

# By command: the new name, and the one that an earlier release printed.
OLD_NAMES: dict[str, dict[str, str]] = {
    "checkpoints": {"start_offset": "log_start"},
    "delete-records": {"start_offset": "low_watermark"},
    # What a group can read ends at the high watermark.
    "groups": {"high_watermark": "end_offset"},
    "perf": {"record_count": "records", "failed_count": "failed", "size": "bytes"},
    "producers": {"first_offset": "transaction_start"},
    "stats": {"log_count": "logs"},
    "topics": {"partition_count": "partitions"},
    "verify": {
        "segment_count": "segments",
        "batch_count": "batches",
        "record_count": "records",
        "size": "bytes",
        "start_offset": "start",
        "last_stable_offset": "stable",
        "end_offset": "end",
        "damage_count": "damage",
        "note_count": "notes",
    },
}


def old_names(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` with the names of an earlier release of ``command`` after them."""
    return with_old_names(fields, OLD_NAMES[command])


def owner_fields(name: str) -> dict[str, Any]:
    """``topic``, and ``partition`` as a number, of a directory with this name; nothing for other names."""
    owner = topic_partition(name)
    return {} if owner is None else owner._asdict()


def log_fields(path: str | PurePath) -> dict[str, Any]:
    """``log``, its path, with its ``owner_fields``."""
    return {"log": str(path), **owner_fields(PurePath(path).name)}


def damage_fields(damage: Iterable[CorruptRange]) -> list[dict[str, Any]]:
    """Each damaged place, with the first and the last of its offsets."""
    return [
        {"path": lost.path, "first": lost.first, "last": lost.last, "position": lost.position, "reason": lost.reason}
        for lost in damage
    ]
