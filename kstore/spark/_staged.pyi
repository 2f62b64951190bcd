from kstore.files.fs import File
from kstore.record._codec import BatchBuffer, EncodedBatch

ROW_BYTES: int

def take(
    file: File,
    rows: bytes,
    index: int,
    size_max: int,
    buffer: BatchBuffer,
    batches: list[EncodedBatch],
    codecs: set[int],
    producer_id: int,
    producer_epoch: int,
    sequence: int,
) -> tuple[int, int]: ...
