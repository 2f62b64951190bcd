"""A file system that does something else once, between two operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.support.fakes.fake_fs import READS, Operation, WatchedFs

Result = TypeVar("Result")


class MeddlingFs(WatchedFs):
    """Does something else once, before the operation of that number; counts reads, or the ``kinds``."""

    def __init__(self, kinds: frozenset[str] = READS) -> None:
        super().__init__()
        self._kinds = kinds
        self._count_left = -1
        self._meddle: Callable[[], object] = int

    def before(self, number: int, meddle: Callable[[], object]) -> None:
        self._count_left, self._meddle = number, meddle

    def is_past(self) -> bool:
        """Whether it was done; from now on it is not."""
        is_past, self._count_left = self._count_left < 0, -1
        return is_past

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind in self._kinds and self._count_left >= 0:
            self._count_left -= 1
            if self._count_left < 0:
                self._meddle()
        return action()
