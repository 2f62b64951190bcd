"""Types of the compiled codec; what each thing does is said in _codec.pyx."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from typing_extensions import Buffer

from kstore.types import TimestampType

Headers = Mapping[str, Buffer | None] | Mapping[bytes, Buffer | None] | Iterable[tuple[str | Buffer, Buffer | None]]

class EncodedBatch(NamedTuple):
    stop: int
    position: int
    size: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    max_timestamp_delta_offset: int

class RecordsSummary(NamedTuple):
    first_offset_delta: int
    last_offset_delta: int
    max_timestamp: int
    max_timestamp_offset_delta: int
    min_timestamp: int
    null_key_count: int

class Record:
    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: TimestampType = "CreateTime",
        key: Buffer | None = None,
        value: Buffer | None = None,
        headers: Headers | None = (),
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    @property
    def header_bytes(self) -> tuple[tuple[bytes, bytes | None], ...]: ...
    @property
    def leader_epoch(self) -> int: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...

class ConsumerRecord(Record):
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: TimestampType = "CreateTime",
        key: Buffer | None = None,
        value: Buffer | None = None,
        headers: Headers | None = (),
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    def deserialized(self, key: object, value: object) -> ConsumerRecord: ...

@final
class RecordCursor:
    origin: tuple[str, int] | None
    def __init__(
        self,
        data: Buffer,
        position: int,
        stop: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        last_offset_delta: int,
        timestamp_type: int,
        append_time: int,
        leader_epoch: int,
        first_offset: int = ...,
        stop_offset: int = ...,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def has_more(self) -> bool: ...
    def end(self) -> None: ...
    def __iter__(self) -> RecordCursor: ...
    def __next__(self) -> Record: ...

@final
class BatchBuffer:
    def __init__(self, capacity: int = 0) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    loan: object
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def view(self, start: int = 0, stop: int | None = None) -> memoryview: ...
    def clear(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def extend(self, data: Buffer) -> None: ...
    def reserve(self, size: int) -> None: ...

@final
class OpenBatch:
    def __init__(self, buffer: BatchBuffer, size_max: int, base_timestamp: int | None = None) -> None: ...
    @property
    def buffer(self) -> BatchBuffer: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def size_max(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    def append(
        self,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Headers | None = (),
        timestamp: int = -1,
        offset_delta: int | None = None,
    ) -> bool: ...
    def close(self, timestamp_type: int = 0, append_time: int = -1) -> EncodedBatch: ...
    def abort(self) -> None: ...

def as_headers(given: Headers | None) -> tuple[tuple[str | bytes, bytes | None], ...]: ...
def java_string(data: bytes) -> str: ...
def encode_batch(
    buffer: BatchBuffer,
    values: Sequence[Buffer | None],
    keys: Sequence[Buffer | None] | None,
    timestamps: Sequence[int | None] | None,
    headers: Sequence[Headers | None] | None,
    start: int,
    now_ms: int,
    size_max: int,
    timestamp_type: int = 0,
    with_crc: bool = False,
) -> EncodedBatch: ...
def patch_header(buffer: BatchBuffer, position: int, base_offset: int, leader_epoch: int) -> None: ...
def patch_producer(
    buffer: BatchBuffer, position: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None: ...
def patch_crc(buffer: BatchBuffer, position: int, crc: int) -> None: ...
def check_records(
    data: Buffer, position: int, stop: int, count: int, last_offset_delta: int, base_timestamp: int = 0
) -> RecordsSummary: ...
def decode_values(
    data: Buffer,
    position: int,
    stop: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    first_offset: int = ...,
    stop_offset: int = ...,
) -> list[bytes | None]: ...
def decode_offsets_timestamps(
    data: Buffer,
    position: int,
    stop: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    last_offset_delta: int,
    timestamp_type: int,
    append_time: int,
    first_offset: int = ...,
    stop_offset: int = ...,
) -> tuple[array[int], array[int]]: ...
def encode_varint(value: int) -> bytes: ...
def encode_varlong(value: int) -> bytes: ...
def decode_varint(data: Buffer, position: int = 0) -> tuple[int, int]: ...
def decode_varlong(data: Buffer, position: int = 0) -> tuple[int, int]: ...
def murmur2(data: Buffer) -> int: ...
