"""Types of the compiled columns; what each thing does is said in _columns.pyx."""

from array import array
from typing import NamedTuple, final

from typing_extensions import Buffer

@final
class ColumnBuffer:
    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class BytesColumn(NamedTuple):
    validity: ColumnBuffer | None
    null_count: int
    offsets: ColumnBuffer
    data: ColumnBuffer

class HeadersColumn(NamedTuple):
    validity: ColumnBuffer | None
    null_count: int
    offsets: ColumnBuffer
    entry_count: int
    key: BytesColumn
    value: BytesColumn

class Columns(NamedTuple):
    row_count: int
    size: int
    key: BytesColumn | None
    value: BytesColumn | None
    offset: ColumnBuffer | None
    timestamp: ColumnBuffer | None
    timestamp_type: ColumnBuffer | None
    headers: HeadersColumn | None

@final
class ColumnBuilder:
    def __init__(
        self,
        *,
        key: bool = False,
        value: bool = False,
        offset: bool = False,
        timestamp: bool = False,
        timestamp_type: bool = False,
        headers: bool = False,
        text_keys: bool = True,
        large: bool = False,
        rows_max: int = ...,
        size_max: int = ...,
        timestamp_factor: int = 1,
    ) -> None: ...
    @property
    def row_count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_within_batch(self) -> bool: ...
    def append(
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
        first_offset: int = ...,
        stop_offset: int = ...,
    ) -> bool: ...
    def append_run(
        self,
        data: bytes,
        start: int,
        stop: int,
        first_offset: int,
        stop_offset: int,
        tally: array[int],
        aborted: array[int] | None = None,
    ) -> int: ...
    def resume(self) -> bool: ...
    def append_message(
        self, offset: int, timestamp: int, timestamp_type: int, key: bytes | None, value: bytes | None
    ) -> bool: ...
    def finish(self) -> Columns: ...
