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
    def base_offset(self) -> int: ...
    @property
    def last_offset_max(self) -> int: ...
    def __init__(self, base_offset: int, position: int) -> None: ...
    def clear_timestamps(self) -> None: ...
    def takes(self, position: int, size: int, last_offset: int, max_timestamp: int) -> bool: ...
    def place(
        self,
        buffers: BatchBuffer | list[BatchBuffer],
        batches: list[EncodedBatch],
        offset: int,
        leader_epoch: int,
        now_ms: int,
        last_append_ms: int,
    ) -> tuple[list[memoryview], int, int, int, int] | None: ...
    def note_timestamp(self, last_offset: int, max_timestamp: int) -> None: ...
    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> bool: ...
