"""The settings of a producer: Kafka's in snake_case, typed, checked, and checked against each other.

A setting is a field of ``ProducerConfig`` and a row of ``RULES``; ``producer_settings()`` gives both as one table.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from kstore.config import RULES as LOG_RULES
from kstore.errors import ConfigError
from kstore.messages.primitives import STRING_BYTES_MAX
from kstore.setting_rules import (
    BOOL,
    COUNT,
    KIB,
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
    shown,
    table,
    text_up_to,
    whole,
    within,
)
from kstore.types import INT32_MAX

logger = logging.getLogger(__name__)

# -1 is "all", as in Kafka.
Acks = Literal[-1, 0, 1]
ProducerCompression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

ACKS_ALL: Final = -1
COMPRESSION_TYPES: tuple[ProducerCompression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS = ("sticky", "round_robin")
SERIALIZERS = ("bytes", "str", "json")
DELIVERY_TIMEOUT_MS = 120_000


# The default of Kafka's client, which shares the network with other clients.
KAFKA_BATCH_SIZE = 16 * KIB
# The memory has room for at least this many batches of the default size, for as many partitions.
OPEN_BATCHES_MIN = 32


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """A producer's settings. Immutable; every value is checked, however the object is made.

    Sizes are bytes, times ms, both as in ``LogConfig``. If ``enable_idempotence`` or ``delivery_timeout_ms`` is not
    given, it is derived from the rest. Raises ConfigError for an invalid value, and for two values that contradict each
    other.
    """

    acks: Acks = ACKS_ALL
    # Smaller if it is not given and ``buffer_memory`` is small.
    batch_size: int = 64 * KIB
    buffer_memory: int = 32 * MIB
    client_id: str = ""
    compression_type: ProducerCompression = "none"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    # None means 120,000, or linger_ms if that is longer.
    delivery_timeout_ms: int = None  # type: ignore[assignment]  # never None after __post_init__
    # None means on if acks and retries allow it.
    enable_idempotence: bool = None  # type: ignore[assignment]  # never None after __post_init__
    interceptors: tuple[Any, ...] = ()
    key_serializer: Any = "bytes"
    linger_ms: int = 5
    max_block_ms: int = 60_000
    max_request_size: int = MIB
    metadata_max_idle_ms: int = 300_000
    partitioner: Any = "sticky"
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_ignore_keys: bool = False
    retries: int = INT32_MAX
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    transaction_timeout_ms: int = 60_000
    transactional_id: str | None = None
    value_serializer: Any = "bytes"

    def __repr__(self) -> str:
        return changed(self)

    def __post_init__(self) -> None:
        is_idempotence_asked_for = self.enable_idempotence is not None
        is_delivery_timeout_given = self.delivery_timeout_ms is not None
        parse_fields(self, RULES)
        self._settle_delivery_timeout(is_delivery_timeout_given)
        self._settle_idempotence(is_idempotence_asked_for)

    @classmethod
    def from_settings(cls, **settings: Any) -> ProducerConfig:
        """The configuration with ``settings`` in place of the defaults.

        Kafka's dotted names (``**{"linger.ms": 5}``) are accepted too. Raises ConfigError for a setting that does not
        exist, with the nearest one that does, and as the constructor.
        """
        fields = resolved(settings, RULES, " of a producer", HINTS)
        config = cls(**fields)
        if "batch_size" not in fields:
            config._fit_batches()
        return config

    def compression_level(self, codec: str) -> int | None:
        """The level for a codec's name, None for one without levels."""
        level: int | None = getattr(self, f"compression_{codec}_level", None)
        return level

    def _fit_batches(self) -> None:
        """Makes batches smaller, down to Kafka's size, if ``buffer_memory`` has room for only a few of them."""
        fitting = max(self.buffer_memory // OPEN_BATCHES_MIN, KAFKA_BATCH_SIZE)
        if fitting < self.batch_size:
            object.__setattr__(self, "batch_size", fitting)

    def _settle_delivery_timeout(self, is_given: bool) -> None:
        if self.linger_ms <= self.delivery_timeout_ms:
            return
        if is_given:
            raise ConfigError(
                f"delivery_timeout_ms is {self.delivery_timeout_ms}, expected at least linger_ms, {self.linger_ms}"
            )
        logger.warning(
            "delivery_timeout_ms is raised from %d to linger_ms, %d", self.delivery_timeout_ms, self.linger_ms
        )
        object.__setattr__(self, "delivery_timeout_ms", self.linger_ms)

    def _settle_idempotence(self, is_asked_for: bool) -> None:
        """Turns idempotence off, as Kafka does, if it is impossible and was not requested."""
        if self.enable_idempotence:
            conflict = None
            if self.retries == 0:
                conflict = "retries is 0, expected at least 1"
            elif self.acks != ACKS_ALL:
                conflict = f"acks is {self.acks}, expected 'all'"
            if conflict is not None:
                if is_asked_for:
                    raise ConfigError(f"{conflict} with enable_idempotence")
                logger.info("enable_idempotence is off: %s with it", conflict)
                object.__setattr__(self, "enable_idempotence", False)
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError(
                f"enable_idempotence is {self.enable_idempotence}, expected True with a transactional_id, "
                f"{shown(self.transactional_id)}: it needs acks 'all' (acks is {self.acks}) and "
                f"retries (retries is {self.retries})"
            )


def producer_settings() -> tuple[Setting, ...]:
    """Every setting of a producer, in the order of ``ProducerConfig``."""
    return table(ProducerConfig(), RULES)


_numbers = itertools.count(1)


def next_client_id(config: ProducerConfig) -> str:
    """The name of a new producer: its own, or its transactional id, or a counter."""
    return config.client_id or f"producer-{config.transactional_id or next(_numbers)}"


# --- how values are read ----------------------------------------------------------------------------------------------


def _acks(value: object) -> object:
    word = value.strip().lower() if isinstance(value, str) else str(whole(value))
    acks = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1, "0": 0}.get(word)
    if acks is None:
        raise ValueError
    return acks


def _bool_or_true(value: object) -> bool:
    return True if value is None else boolean(value)


def _name_or_none(value: object) -> object:
    if value is not None and not _name(value):
        raise ValueError
    return value


def _interceptors(value: object) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError
    interceptors = tuple(value)
    for interceptor in interceptors:
        # Both methods are required: a misspelt one would never be called.
        methods = ("on_send", "on_acknowledgement")
        if isinstance(interceptor, type) or not all(callable(getattr(interceptor, name, None)) for name in methods):
            raise TypeError
    return interceptors


def _timeout(value: object) -> object:
    return _int32_time(DELIVERY_TIMEOUT_MS if value is None else value)


def _int32_time(value: object) -> object:
    return within(0, INT32_MAX, TIME, "", "").parse(value)


def _linger(value: object) -> int:
    """Kafka accepts more than an int holds, and caps it at the largest int."""
    linger_ms = within(0, UNLIMITED, TIME, "", "").parse(value)
    assert isinstance(linger_ms, int)
    return min(linger_ms, INT32_MAX)


SERIALIZER = "'bytes', 'str', 'json', a function of a value, or an object with serialize(topic, headers, data)"
_name = text_up_to(STRING_BYTES_MAX)
_serializer = object_with("serialize", SERIALIZERS)

# In the order of ProducerConfig; the bounds are Kafka's.
RULES: dict[str, Rule] = {
    "acks": Rule(
        "acks", _acks, "'all' (or -1), 1 or 0, as a str or an int",
        "When a record counts as delivered: handed over (0), written (1), or as durable as its log makes it ('all').",
    ),
    "batch_size": within(
        0, INT32_MAX, SIZE, "batch.size",
        "The largest size of a batch of records for one partition; 0 gives each record its own batch. If it is not "
        "given, at most 1/32 of buffer_memory, or 16384 if that is more.",
    ),
    "buffer_memory": within(
        0, UNLIMITED, SIZE, "buffer.memory", "Memory for records that are not written yet; send waits if it is full."
    ),
    "client_id": Rule(
        "client.id", _name, "a str of at most 32767 bytes", "The name in metrics and messages; '' generates one."
    ),
    "compression_type": one_of(COMPRESSION_TYPES, "compression.type", "The codec that compresses batches."),
    "compression_gzip_level": LOG_RULES["compression_gzip_level"],
    "compression_lz4_level": LOG_RULES["compression_lz4_level"],
    "compression_zstd_level": LOG_RULES["compression_zstd_level"],
    "delivery_timeout_ms": Rule(
        "delivery.timeout.ms", _timeout, f"{TIME[1]}, from 0 to {INT32_MAX}",
        "A record fails if it is not in its log this long after its batch was started; at least linger_ms.",
    ),
    "enable_idempotence": Rule(
        "enable.idempotence", _bool_or_true, BOOL,
        "Batches are numbered, so that a log never holds one twice; needs acks 'all' and retries.",
    ),
    "interceptors": Rule(
        "interceptor.classes", _interceptors, "a sequence of objects with on_send and on_acknowledgement",
        "Objects that see, and may change, each record before it is sent, and that see its outcome.",
    ),
    "key_serializer": Rule("key.serializer", _serializer, SERIALIZER, "Converts a key to bytes."),
    "linger_ms": Rule(
        "linger.ms", _linger, f"{TIME[1]}, from 0 to {UNLIMITED}",
        "How long a batch that is not full waits for more records.",
    ),
    "max_block_ms": within(
        0, UNLIMITED, TIME, "max.block.ms",
        "send waits at most this long for memory and, if the store is shared or this is given, for its topic.",
        or_never=True,
    ),
    "max_request_size": within(
        0, INT32_MAX, SIZE, "max.request.size", "The largest record, and the largest batch with more than one."
    ),
    "metadata_max_idle_ms": within(
        5000, UNLIMITED, TIME, "metadata.max.idle.ms", "A topic is looked up again after this long without a send."
    ),
    "partitioner": Rule(
        "partitioner.class", object_with("partition", PARTITIONERS),
        "'sticky', 'round_robin', a function, or an object with partition(topic, key, value, partition_count)",
        "Chooses the partition of a record that names none.",
    ),
    "partitioner_adaptive_partitioning_enable": Rule(
        "partitioner.adaptive.partitioning.enable", boolean, BOOL,
        "Records without keys prefer partitions with less to write; only 'sticky' uses this.",
    ),
    "partitioner_ignore_keys": Rule(
        "partitioner.ignore.keys", boolean, BOOL, "Treat records with a key as if they had none."
    ),
    "retries": within(0, INT32_MAX, COUNT, "retries", "How many times a batch that could not be written is retried."),
    "retry_backoff_ms": within(
        0, UNLIMITED, TIME, "retry.backoff.ms", "The pause before the first retry; each further retry waits twice as "
        "long.",
    ),
    "retry_backoff_max_ms": within(
        0, UNLIMITED, TIME, "retry.backoff.max.ms", "The longest pause between two attempts."
    ),
    "transaction_timeout_ms": Rule(
        "transaction.timeout.ms", _int32_time, f"{TIME[1]}, from 0 to {INT32_MAX}",
        "A transaction that is open for longer may be aborted.",
    ),
    "transactional_id": Rule(
        "transactional.id", _name_or_none, "a str of 1 to 32767 bytes, or None",
        "The name under which transactions continue after a restart; needs idempotence.",
    ),
    "value_serializer": Rule("value.serializer", _serializer, SERIALIZER, "Converts a value to bytes."),
}  # fmt: skip
assert tuple(RULES) == tuple(row.name for row in fields(ProducerConfig))

_NO_NETWORK = "a producer of a store has no network, so leave it out"

# What to use for settings of other clients.
HINTS = {
    "api_version": _NO_NETWORK,
    "batch_num_messages": "use batch_size=, in bytes",
    "bootstrap_servers": "the store takes their place: kstore.open(path).producer()",
    "compression": "use compression_type=",
    "compression_codec": "use compression_type=",
    "max_batch_size": "use batch_size=",
    "max_in_flight": "batches of a partition are always written in order, so leave it out",
    "max_in_flight_requests_per_connection": "batches of a partition are always written in order, so leave it out",
    "message_send_max_retries": "use retries=",
    "message_timeout_ms": "use delivery_timeout_ms=",
    "queue_buffering_max_kbytes": "use buffer_memory=, in bytes",
    "queue_buffering_max_messages": "use buffer_memory=, in bytes",
    "queue_buffering_max_ms": "use linger_ms=",
    "request_required_acks": "use acks=",
    "request_timeout_ms": "use delivery_timeout_ms=",
    "security_protocol": _NO_NETWORK,
    "serializer": "use value_serializer= and key_serializer=",
}
