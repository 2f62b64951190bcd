from collections.abc import Callable
from typing import Any, TypeVar

from kstore.engine._fields import LogFields
from kstore.engine.change.durability import WriteBehind
from kstore.engine.change.growth import Growth
from kstore.engine.change.roll import Rolls
from kstore.engine.turn import TurnLock

SINGLE_BYTES_MAX: int

Append = TypeVar("Append", bound=Callable[..., Any])

class SingleAppends:
    def use(self, size_max: int, needs_key: bool) -> None: ...
    def append(self, value: object, key: object) -> tuple[int, int] | None: ...

class WrittenAppends(SingleAppends):
    def __init__(
        self, files: LogFields, lock: TurnLock, durability: WriteBehind, rolls: Rolls, growth: Growth
    ) -> None: ...

def wake_followers(growth: Growth) -> None: ...
def single_first(append: Append) -> Append: ...
