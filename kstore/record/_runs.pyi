from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, final

from typing_extensions import Buffer

from kstore.record._codec import Record
from kstore.record.batch import RecordBatch
from kstore.record.control import ControlRecordType

# A Producer with its RememberedBatches, and the fields of one.
_Producer = tuple[int, int, tuple[tuple[int, int, int, int], ...], int, int, int]
_ProducerFields = tuple[int, int, list[tuple[int, int, int, int]], int, int, int]

__all__ = [
    "FoundRecords",
    "IndexNotes",
    "OffsetCheck",
    "Run",
    "RunCounts",
    "RunRecords",
    "RunValues",
    "Texts",
    "TimeCheck",
    "checksum",
    "epoch_starts",
    "falling_epoch",
    "find_batch",
    "follow_producers",
    "index_notes",
    "pass_producers",
    "record_at",
    "walk_run",
]

@final
class Run:
    @property
    def data(self) -> bytes: ...
    @property
    def position(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def batch_count(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def has_gap(self) -> bool: ...
    @property
    def has_producers(self) -> bool: ...
    @property
    def is_compressed(self) -> bool: ...
    @property
    def leader_epoch_max(self) -> int: ...
    @property
    def reason(self) -> str: ...
    def batches(self) -> Iterator[tuple[int, RecordBatch]]: ...
    def records(
        self, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None = None
    ) -> RunRecords: ...
    def values(
        self, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None = None
    ) -> RunValues: ...

@final
class RunRecords:
    origin: tuple[str, int] | None
    @property
    def next_offset(self) -> int: ...
    @property
    def given_count(self) -> int: ...
    @property
    def has_more(self) -> bool: ...
    def end(self) -> None: ...
    def __iter__(self) -> RunRecords: ...
    def __next__(self) -> Record: ...

@final
class RunValues:
    @property
    def next_offset(self) -> int: ...
    @property
    def given_count(self) -> int: ...
    @property
    def has_more(self) -> bool: ...
    def end(self) -> None: ...
    def __iter__(self) -> RunValues: ...
    def __next__(self) -> bytes | None: ...

@final
class FoundRecords:
    @property
    def next_offset(self) -> int: ...
    @property
    def given_count(self) -> int: ...
    @property
    def has_more(self) -> bool: ...
    def end(self) -> None: ...
    def __iter__(self) -> FoundRecords: ...
    def __next__(self) -> Record: ...

@final
class Texts:
    def __init__(
        self,
        texts: Iterable[bytes],
        folds: bool = False,
        keys: bool = True,
        values: bool = True,
        headers: bool = True,
    ) -> None: ...
    def find(self, data: bytes, start: int = 0, stop: int = ...) -> int: ...
    def records_of_run(
        self,
        run: Run,
        first_offset: int,
        stop_offset: int,
        tally: array[int],
        aborted: array[int] | None = None,
    ) -> FoundRecords: ...
    def records_of_payload(
        self,
        data: bytes,
        start: int,
        stop: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        last_offset_delta: int,
        is_append_time: bool,
        append_time: int,
        leader_epoch: int,
        first_offset: int,
        stop_offset: int,
    ) -> FoundRecords: ...

def walk_run(
    data: bytes,
    start: int,
    size_left: int,
    position: int,
    next_offset: int,
    size_max: int,
    offset_stop: int,
    known_end: int,
    base_stop: int,
    with_compressed: bool = False,
) -> Run: ...
def checksum(data: Buffer, by_table: bool = False) -> int: ...
def find_batch(
    data: bytes,
    size_left: int,
    target: int,
    next_offset: int,
    offset_stop: int,
    first_indexed: int = -1,
    indexed: int = -1,
    indexed_at: int = -1,
) -> tuple[int, int] | None: ...
def record_at(data: bytes, at: int, target: int, tally: array[int]) -> Record | None: ...

_Spread = tuple[int, int, int, int, dict[int, int]]

@final
class RunCounts:
    @property
    def batch_count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def empty_batch_count(self) -> int: ...
    @property
    def producer_batch_count(self) -> int: ...
    @property
    def transactional_batch_count(self) -> int: ...
    @property
    def commit_count(self) -> int: ...
    @property
    def abort_count(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def last_timestamp(self) -> int: ...
    @property
    def records_size(self) -> int: ...
    @property
    def counted_count(self) -> int: ...
    @property
    def keyed_count(self) -> int: ...
    @property
    def tombstone_count(self) -> int: ...
    @property
    def header_count(self) -> int: ...
    def spreads(self) -> tuple[_Spread, _Spread, _Spread, _Spread]: ...
    def add(self, run: Run) -> list[int]: ...
    def add_records(self, payload: Buffer, count: int, last_offset_delta: int) -> bool: ...

class IndexNotes(NamedTuple):
    entries: array[int]
    first_timestamp: int
    max_timestamp: int
    offset_of_max_timestamp: int
    since_entry: int

def index_notes(
    run: Run, max_timestamp: int, offset_of_max_timestamp: int, since_entry: int, interval_bytes: int
) -> IndexNotes: ...
def epoch_starts(run: Run, latest: int) -> list[tuple[int, int]]: ...
def follow_producers(
    run: Run,
    producers: Mapping[int, _Producer],
    open_transactions: dict[int, int],
    first: int = -1,
    last: int = -1,
) -> tuple[list[_ProducerFields], list[tuple[int, int, int, int]], list[RecordBatch]]: ...

@final
class OffsetCheck:
    def __init__(self, rows: array[int], base_offset: int) -> None: ...
    @property
    def position_slot(self) -> int: ...
    def add(self, position: int, base_offset: int, last_offset: int) -> list[tuple[int, str, int, int]]: ...
    def add_run(self, run: Run) -> list[tuple[int, str, int, int]]: ...
    def skip(self, start: int, stop: int) -> list[tuple[int, str, int, int]]: ...

@final
class TimeCheck:
    def __init__(self, rows: array[int], base_offset: int) -> None: ...
    @property
    def slot(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_far(self) -> bool: ...
    def add(self, base_offset: int, last_offset: int, max_timestamp: int) -> list[tuple[int, str, int]]: ...
    def add_run(self, run: Run) -> list[tuple[int, str, int]]: ...
    def replace(self, rows: array[int]) -> None: ...

def falling_epoch(run: Run, latest: int) -> tuple[int, int, int] | None: ...
def pass_producers(
    run: Run,
    start: int,
    next_offset: int,
    gap_end: int,
    snapshot_offset: int,
    visible_offset: int,
    open_records: dict[int, int],
    ends: dict[int, tuple[int, ControlRecordType]],
    last_ends: dict[int, int],
) -> tuple[int, int, int]: ...
