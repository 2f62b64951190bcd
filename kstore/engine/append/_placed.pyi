from collections.abc import Sequence

from kstore.engine._fields import LogFields
from kstore.engine.append.appends import Appends
from kstore.engine.append.pending import PendingAppend
from kstore.engine.change.durability import DurabilityStrategy
from kstore.engine.change.growth import Growth
from kstore.engine.change.roll import Rolls
from kstore.engine.turn import TurnLock
from kstore.record._codec import EncodedBatch
from kstore.rules.sequence import Producer

class PlacedAppends:
    def __init__(
        self,
        appends: Appends,
        files: LogFields,
        lock: TurnLock,
        durability: DurabilityStrategy,
        rolls: Rolls,
        growth: Growth,
    ) -> None: ...
    def commit(self, append: PendingAppend) -> bool: ...

def continued(
    known: Producer, stamp: tuple[int, int, int, bool], batches: Sequence[EncodedBatch], offset: int
) -> Producer | None: ...
