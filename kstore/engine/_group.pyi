from collections.abc import Callable
from typing import Any

from kstore.clock import Clock

class Pending:
    result: Any
    error: Exception | None

class GroupCommit:
    def __init__(self, commit: Callable[[list[Any]], None], clock: Clock) -> None: ...
    def submit(self, item: Pending) -> None: ...
    @property
    def waiting_count(self) -> int: ...
    @property
    def is_led(self) -> bool: ...
