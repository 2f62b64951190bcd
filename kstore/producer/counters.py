"""What a producer counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProducerCounters"]


@dataclass(slots=True)
class ProducerCounters:
    """Totals since the producer was made. Written by whoever writes batches; a lost count is no harm."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    writes: int = 0
    retries: int = 0
    splits: int = 0
    failed: int = 0
    flush_seconds: float = 0.0
    metadata_wait_seconds: float = 0.0
    last_error: Exception | None = None
