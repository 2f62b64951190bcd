from kstore.engine.ends import Ends
from kstore.engine.producers import LogProducers
from kstore.segments.tail import SegmentTail
from kstore.state.leader_epoch import LeaderEpochCache

class LogFields:
    tail: SegmentTail | None
    epochs: LeaderEpochCache
    producers: LogProducers
    closed: Exception | None
    poisoned: Exception | None
    last_append_ms: int
    flush_messages: int
    follower_count: int

    @property
    def ends(self) -> Ends: ...
    @property
    def truncation_count(self) -> int: ...
    @property
    def cut_count(self) -> int: ...
    def publish(self, ends: Ends, *, cuts: bool = False) -> None: ...
    def count_swap(self) -> None: ...
    def poison(self, error: BaseException) -> None: ...
    def note_failure(self, error: BaseException) -> None: ...
