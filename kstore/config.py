"""The settings of one log: Kafka's topic settings in snake_case, typed and checked.

A setting is a field of ``LogConfig`` and a row of ``RULES``; ``settings()`` gives both as one table, which the
documentation prints.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from fractions import Fraction
from operator import index
from typing import Any, Literal, NamedTuple

from kstore.errors import ConfigError
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, TimestampType

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

# Positions in an index and sizes in a batch are 32-bit, so no segment and no batch can be larger.
INT32_MAX = 2**31 - 1
# "Never" for a time or a count, as in Kafka.
UNLIMITED = 2**63 - 1
# As Kafka writes "no limit" where 0 is a limit.
NO_LIMIT = -1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Kafka 4 asks for 1 MiB; a log of a few hundred records is fine here. Below this a segment costs more than it holds.
SEGMENT_BYTES_MIN = KIB
# The time index keeps one of its 12-byte slots for the entry of the roll, and needs one for an entry before that.
SEGMENT_INDEX_BYTES_MIN = 24
# A batch header and one record with neither key nor value.
BATCH_BYTES_MIN = 61 + 7
# Neither the owner nor a broker could work with files that they cannot both read and write.
FILE_MODE_MIN, FILE_MODE_MAX = 0o600, 0o777
# How alike a name must be to be offered in the place of an unknown one (difflib's ratio).
NEAR = 0.75

SIZE_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1 << 40,
}
TIME_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Digits are bounded, so that a hostile setting cannot make the conversion slow.
QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", re.ASCII)
OCTAL = re.compile(r"(?:0o)?[0-7]{1,4}", re.ASCII)

COMPRESSION_TYPES: tuple[CompressionType, ...] = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
CLEANUP_POLICIES: tuple[CleanupPolicy, ...] = ("delete", "compact", "compact,delete")


class Setting(NamedTuple):
    """One row of the table: ``kafka_name`` is "" for what Kafka does not have; ``expected`` says what is accepted."""

    name: str
    kafka_name: str
    default: object
    expected: str
    doc: str


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What one log is told. Immutable; every value is checked, whichever way the object is made.

    Sizes are bytes, times ms; both also read text with a unit ("64MiB", "7d"), times also a timedelta. What a setting
    does is said in ``RULES``. Raises ConfigError for a value that a setting cannot have.
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
    file_delete_delay_ms: int = 0
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNLIMITED
    delete_retention_ms: int = 86_400_000
    producer_id_expiration_ms: int = 86_400_000
    file_mode: int = 0o600
    max_batch_bytes_uncompressed: int = 64 * MIB
    open_files_max: int = 256

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            value = getattr(self, name)
            try:
                parsed = rule.parse(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{name} is {_shown(value)}, expected {rule.expected}") from None
            object.__setattr__(self, name, parsed)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                f"min_compaction_lag_ms is {self.min_compaction_lag_ms}, expected at most max_compaction_lag_ms, "
                f"{self.max_compaction_lag_ms}"
            )

    @classmethod
    def from_settings(cls, **settings: Any) -> LogConfig:
        """The configuration with ``settings`` in place of the defaults.

        Raises ConfigError for a setting that does not exist, with the nearest one that does, and as the constructor.
        """
        for name in settings:
            if name not in RULES:
                # Kafka's own spelling, segment.bytes, is as near as it can be.
                nearest = difflib.get_close_matches(name.replace(".", "_"), RULES, n=1, cutoff=NEAR)
                hint = f", did you mean {nearest[0]!r}?" if nearest else f": there are {', '.join(RULES)}"
                raise ConfigError(f"there is no setting {_shown(name)}{hint}")
        return cls(**settings)

    @property
    def is_compacted(self) -> bool:
        """Whether the log keeps the last value of each key, and so needs a key in every record."""
        return "compact" in self.cleanup_policy

    def target_codec(self, source_codec: str) -> str:
        """The codec in which a batch that came in ``source_codec`` is stored."""
        return {"producer": source_codec, "uncompressed": "none"}.get(self.compression_type, self.compression_type)

    def compression_level(self, codec: str) -> int | None:
        """The level for a codec's name, None for one without levels."""
        level: int | None = getattr(self, f"compression_{codec}_level", None)
        return level


def settings() -> tuple[Setting, ...]:
    """Every setting, in the order of ``LogConfig``."""
    defaults = LogConfig()
    return tuple(
        Setting(name, rule.kafka_name, getattr(defaults, name), rule.expected, rule.doc) for name, rule in RULES.items()
    )


# --- how values are read ----------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """How the value of one setting is read: ``parse`` raises TypeError or ValueError for what it cannot be."""

    kafka_name: str
    parse: Callable[[object], object]
    expected: str
    doc: str


def _int(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)  # type: ignore[arg-type]  # of other types it raises the TypeError that is wanted


def _quantity(value: str, units: Mapping[str, int]) -> int:
    match = QUANTITY.fullmatch(value.strip())
    if match is None or match[2] not in units:
        raise ValueError
    number = Fraction(match[1]) * units[match[2]]
    if number.denominator != 1:
        raise ValueError
    return number.numerator


def parse_size(text: str) -> int:
    """Bytes of a text like "64MiB". Raises: ValueError."""
    return _quantity(text, SIZE_UNITS)


def _size(value: object) -> int:
    return _quantity(value, SIZE_UNITS) if isinstance(value, str) else _int(value)


def _time(value: object) -> int:
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise ValueError
        return whole
    return _quantity(value, TIME_UNITS_MS) if isinstance(value, str) else _int(value)


def _gzip_level(value: object) -> int:
    level = _int(value)
    if level == 0:  # zlib's "stored", which Kafka does not take
        raise ValueError
    return level


def _mode(value: object) -> int:
    if isinstance(value, str):
        if OCTAL.fullmatch(value) is None:
            raise ValueError
        value = int(value.removeprefix("0o"), 8)
    mode = _int(value)
    if mode & FILE_MODE_MIN != FILE_MODE_MIN or mode & ~FILE_MODE_MAX:
        raise ValueError
    return mode


def _policy(value: object) -> object:
    """Kafka's setting is a list, whose order does not matter."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        raise TypeError
    return ",".join(sorted({part.strip() if isinstance(part, str) else "" for part in parts}))


def _ratio(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    ratio = float(value)
    if not 0 <= ratio <= 1:
        raise ValueError
    return ratio


def _same(value: object) -> object:
    return value


def _within(
    low: int, high: int, kind: tuple[Callable[[object], int], str], kafka_name: str, doc: str, *, or_never: bool = False
) -> Rule:
    """A number from ``low`` to ``high``; with ``or_never`` None stands for ``high``, which is "no limit"."""
    convert, what = kind

    def parse(value: object) -> int:
        number = high if value is None and or_never else convert(value)
        if not low <= number <= high:
            raise ValueError
        return number

    never = ", or None for no limit" if or_never else ""
    return Rule(kafka_name, parse, f"{what}, from {low} to {high}{never}", doc)


def _or_none(kind: tuple[Callable[[object], object], str], kafka_name: str, doc: str) -> Rule:
    """A number from 0 on, or -1 (None too) for no limit, as Kafka writes it."""
    convert, what = kind

    def parse(value: object) -> object:
        number = NO_LIMIT if value is None else convert(value)
        if not isinstance(number, int) or not NO_LIMIT <= number <= UNLIMITED:
            raise ValueError
        return number

    return Rule(kafka_name, parse, f"{what}, from 0 to {UNLIMITED}, or -1 for no limit", doc)


def _one_of(choices: Sequence[str], kafka_name: str, doc: str, *, convert: Callable[[object], object] = _same) -> Rule:
    def parse(value: object) -> object:
        chosen = convert(value)
        if not isinstance(chosen, str) or chosen not in choices:
            raise ValueError
        return chosen

    return Rule(kafka_name, parse, "one of " + ", ".join(map(repr, choices)), doc)


def _shown(value: object) -> str:
    """A value in an error message, cut to one short line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


SIZE = (_size, "bytes as an int or like '64MiB'")
TIME = (_time, "ms as an int or like '7d', '500ms', or a timedelta")
COUNT = (_int, "an int")

# In the order of LogConfig; the bounds are Kafka's where nothing else is said.
RULES: dict[str, Rule] = {
    "segment_bytes": _within(
        SEGMENT_BYTES_MIN, INT32_MAX, SIZE, "segment.bytes",
        "A segment is at most this large; what does not fit begins a new one.",
    ),
    "segment_ms": _within(
        1, UNLIMITED, TIME, "segment.ms",
        "A segment spans at most this much time, by its records or, when idle, by the clock; then a new one begins.",
    ),
    "segment_jitter_ms": _within(
        0, UNLIMITED, TIME, "segment.jitter.ms",
        "segment_ms is shortened by a random time below this, so that many logs do not roll at once.",
    ),
    "segment_index_bytes": _within(
        SEGMENT_INDEX_BYTES_MIN, INT32_MAX, SIZE, "segment.index.bytes",
        "A segment with an index of this size is full. Indexes grow to it; nothing is allocated ahead.",
    ),
    "index_interval_bytes": _within(
        0, INT32_MAX, SIZE, "index.interval.bytes", "Bytes of log, at least, between two index entries."
    ),
    "flush_messages": _within(
        1, UNLIMITED, COUNT, "flush.messages", "An append syncs when so many records are not known to be on disk.",
        or_never=True,
    ),
    "flush_ms": _within(
        1, UNLIMITED, TIME, "flush.ms",
        "With durability 'interval', records are on disk at most this long after their append."
    ),
    "max_message_bytes": _within(
        BATCH_BYTES_MIN, INT32_MAX, SIZE, "max.message.bytes", "The largest batch taken, its header included."
    ),
    "compression_type": _one_of(
        COMPRESSION_TYPES, "compression.type", "How batches are stored; 'producer' keeps the codec they came in."
    ),
    "compression_gzip_level": _within(
        -1, 9, (_gzip_level, "an int other than 0"), "compression.gzip.level", "gzip's level; -1 is the library's own."
    ),
    "compression_lz4_level": _within(
        1, 17, COUNT, "compression.lz4.level", "lz4's level; 9 is the fast compressor, all others the thorough one."
    ),
    "compression_zstd_level": _within(-131_072, 22, COUNT, "compression.zstd.level", "zstd's level."),
    "message_timestamp_type": _one_of(
        (CREATE_TIME, LOG_APPEND_TIME), "message.timestamp.type",
        "Whether a record has the time it was made with, or that of its append.",
    ),
    "message_timestamp_before_max_ms": _within(
        0, UNLIMITED, TIME, "message.timestamp.before.max.ms",
        "A record with a time further back than this is refused.", or_never=True,
    ),
    "message_timestamp_after_max_ms": _within(
        0, UNLIMITED, TIME, "message.timestamp.after.max.ms",
        "A record with a time further ahead than this is refused.", or_never=True,
    ),
    "cleanup_policy": _one_of(
        CLEANUP_POLICIES, "cleanup.policy",
        "How space comes back: from old segments, or from old values of a key, and then each record needs a key.",
        convert=_policy,
    ),
    "retention_ms": _or_none(
        TIME, "retention.ms",
        "Segments whose records are all older may be deleted; -1, the default, keeps them for ever.",
    ),
    "retention_bytes": _or_none(
        SIZE, "retention.bytes",
        "The oldest segments may be deleted while the log holds more than this; -1, the default, is no limit.",
    ),
    "file_delete_delay_ms": _within(
        0, UNLIMITED, TIME, "file.delete.delay.ms",
        "Deleted segments keep their space, under another name, for this long, so that whoever reads them goes on. "
        "In a store it is 60,000 where nothing else is said.",
    ),
    "min_cleanable_dirty_ratio": Rule(
        "min.cleanable.dirty.ratio", _ratio, "a number from 0 to 1",
        "A log is compacted when more than this share of its sealed bytes was not compacted yet.",
    ),
    "min_compaction_lag_ms": _within(
        0, UNLIMITED, TIME, "min.compaction.lag.ms", "Records younger than this are not compacted."
    ),
    "max_compaction_lag_ms": _within(
        1, UNLIMITED, TIME, "max.compaction.lag.ms",
        "A log with a record that waits for longer than this is compacted, however clean it is.", or_never=True,
    ),
    "delete_retention_ms": _within(
        0, UNLIMITED, TIME, "delete.retention.ms",
        "Tombstones and the ends of transactions stay for this long after the first compaction that meets them.",
        or_never=True,
    ),
    "producer_id_expiration_ms": _within(
        1, UNLIMITED, TIME, "producer.id.expiration.ms",
        "A producer that has written nothing for this long, by its batches' times, is forgotten.",
    ),
    "file_mode": Rule(
        "", _mode, "a mode as an int or like '0640', from 0o600 to 0o777", "The mode of new files."
    ),
    "max_batch_bytes_uncompressed": _within(
        KIB, INT32_MAX, SIZE, "", "A batch that decompresses to more is refused when appended, and damaged when read."
    ),
    "open_files_max": _within(1, INT32_MAX, COUNT, "", "Segments whose files are kept open for reading."),
}  # fmt: skip
assert tuple(RULES) == tuple(row.name for row in fields(LogConfig))


# --- of a store -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What a store is told beside the settings of its logs. Immutable and checked, as ``LogConfig``."""

    retention_bytes_total: int = NO_LIMIT
    retention_check_interval_ms: int = 300_000
    checkpoint_interval_ms: int = 60_000
    cleaner_interval_ms: int = 15_000
    cleaner_map_bytes: int = 128 * MIB
    cleaner_bytes_per_second: int = NO_LIMIT
    producer_check_interval_ms: int = 600_000
    initial_delay_ms: int = 30_000
    recovery_threads: int = 4

    def __post_init__(self) -> None:
        for name, rule in STORE_RULES.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, rule.parse(value))
            except (TypeError, ValueError):
                raise ConfigError(f"{name} is {_shown(value)}, expected {rule.expected}") from None


def store_settings() -> tuple[Setting, ...]:
    """Every setting of a store itself, in the order of ``StoreConfig``."""
    defaults = StoreConfig()
    return tuple(
        Setting(name, rule.kafka_name, getattr(defaults, name), rule.expected, rule.doc)
        for name, rule in STORE_RULES.items()
    )


STORE_RULES: dict[str, Rule] = {
    "retention_bytes_total": _or_none(
        SIZE, "", "The oldest sealed segments of all logs are deleted while the store holds more than this; -1: never."
    ),
    "retention_check_interval_ms": _within(
        1, UNLIMITED, TIME, "log.retention.check.interval.ms", "So often the store looks for what retention gives up."
    ),
    "checkpoint_interval_ms": _within(
        1, UNLIMITED, TIME, "log.flush.offset.checkpoint.interval.ms", "So often the checkpoints are written."
    ),
    "cleaner_interval_ms": _within(
        1, UNLIMITED, TIME, "log.cleaner.backoff.ms", "So often the store looks for logs that are due to be compacted."
    ),
    "cleaner_map_bytes": _within(
        KIB, UNLIMITED, SIZE, "log.cleaner.dedupe.buffer.size",
        "The memory for the keys of a log that is compacted, 24 bytes each; the rest waits for another pass.",
    ),
    "cleaner_bytes_per_second": _or_none(
        SIZE, "log.cleaner.io.max.bytes.per.second",
        "A bound for what the store's compactions read and write in a second; -1 is none.",
    ),
    "producer_check_interval_ms": _within(
        1, UNLIMITED, TIME, "producer.id.expiration.check.interval.ms", "So often producers are looked for that expire."
    ),
    "initial_delay_ms": _within(
        0, UNLIMITED, TIME, "log.initial.task.delay.ms", "Background work begins so long after the open."
    ),
    "recovery_threads": _within(
        1, 1024, COUNT, "num.recovery.threads.per.data.dir", "So many logs are recovered at the same time at an open."
    ),
}  # fmt: skip
assert tuple(STORE_RULES) == tuple(row.name for row in fields(StoreConfig))
