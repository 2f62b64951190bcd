from collections.abc import Callable
from typing import Any, TypeVar

from kstore.engine.durability import WriteBehind
from kstore.engine.ends import Ends
from kstore.engine.growth import Growth
from kstore.engine.producers import LogProducers
from kstore.engine.roll import Rolls
from kstore.engine.turn import TurnLock
from kstore.segments.tail import SegmentTail
from kstore.state.leader_epoch import LeaderEpochCache

SINGLE_BYTES_MAX: int

Append = TypeVar("Append", bound=Callable[..., Any])

class LogFields:
    tail: SegmentTail | None
    ends: Ends
    epochs: LeaderEpochCache
    producers: LogProducers
    closed: Exception | None
    poisoned: Exception | None
    last_append_ms: int
    flush_messages: int

    def poison(self, error: BaseException) -> None: ...
    def note_failure(self, error: BaseException) -> None: ...

class SingleAppends:
    def use(self, size_max: int, needs_key: bool) -> None: ...
    def append(self, value: object, key: object) -> tuple[int, int] | None: ...

class WrittenAppends(SingleAppends):
    def __init__(
        self, files: LogFields, lock: TurnLock, durability: WriteBehind, rolls: Rolls, growth: Growth
    ) -> None: ...

def wake_followers(growth: Growth) -> None: ...
def single_first(append: Append) -> Append: ...
