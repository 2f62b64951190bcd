"""A file system that records what is done in it on the thread of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from tests.support.fakes.fake_fs import SYNCS, Operation, WatchedFs

Result = TypeVar("Result")


class LoopFs(WatchedFs):
    """``on_loop``: what was done on the loop's thread; ``sync_count``: how many times anything waited for the disk."""

    def __init__(self, inner: FileSystem = SYSTEM_FS) -> None:
        super().__init__(inner)
        self.on_loop: list[str] = []
        self.sync_count = 0

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind in SYNCS or operation.kind == "write_and_sync":
            self.sync_count += 1
        if asyncio._get_running_loop() is not None:
            self.on_loop.append(f"{operation.kind} {operation.path}")
        return action()
