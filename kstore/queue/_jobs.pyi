from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from kstore.record._codec import Record

class LeasedRecord:
    _queue: Any
    seconds: float
    deadline: float
    owner: int
    is_open: bool
    @property
    def record(self) -> Record: ...
    @property
    def offset(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def thread(self) -> int: ...
    def __init__(
        self, queue: Any, record: Record, delivery_count: int, seconds: float, deadline: float, thread: int
    ) -> None: ...

JobT = TypeVar("JobT", bound=LeasedRecord)

def made_records(
    first_offset: int, timestamp: int, keys: Sequence[object] | None, values: Sequence[object], /
) -> list[Record] | None: ...
def new_jobs(
    job_type: type[JobT],
    queue: object,
    records: Iterable[Record],
    seconds: float,
    deadline: float,
    thread: int,
    /,
) -> list[JobT]: ...
def lease_first(
    job_type: type[JobT],
    queue: object,
    fresh: deque[Record],
    leases: dict[float, dict[int, JobT]],
    seconds: float,
    now: float,
    thread: int,
    /,
) -> JobT | None: ...
def held_offsets(leases: dict[float, dict[int, JobT]], jobs: list[JobT], /) -> list[int] | None: ...
def done_if_held(leases: dict[float, dict[int, JobT]], job: JobT, kind: bytes, /) -> bytes | None: ...
def end_one(leases: dict[float, dict[int, JobT]], job: JobT, /) -> None: ...
def end_all(leases: dict[float, dict[int, JobT]], jobs: list[JobT], /) -> None: ...
def close_all(jobs: list[JobT], /) -> None: ...
def encode_runs(kind: bytes, offsets: list[int], row_count_max: int, /) -> list[bytes]: ...
