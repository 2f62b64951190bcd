"""The settings of each call that takes some, for type checkers and editors.

Generated from the tables of rules by ``python -m tools.typed_settings``; a test holds both together.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict

from kstore.config import CleanupPolicy, CompressionType
from kstore.types import Durability, IsolationLevel, TimestampType

__all__ = [
    "ConsumerSettings",
    "LogSettings",
    "ProducerSettings",
    "QueueSettings",
    "StoreSettings",
    "TopicSettings",
]

# Bytes, or text like "64MiB"; ms, or text like "7d".
Size: TypeAlias = int | str
Time: TypeAlias = int | str | timedelta


class LogSettings(TypedDict, total=False):
    """Settings of a log; LogConfig explains them."""

    segment_bytes: Size
    segment_ms: Time
    segment_jitter_ms: Time
    segment_index_bytes: Size
    index_interval_bytes: Size
    flush_messages: int | None
    flush_ms: Time
    max_message_bytes: Size
    compression_type: CompressionType
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: Time | None
    message_timestamp_after_max_ms: Time | None
    cleanup_policy: CleanupPolicy | list[str] | tuple[str, ...] | set[str] | frozenset[str]
    retention_ms: Time | None
    retention_bytes: Size | None
    retention_groups: str | Iterable[str]
    file_delete_delay_ms: Time
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: Time
    max_compaction_lag_ms: Time | None
    delete_retention_ms: Time | None
    producer_id_expiration_ms: Time
    file_mode: int | str
    max_batch_bytes_uncompressed: Size
    open_files_max: int


class TopicSettings(LogSettings, total=False):
    """Settings of a topic."""

    durability: Durability


class StoreSettings(LogSettings, total=False):
    """Settings of a store, and the defaults of its topics."""

    retention_bytes_total: Size | None
    retention_check_interval_ms: Time
    checkpoint_interval_ms: Time
    cleaner_interval_ms: Time
    cleaner_map_bytes: Size
    cleaner_bytes_per_second: Size | None
    producer_check_interval_ms: Time
    initial_delay_ms: Time
    recovery_threads: int


class ProducerSettings(TypedDict, total=False):
    """Settings of a producer."""

    acks: Literal["all", "-1", "1", "0"] | int
    batch_size: Size
    buffer_memory: Size
    client_id: str
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delivery_timeout_ms: Time | None
    enable_idempotence: bool | None
    interceptors: Iterable[Any]
    key_serializer: Any
    linger_ms: Time
    max_block_ms: Time | None
    max_request_size: Size
    metadata_max_idle_ms: Time
    partitioner: Any
    partitioner_adaptive_partitioning_enable: bool
    partitioner_ignore_keys: bool
    retries: int
    retry_backoff_ms: Time
    retry_backoff_max_ms: Time
    transaction_timeout_ms: Time
    transactional_id: str | None
    value_serializer: Any


class ConsumerSettings(TypedDict, total=False):
    """Settings of a consumer."""

    auto_commit_interval_ms: Time
    auto_offset_reset: Literal["earliest", "latest", "none"]
    client_id: str
    enable_auto_commit: bool
    heartbeat_interval_ms: Time
    isolation_level: IsolationLevel
    iteration_timeout_ms: Time | None
    key_deserializer: Any
    max_partition_fetch_bytes: Size
    max_poll_interval_ms: Time
    max_poll_records: int
    metadata_max_age_ms: Time
    on_corrupt: Literal["raise", "skip"]
    partition_assignment_strategy: str
    value_deserializer: Any


class QueueSettings(TypedDict, total=False):
    """Settings of a queue."""

    dead_letters: str
    durability: Durability | Literal[""]
    lease_seconds: float
    max_deliveries: int
    maxsize: int
    note_deliveries: bool
    segment_bytes: Size
