"""The settings of a consumer: Kafka's in snake_case, typed and checked.

A setting is a field of ``ConsumerConfig`` and a row of ``RULES``; ``consumer_settings()`` gives both as one table.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any, Literal

from kstore.consumer.assignor import STRATEGIES
from kstore.consumer.deserializers import DESERIALIZERS
from kstore.setting_rules import (
    COUNT,
    MIB,
    SIZE,
    TIME,
    UNLIMITED,
    Rule,
    Setting,
    check_known,
    one_of,
    parse_fields,
    table,
    within,
)
from kstore.transactions.wire import STRING_BYTES_MAX
from kstore.types import INT32_MAX, ISOLATION_LEVELS, IsolationLevel

__all__ = ["ConsumerConfig", "OffsetReset", "consumer_settings", "next_client_id"]

OffsetReset = Literal["earliest", "latest", "none"]

RESETS: tuple[OffsetReset, ...] = ("earliest", "latest", "none")
ON_CORRUPT = ("raise", "skip")


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """What a consumer is told. Immutable; every value is checked, whichever way the object is made.

    Sizes are bytes, times ms, both as in ``LogConfig``. Raises ConfigError for a value that a setting cannot have.
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

    def __post_init__(self) -> None:
        parse_fields(self, RULES)

    @classmethod
    def from_settings(cls, **settings: Any) -> ConsumerConfig:
        """The configuration with ``settings`` in place of the defaults.

        Raises ConfigError for a setting that does not exist, with the nearest one that does, and as the constructor.
        """
        check_known(settings, RULES, " of a consumer")
        return cls(**settings)


def consumer_settings() -> tuple[Setting, ...]:
    """Every setting of a consumer, in the order of ``ConsumerConfig``."""
    return table(ConsumerConfig(), RULES)


_numbers = itertools.count(1)


def next_client_id(config: ConsumerConfig, group: str | None) -> str:
    """What a new consumer is called: its own name, or by its group, and a number that counts up."""
    return config.client_id or f"consumer{f'-{group}' if group else ''}-{next(_numbers)}"


# --- how values are read ----------------------------------------------------------------------------------------------


def _bool(value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower())
    if not isinstance(value, bool):
        raise TypeError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    if len(value.encode("utf-8")) > STRING_BYTES_MAX:
        raise ValueError
    return value


def _deserializer(value: object) -> object:
    """One of the names, an object with ``deserialize``, or something to call; a class is none of them."""
    if isinstance(value, str):
        if value not in DESERIALIZERS:
            raise ValueError
        return value
    if isinstance(value, type) or not (callable(value) or callable(getattr(value, "deserialize", None))):
        raise TypeError
    return value


BOOL = "True or False"
DESERIALIZER = "'bytes', 'str', 'json', a function of bytes, or an object with deserialize(topic, headers, data)"

# In the order of ConsumerConfig.
RULES: dict[str, Rule] = {
    "auto_commit_interval_ms": within(
        0, UNLIMITED, TIME, "auto.commit.interval.ms", "With enable_auto_commit, so often positions are committed."
    ),
    "auto_offset_reset": one_of(
        RESETS, "auto.offset.reset",
        "Where reading begins without a committed offset, or with one below the log's start: its first record, its "
        "end, or nowhere: NoOffsetError, OffsetOutOfRangeError.",
    ),
    "client_id": Rule(
        "client.id", _name, "a str of at most 32767 bytes", "The name in the group and in messages; '' makes one."
    ),
    "enable_auto_commit": Rule(
        "enable.auto.commit", _bool, BOOL,
        "Positions are committed by poll and by iteration, of what was handed out before, and by close.",
    ),
    "heartbeat_interval_ms": within(
        1, INT32_MAX, TIME, "heartbeat.interval.ms", "So often a member of a group looks whether the others live."
    ),
    "isolation_level": one_of(
        ISOLATION_LEVELS, "isolation.level",
        "'read_committed' leaves out records of transactions that were aborted, and stops before those that are open.",
    ),
    "iteration_timeout_ms": within(
        0, UNLIMITED, TIME, "", "Iteration ends when nothing came for so long; 0: at the end.", or_never=True
    ),
    "key_deserializer": Rule("key.deserializer", _deserializer, DESERIALIZER, "What is made of a key's bytes."),
    "max_partition_fetch_bytes": within(
        1, INT32_MAX, SIZE, "max.partition.fetch.bytes",
        "So much is read of one partition before the next one has its turn; always a whole batch.",
    ),
    "max_poll_interval_ms": within(
        1, INT32_MAX, TIME, "max.poll.interval.ms",
        "A member of a group that asks for no records for so long loses its partitions to the others.",
    ),
    "max_poll_records": within(1, INT32_MAX, COUNT, "max.poll.records", "So many records a poll returns at most."),
    "metadata_max_age_ms": within(
        0, UNLIMITED, TIME, "metadata.max.age.ms",
        "Where another process makes the topics, so often the consumer looks for new ones.",
    ),
    "on_corrupt": one_of(
        ON_CORRUPT, "", "At a damaged batch: raise a CorruptBatchError, again and again until a seek; or leave it out."
    ),
    "partition_assignment_strategy": one_of(
        STRATEGIES, "partition.assignment.strategy", "How a group shares partitions; all of its members must agree."
    ),
    "value_deserializer": Rule("value.deserializer", _deserializer, DESERIALIZER, "What is made of a value's bytes."),
}  # fmt: skip
assert tuple(RULES) == tuple(row.name for row in fields(ConsumerConfig))
