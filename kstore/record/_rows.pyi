"""Types of the compiled rows; what each thing does is said in _rows.pyx."""

from typing import final

from typing_extensions import Buffer

from kstore.record._codec import OpenBatch

@final
class BytesRows:
    def __init__(
        self, count: int, first: int, validity: Buffer | None, offsets: Buffer | None, data: Buffer | None
    ) -> None: ...
    @property
    def count(self) -> int: ...

@final
class NumberRows:
    def __init__(self, count: int, first: int, validity: Buffer | None, data: Buffer | None, width: int) -> None: ...
    @property
    def count(self) -> int: ...

@final
class HeaderRows:
    def __init__(
        self,
        count: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        keys: BytesRows,
        values: BytesRows,
    ) -> None: ...
    @property
    def count(self) -> int: ...

@final
class Rows:
    def __init__(
        self,
        value: BytesRows,
        key: BytesRows | None,
        headers: HeaderRows | None,
        timestamps: NumberRows | None,
        partitions: NumberRows | None,
        per_ms: int,
        now_ms: int,
    ) -> None: ...
    @property
    def count(self) -> int: ...

@final
class RowEncoder:
    def __init__(self, partition_count: int, batch_bytes: int, sticky: int = 0) -> None: ...
    @property
    def batches(self) -> list[OpenBatch | None]: ...
    @property
    def sticky(self) -> int: ...
    @property
    def batch_bytes(self) -> int: ...
    def append(self, rows: Rows, row: int) -> tuple[int, int]: ...
