from collections.abc import Callable, Sequence
from typing import Any

from kstore.clock import Clock
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.rules.sequence import RememberedBatch
from kstore.types import AppendInfo

class Pending:
    result: Any
    error: Exception | None

class PendingSingle(Pending):
    timestamp: int
    def __init__(self, value: bytes, key: bytes | None) -> None: ...
    @property
    def value(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...

class PendingBatches(Pending):
    result: AppendInfo | None
    buffer: BatchBuffer
    batches: list[EncodedBatch]
    buffers: list[BatchBuffer] | None
    append_time_ms: int
    source_codec: str
    target_codec: str
    spans: Sequence[tuple[int, int]] | None
    stamp: tuple[int, int, int, bool] | None
    offsets_monotonic: bool
    with_producers: bool
    repeated: Sequence[RememberedBatch]
    def __init__(
        self,
        buffer: BatchBuffer,
        batches: list[EncodedBatch],
        codec: str,
        *,
        append_time_ms: int = -1,
        source_codec: str = "",
        spans: Sequence[tuple[int, int]] | None = None,
        offsets_monotonic: bool = True,
        with_producers: bool = False,
        buffers: list[BatchBuffer] | None = None,
        stamp: tuple[int, int, int, bool] | None = None,
    ) -> None: ...

class GroupCommit:
    def __init__(self, commit: Callable[[list[Any]], None], clock: Clock, lock: object = ...) -> None: ...
    def submit(self, item: Pending) -> None: ...
    @property
    def waiting_count(self) -> int: ...
    @property
    def is_led(self) -> bool: ...
