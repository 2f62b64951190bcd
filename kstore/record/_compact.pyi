"""Types of compaction's compiled part; what each thing does is said in _compact.pyx."""

from typing import NamedTuple, final

from typing_extensions import Buffer

# Records, count, base_offset, last_offset_delta, base_timestamp, max_timestamp, flags.
BlockBatch = tuple[Buffer, int, int, int, int, int, int]

class FilteredBatch(NamedTuple):
    damage: str
    record_count: int
    kept_count: int
    tombstone_count: int
    keyless_count: int
    rewritten: bool
    has_horizon: bool
    base_timestamp: int
    max_timestamp: int
    start: int
    stop: int

@final
class OffsetMap:
    def __init__(self, memory_bytes: int, count_max: int | None = None) -> None: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def count(self) -> int: ...
    def __len__(self) -> int: ...
    def put(self, key: bytes, offset: int) -> bool: ...
    def get(self, key: bytes) -> int: ...
    def put_block(self, batches: list[BlockBatch], start_offset: int) -> tuple[int, list[int]]: ...
    def put_run(self, data: bytes, start: int, stop: int, start_offset: int, stop_offset: int) -> int: ...
    def keeps_run(self, data: bytes, start: int, stop: int, last_offset: int, now_ms: int, flags: int) -> int: ...
    def filter_block(
        self, batches: list[BlockBatch], last_offset: int, horizon: int
    ) -> tuple[list[FilteredBatch], bytearray]: ...

def siphash128(key: bytes, secret: bytes) -> bytes: ...
