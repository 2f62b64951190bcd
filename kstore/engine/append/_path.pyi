from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kstore.engine._fields import LogFields
from kstore.engine.append._group import GroupCommit, PendingSingle
from kstore.engine.append.appends import Appends
from kstore.engine.append.pending import PendingAppend
from kstore.engine.change.durability import DurabilityStrategy
from kstore.engine.change.growth import Growth
from kstore.engine.change.roll import Rolls
from kstore.engine.turn import TurnLock
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.rules.sequence import KnownProducer, SequencedBatch
from kstore.types import AppendInfo

SINGLE_BYTES_MAX: int

Append = TypeVar("Append", bound=Callable[..., Any])

class Plan:
    append_count: int
    stable_offset: int
    with_producers: bool
    @property
    def end(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def segment_end(self) -> int: ...
    @property
    def indexes_full(self) -> bool: ...
    def add(
        self,
        buffer: BatchBuffer,
        batch: EncodedBatch,
        base_offset: int,
        last_offset: int,
        leader_epoch: int | None,
        *,
        is_certain: bool = False,
    ) -> bool: ...

class AppendPath:
    def __init__(
        self,
        appends: Appends,
        files: LogFields,
        lock: TurnLock,
        durability: DurabilityStrategy,
        rolls: Rolls,
        growth: Growth,
        group: GroupCommit | None = None,
    ) -> None: ...
    def use(self, size_max: int, needs_key: bool) -> None: ...
    def append(self, value: object, key: object) -> tuple[int, int] | None: ...
    def commit_group(self, group: list[PendingSingle | PendingAppend]) -> bool: ...
    def commit(self, append: PendingAppend) -> bool: ...
    def plan(self, now_ms: int) -> Plan: ...
    def write(self, plan: Plan) -> None: ...
    def go_on(self, plan: Plan) -> None: ...
    def publish(
        self,
        plan: Plan,
        appends: list[PendingAppend],
        results: list[AppendInfo | None],
        checked: Sequence[SequencedBatch] | None,
    ) -> None: ...
    def take_back(self, plan: Plan, error: BaseException) -> None: ...
    def wake(self) -> None: ...

def single_first(append: Append) -> Append: ...
def settle(singles: list[PendingSingle | PendingAppend], appends: list[PendingAppend | None]) -> None: ...
def continued(
    known: KnownProducer, stamp: tuple[int, int, int, bool], batches: Sequence[EncodedBatch], offset: int
) -> KnownProducer | None: ...
