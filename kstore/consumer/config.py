"""The settings of a consumer: Kafka's in snake_case, typed and checked.

A setting is a field of ``ConsumerConfig`` and a row of ``RULES``; ``consumer_settings()`` gives both as one table.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any, Literal

from kstore.consumer.assignor import STRATEGIES
from kstore.consumer.deserializers import DESERIALIZERS
from kstore.messages.primitives import STRING_BYTES_MAX
from kstore.setting_rules import (
    BOOL,
    COUNT,
    MIB,
    SIZE,
    TIME,
    UNLIMITED,
    Rule,
    Setting,
    boolean,
    changed,
    object_with,
    one_of,
    parse_fields,
    resolved,
    table,
    text_up_to,
    within,
)
from kstore.types import INT32_MAX, ISOLATION_LEVELS, IsolationLevel

OffsetReset = Literal["earliest", "latest", "none"]

RESETS: tuple[OffsetReset, ...] = ("earliest", "latest", "none")
ON_CORRUPT = ("raise", "skip")


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A consumer's settings. Immutable; every value is checked, however the object is made.

    Sizes are bytes, times ms, both as in ``LogConfig``. Raises ConfigError for an invalid value.
    """

    auto_commit_interval_ms: int = 5000
    auto_offset_reset: OffsetReset = "earliest"
    client_id: str = ""
    enable_auto_commit: bool = False
    heartbeat_interval_ms: int = 3000
    isolation_level: IsolationLevel = "read_uncommitted"
    iteration_timeout_ms: int = UNLIMITED
    key_deserializer: Any = "bytes"
    max_partition_fetch_bytes: int = MIB
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    metadata_max_age_ms: int = 5000
    on_corrupt: Literal["raise", "skip"] = "raise"
    partition_assignment_strategy: str = "range"
    value_deserializer: Any = "bytes"

    def __repr__(self) -> str:
        return changed(self)

    def __post_init__(self) -> None:
        parse_fields(self, RULES)

    @classmethod
    def from_settings(cls, **settings: Any) -> ConsumerConfig:
        """The configuration with ``settings`` in place of the defaults.

        Kafka's dotted names (``**{"max.poll.records": 5}``) are accepted too. Raises ConfigError for a setting that
        does not exist, with the nearest one that does, and as the constructor.
        """
        return cls(**resolved(settings, RULES, " of a consumer", HINTS))


def consumer_settings() -> tuple[Setting, ...]:
    """Every setting of a consumer, in the order of ``ConsumerConfig``."""
    return table(ConsumerConfig(), RULES)


_numbers = itertools.count(1)


def next_client_id(config: ConsumerConfig, group: str | None) -> str:
    """The name of a new consumer: its own, or one from its group and a counter."""
    return config.client_id or f"consumer{f'-{group}' if group else ''}-{next(_numbers)}"


# --- how values are read ----------------------------------------------------------------------------------------------

DESERIALIZER = "'bytes', 'str', 'json', a function of bytes, or an object with deserialize(topic, headers, data)"
_deserializer = object_with("deserialize", DESERIALIZERS)

# In the order of ConsumerConfig.
RULES: dict[str, Rule] = {
    "auto_commit_interval_ms": within(
        0, UNLIMITED, TIME, "auto.commit.interval.ms", "With enable_auto_commit, the interval between commits."
    ),
    "auto_offset_reset": one_of(
        RESETS, "auto.offset.reset",
        "Where to start without a committed offset, or with one below the log's start: the first record, the end, or "
        "an error (NoOffsetError, OffsetOutOfRangeError).",
    ),
    "client_id": Rule(
        "client.id", text_up_to(STRING_BYTES_MAX), "a str of at most 32767 bytes",
        "The name in the group and in messages; '' generates one.",
    ),
    "enable_auto_commit": Rule(
        "enable.auto.commit", boolean, BOOL,
        "poll and iteration commit the position after the records they returned before; close commits the rest.",
    ),
    "heartbeat_interval_ms": within(
        1, INT32_MAX, TIME, "heartbeat.interval.ms", "How often a member of a group checks that the others are alive."
    ),
    "isolation_level": one_of(
        ISOLATION_LEVELS, "isolation.level",
        "'read_committed' skips records of aborted transactions and stops before open ones.",
    ),
    "iteration_timeout_ms": within(
        0, UNLIMITED, TIME, "",
        "Iteration ends after this long without a record; 0 ends it at the log's end.", or_never=True,
    ),
    "key_deserializer": Rule("key.deserializer", _deserializer, DESERIALIZER, "Converts a key's bytes."),
    "max_partition_fetch_bytes": within(
        1, INT32_MAX, SIZE, "max.partition.fetch.bytes",
        "The number of bytes read from one partition before the next has its turn; whole batches, so it may be more.",
    ),
    "max_poll_interval_ms": within(
        1, INT32_MAX, TIME, "max.poll.interval.ms",
        "A member of a group that requests no records for this long loses its partitions to the others.",
    ),
    "max_poll_records": within(
        1, INT32_MAX, COUNT, "max.poll.records",
        "The largest number of records that a poll returns.",
    ),
    "metadata_max_age_ms": within(
        0, UNLIMITED, TIME, "metadata.max.age.ms",
        "How often the consumer looks for topics that another process creates.",
    ),
    "on_corrupt": one_of(
        ON_CORRUPT, "",
        "At a damaged batch, 'raise' a CorruptBatchError on each read until a seek, or 'skip' the batch.",
    ),
    "partition_assignment_strategy": one_of(
        STRATEGIES, "partition.assignment.strategy", "How a group shares partitions; all its members must use the same."
    ),
    "value_deserializer": Rule("value.deserializer", _deserializer, DESERIALIZER, "Converts a value's bytes."),
}  # fmt: skip
assert tuple(RULES) == tuple(row.name for row in fields(ConsumerConfig))

_NO_NETWORK = "a consumer of a store has no network, so leave it out"
_NO_FETCH = "a consumer reads the files itself: max_partition_fetch_bytes= and max_poll_records= limit its reads"

# What to use for settings of other clients.
HINTS = {
    "api_version": _NO_NETWORK,
    "auto_commit": "use enable_auto_commit=",
    "bootstrap_servers": "the store takes their place: kstore.open(path).consumer(...)",
    "consumer_timeout_ms": "use iteration_timeout_ms=",
    "deserializer": "use value_deserializer= and key_deserializer=",
    "enable_auto_offset_store": "use enable_auto_commit=",
    "fetch_max_bytes": _NO_FETCH,
    "fetch_max_wait_ms": "give poll its timeout=",
    "fetch_min_bytes": _NO_FETCH,
    "group": "give it to Store.consumer",
    "group_id": "use group=",
    "group_instance_id": "use client_id= and group=",
    "request_timeout_ms": "give poll its timeout=",
    "security_protocol": _NO_NETWORK,
    "session_timeout_ms": "use max_poll_interval_ms=",
    "topic": "give the topics as positional arguments",
    "topics": "give the topics as positional arguments",
}
