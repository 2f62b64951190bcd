from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from kstore.queue.known import KnownItems
from kstore.queue.leases import Item
from kstore.queue.state import QueueState

ItemT = TypeVar("ItemT", bound=Item)

def apply_plain(known: KnownItems[Any], value: bytes, /) -> bool: ...
def finish_all(known: KnownItems[Any], offsets: Iterable[int], /) -> bool: ...
def forget_run(known: KnownItems[Any], first: int, stop: int, /) -> None: ...
def offer_known(state: QueueState[ItemT, Any], records: Sequence[ItemT], /) -> None: ...
def take_free(
    state: QueueState[ItemT, Any], fresh: deque[ItemT], wanted: int, taken: set[int], now: float, now_ms: int, /
) -> list[ItemT]: ...
