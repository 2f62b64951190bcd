"""The settings of one log: Kafka's topic settings in snake_case, typed and checked.

A setting is a field of ``LogConfig`` and a row of ``RULES``; ``settings()`` gives both as one table, which the
documentation prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from kstore.errors import ConfigError
from kstore.setting_rules import (
    COUNT,
    GIB,
    KIB,
    MIB,
    NO_LIMIT,
    SIZE,
    TIME,
    UNLIMITED,
    Rule,
    Setting,
    changed,
    gzip_level,
    one_of,
    or_none,
    parse_fields,
    parse_size,
    resolved,
    table,
    whole,
    within,
)
from kstore.types import CREATE_TIME, INT32_MAX, LOG_APPEND_TIME, TimestampType

__all__ = [
    "NO_LIMIT",
    "CleanupPolicy",
    "CompressionType",
    "LogConfig",
    "Setting",
    "StoreConfig",
    "parse_size",
    "settings",
    "store_settings",
]

CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
CleanupPolicy = Literal["delete", "compact", "compact,delete"]

# Kafka 4 requires 1 MiB; here a log of a few hundred records is fine. A smaller segment costs more than it holds.
SEGMENT_BYTES_MIN = KIB
# The time index reserves one of its 12-byte slots for the entry of the roll, and needs one for an earlier entry.
SEGMENT_INDEX_BYTES_MIN = 24
# The largest memory of a compaction's map of keys; 24 bytes a key (Kafka: log.cleaner.dedupe.buffer.size).
MAP_BYTES = 128 << 20
# A batch header and one record with neither key nor value; a test makes that batch.
BATCH_BYTES_MIN = 68
# Neither the owner nor a broker could work with files that they cannot both read and write.
FILE_MODE_MIN, FILE_MODE_MAX = 0o600, 0o777
# Digits are bounded, so that a hostile setting cannot make the conversion slow.
OCTAL = re.compile(r"(?:0o)?[0-7]{1,4}", re.ASCII)

COMPRESSION_TYPES: tuple[CompressionType, ...] = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
CLEANUP_POLICIES: tuple[CleanupPolicy, ...] = ("delete", "compact", "compact,delete")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A log's settings. Immutable; every value is checked, however the object is made.

    Sizes are bytes, times ms; both also accept text with a unit ("64MiB", "7d"), times also a timedelta. ``RULES``
    describes each setting. Raises ConfigError for an invalid value.
    """

    segment_bytes: int = GIB
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    flush_messages: int = UNLIMITED
    flush_ms: int = 1000
    max_message_bytes: int = MIB + 12
    compression_type: CompressionType = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: TimestampType = CREATE_TIME
    message_timestamp_before_max_ms: int = UNLIMITED
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: CleanupPolicy = "delete"
    retention_ms: int = NO_LIMIT
    retention_bytes: int = NO_LIMIT
    retention_groups: tuple[str, ...] = ()
    file_delete_delay_ms: int = 0
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNLIMITED
    delete_retention_ms: int = 86_400_000
    producer_id_expiration_ms: int = 86_400_000
    file_mode: int = 0o600
    max_batch_bytes_uncompressed: int = 64 * MIB
    open_files_max: int = 256

    def __repr__(self) -> str:
        return changed(self)

    def __post_init__(self) -> None:
        parse_fields(self, RULES)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                f"min_compaction_lag_ms is {self.min_compaction_lag_ms}, expected at most max_compaction_lag_ms, "
                f"{self.max_compaction_lag_ms}"
            )

    @classmethod
    def from_settings(cls, **settings: Any) -> LogConfig:
        """The configuration with ``settings`` in place of the defaults.

        Kafka's dotted names (``**{"segment.bytes": 1 << 20}``) are accepted too. Raises ConfigError for a setting that
        does not exist, with the nearest one that does, and as the constructor.
        """
        return cls(**resolved(settings, RULES, hints=HINTS))

    @property
    def is_compacted(self) -> bool:
        """Whether the log keeps the last value of each key, and so needs a key in every record."""
        return "compact" in self.cleanup_policy

    def target_codec(self, source_codec: str) -> str:
        """The codec in which a batch that arrived in ``source_codec`` is stored."""
        return {"producer": source_codec, "uncompressed": "none"}.get(self.compression_type, self.compression_type)

    def compression_level(self, codec: str) -> int | None:
        """The level for a codec's name, None for one without levels."""
        level: int | None = getattr(self, f"compression_{codec}_level", None)
        return level


def settings() -> tuple[Setting, ...]:
    """Every setting, in the order of ``LogConfig``."""
    return table(LogConfig(), RULES)


# --- how values are parsed --------------------------------------------------------------------------------------------


def _mode(value: object) -> int:
    if isinstance(value, str):
        if OCTAL.fullmatch(value) is None:
            raise ValueError
        value = int(value.removeprefix("0o"), 8)
    mode = whole(value)
    if mode & FILE_MODE_MIN != FILE_MODE_MIN or mode & ~FILE_MODE_MAX:
        raise ValueError
    return mode


def _policy(value: object) -> object:
    """Kafka's setting is a list, whose order does not matter."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        raise TypeError
    return ",".join(sorted({part.strip() if isinstance(part, str) else "" for part in parts}))


def _groups(value: object) -> tuple[str, ...]:
    names = [name for name in value.split(",") if name] if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        raise TypeError
    groups = set(names)
    if not all(isinstance(name, str) and name for name in groups):
        raise ValueError
    return tuple(sorted(groups))


def _ratio(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    ratio = float(value)
    if not 0 <= ratio <= 1:
        raise ValueError
    return ratio


# In the order of LogConfig; the bounds are Kafka's unless noted.
RULES: dict[str, Rule] = {
    "segment_bytes": within(
        SEGMENT_BYTES_MIN, INT32_MAX, SIZE, "segment.bytes",
        "The largest size of a segment; a batch that does not fit starts a new one.",
    ),
    "segment_ms": within(
        1, UNLIMITED, TIME, "segment.ms",
        "The longest time that a segment spans, by its records or, when idle, by the clock; then a new one starts.",
    ),
    "segment_jitter_ms": within(
        0, UNLIMITED, TIME, "segment.jitter.ms",
        "segment_ms is shortened by a random time below this, so that many logs do not roll at once.",
    ),
    "segment_index_bytes": within(
        SEGMENT_INDEX_BYTES_MIN, INT32_MAX, SIZE, "segment.index.bytes",
        "A segment with an index of this size is full. Indexes grow to it; nothing is allocated ahead.",
    ),
    "index_interval_bytes": within(
        0, INT32_MAX, SIZE, "index.interval.bytes", "The least number of bytes of log between two index entries."
    ),
    "flush_messages": within(
        1, UNLIMITED, COUNT, "flush.messages", "An append syncs when this many records are not known to be on disk.",
        or_never=True,
    ),
    "flush_ms": within(
        1, UNLIMITED, TIME, "flush.ms",
        "With durability 'interval', records are on disk at most this long after their append."
    ),
    "max_message_bytes": within(
        BATCH_BYTES_MIN, INT32_MAX, SIZE, "max.message.bytes", "The largest accepted batch, its header included."
    ),
    "compression_type": one_of(
        COMPRESSION_TYPES, "compression.type", "The codec of stored batches; 'producer' keeps the original one."
    ),
    "compression_gzip_level": within(
        -1, 9, (gzip_level, "an int other than 0"), "compression.gzip.level",
        "The gzip level; -1 is the library's default.",
    ),
    "compression_lz4_level": within(
        1, 17, COUNT, "compression.lz4.level", "The lz4 level; 9 uses the fast compressor, all others the thorough one."
    ),
    "compression_zstd_level": within(-131_072, 22, COUNT, "compression.zstd.level", "The zstd level."),
    "message_timestamp_type": one_of(
        (CREATE_TIME, LOG_APPEND_TIME), "message.timestamp.type",
        "Whether records keep their creation times, or get the time of their append.",
    ),
    "message_timestamp_before_max_ms": within(
        0, UNLIMITED, TIME, "message.timestamp.before.max.ms",
        "A record with a time further in the past than this is refused.", or_never=True,
    ),
    "message_timestamp_after_max_ms": within(
        0, UNLIMITED, TIME, "message.timestamp.after.max.ms",
        "A record with a time further in the future than this is refused.", or_never=True,
    ),
    "cleanup_policy": one_of(
        CLEANUP_POLICIES, "cleanup.policy",
        "How space is freed: by deleting old segments, or by compacting; then each record needs a key.",
        convert=_policy,
    ),
    "retention_ms": or_none(
        TIME, "retention.ms",
        "Segments whose records are all older may be deleted; -1, the default, keeps them forever.",
    ),
    "retention_bytes": or_none(
        SIZE, "retention.bytes",
        "The oldest segments may be deleted while the log holds more than this; -1, the default, is no limit.",
    ),
    "retention_groups": Rule(
        "", _groups, "names of groups, as a sequence or with commas between them",
        "Keeps everything that one of these groups has not committed, whatever its age and size; only in a store.",
    ),
    "file_delete_delay_ms": within(
        0, UNLIMITED, TIME, "file.delete.delay.ms",
        "Deleted segments keep their space, under another name, for this long, so that their readers can finish. "
        "In a store the default is 60,000.",
    ),
    "min_cleanable_dirty_ratio": Rule(
        "min.cleanable.dirty.ratio", _ratio, "a number from 0 to 1",
        "A log is compacted when more than this share of its sealed bytes is not compacted yet.",
    ),
    "min_compaction_lag_ms": within(
        0, UNLIMITED, TIME, "min.compaction.lag.ms", "Records younger than this are not compacted."
    ),
    "max_compaction_lag_ms": within(
        1, UNLIMITED, TIME, "max.compaction.lag.ms",
        "A log with a record that waits for longer than this is compacted, however clean it is.", or_never=True,
    ),
    "delete_retention_ms": within(
        0, UNLIMITED, TIME, "delete.retention.ms",
        "Tombstones and the ends of transactions stay for this long after the first compaction that finds them.",
        or_never=True,
    ),
    "producer_id_expiration_ms": within(
        1, UNLIMITED, TIME, "producer.id.expiration.ms",
        "A producer that has written nothing for this long, by its batches' times, is forgotten.",
    ),
    "file_mode": Rule(
        "", _mode, "a mode as an int or like '0640', from 0o600 to 0o777", "The mode of new files."
    ),
    "max_batch_bytes_uncompressed": within(
        KIB, INT32_MAX, SIZE, "",
        "A batch that decompresses to more is refused when appended, and counts as damaged when read.",
    ),
    "open_files_max": within(1, INT32_MAX, COUNT, "", "Segments whose files are kept open for reading."),
}  # fmt: skip
assert tuple(RULES) == tuple(row.name for row in fields(LogConfig))

# What to use for settings of Kafka's brokers and of other libraries.
HINTS = {
    "codec": "use compression_type=",
    "compression": "use compression_type=",
    "config": "give each setting as an argument, such as retention_ms='7d'",
    "configs": "give each setting as an argument, such as retention_ms='7d'",
    "flush_interval_ms": "use flush_ms=",
    "fsync": "use durability='sync', 'interval' or 'os'",
    "log_dir": "give the directory as the first argument",
    "log_dirs": "give the directory as the first argument",
    "log_retention_hours": "use retention_ms=",
    "log_retention_minutes": "use retention_ms=",
    "log_roll_hours": "use segment_ms=",
    "log_roll_ms": "use segment_ms=",
    "max_bytes": "use retention_bytes= to limit a log, max_message_bytes= to limit a batch",
    "max_segment_size": "use segment_bytes=",
    "max_size": "use retention_bytes= to limit a log, max_message_bytes= to limit a batch",
    "min_insync_replicas": "kstore keeps one copy of a log",
    "mode": "use read_only=True to open for reading",
    "num_partitions": "give create_topic its partitions=",
    "readonly": "use read_only=",
    "replication_factor": "kstore keeps one copy of a log",
    "retention": "use retention_ms= or retention_bytes=",
    "retention_hours": "use retention_ms=",
    "segment_size": "use segment_bytes=",
    "sync": "use durability='sync', 'interval' or 'os'",
}


# --- of a store -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store's settings besides those of its logs. Immutable and checked, like ``LogConfig``."""

    retention_bytes_total: int = NO_LIMIT
    retention_check_interval_ms: int = 300_000
    checkpoint_interval_ms: int = 60_000
    cleaner_interval_ms: int = 15_000
    cleaner_map_bytes: int = 128 * MIB
    cleaner_bytes_per_second: int = NO_LIMIT
    producer_check_interval_ms: int = 600_000
    initial_delay_ms: int = 30_000
    recovery_threads: int = 4

    def __repr__(self) -> str:
        return changed(self)

    def __post_init__(self) -> None:
        parse_fields(self, STORE_RULES)


def store_settings() -> tuple[Setting, ...]:
    """Every setting of a store itself, in the order of ``StoreConfig``."""
    return table(StoreConfig(), STORE_RULES)


STORE_RULES: dict[str, Rule] = {
    "retention_bytes_total": or_none(
        SIZE, "", "The oldest sealed segments of all logs are deleted while the store holds more than this; -1: never."
    ),
    "retention_check_interval_ms": within(
        1, UNLIMITED, TIME, "log.retention.check.interval.ms", "How often the store applies retention."
    ),
    "checkpoint_interval_ms": within(
        1, UNLIMITED, TIME, "log.flush.offset.checkpoint.interval.ms", "How often the checkpoints are written."
    ),
    "cleaner_interval_ms": within(
        1, UNLIMITED, TIME, "log.cleaner.backoff.ms", "How often the store looks for logs that are due for compaction."
    ),
    "cleaner_map_bytes": within(
        KIB, UNLIMITED, SIZE, "log.cleaner.dedupe.buffer.size",
        "The memory for the keys of a compaction, 24 bytes each; the rest waits for another pass.",
    ),
    "cleaner_bytes_per_second": or_none(
        SIZE, "log.cleaner.io.max.bytes.per.second",
        "A limit for the bytes per second that compactions read and write; -1 is no limit.",
    ),
    "producer_check_interval_ms": within(
        1, UNLIMITED, TIME, "producer.id.expiration.check.interval.ms",
        "How often the store looks for expired producers.",
    ),
    "initial_delay_ms": within(
        0, UNLIMITED, TIME, "log.initial.task.delay.ms", "Background work starts this long after the open."
    ),
    "recovery_threads": within(
        1, 1024, COUNT, "num.recovery.threads.per.data.dir", "How many logs an open recovers at the same time."
    ),
}  # fmt: skip
assert tuple(STORE_RULES) == tuple(row.name for row in fields(StoreConfig))
