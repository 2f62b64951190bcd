from kstore.engine._fields import LogFields
from kstore.engine.append._group import GroupCommit, Pending
from kstore.engine.append._single import SingleAppends
from kstore.engine.append.pending import PendingAppend
from kstore.engine.change.durability import SyncInWrite
from kstore.engine.change.growth import Growth
from kstore.engine.change.roll import Rolls
from kstore.engine.turn import TurnLock

class PendingSingle(Pending):
    def __init__(self, value: bytes, key: bytes | None) -> None: ...
    @property
    def value(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...

class SyncedAppends(SingleAppends):
    def __init__(
        self,
        files: LogFields,
        lock: TurnLock,
        durability: SyncInWrite,
        rolls: Rolls,
        growth: Growth,
        group: GroupCommit,
    ) -> None: ...
    def commit(self, group: list[PendingSingle | PendingAppend]) -> bool: ...

def settle(singles: list[PendingSingle | PendingAppend], appends: list[PendingAppend | None]) -> None: ...
