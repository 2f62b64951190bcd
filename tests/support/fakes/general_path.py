"""A log whose appends all take the general path, with a call between their write and their publication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kstore.engine.append._path import AppendPath


class GeneralPath:
    """The steps of ``path``, which finds that every append needs a decision; ``written()`` follows each write."""

    def __init__(self, path: AppendPath, written: Callable[[], object]) -> None:
        self._path = path
        self._written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._path, name)

    def commit(self, append: object) -> bool:
        return False

    def commit_group(self, group: object) -> bool:
        return False

    def publish(self, *arguments: Any) -> None:
        self._written()
        self._path.publish(*arguments)
