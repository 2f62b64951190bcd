from kstore.files.fs import File
from kstore.record._codec import BatchBuffer, EncodedBatch

class TailNumbers:
    position: int
    allocated: int
    first_timestamp: int
    max_timestamp: int
    offset_of_max_timestamp: int
    since_entry: int
    index_interval_bytes: int
    indexes_full: bool
    segment_bytes: int
    segment_ms: int
    @property
    def last_offset_max(self) -> int: ...
    def __init__(self, base_offset: int, position: int) -> None: ...
    def clear_timestamps(self) -> None: ...
    def takes(self, position: int, size: int, last_offset: int, max_timestamp: int) -> bool: ...
    def single(
        self,
        value: bytes,
        key: bytes | None,
        offset: int,
        leader_epoch: int,
        now_ms: int,
        last_append_ms: int,
    ) -> bytes | None: ...
    def place(
        self,
        buffers: BatchBuffer | list[BatchBuffer],
        batches: list[EncodedBatch],
        offset: int,
        leader_epoch: int,
        now_ms: int,
        last_append_ms: int,
    ) -> tuple[list[memoryview], int, int, int, int] | None: ...
    def wrote(self, size: int, offset: int, timestamp: int) -> bool: ...
    def write(self, file: File | None, batch: bytes, offset: int, timestamp: int) -> bool: ...
    def note_timestamp(self, last_offset: int, max_timestamp: int) -> None: ...
    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> bool: ...
