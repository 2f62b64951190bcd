"""The machine of a simulated life: a file system in memory whose disk keeps only what was synced, and its faults.

A fault is armed with a number of changes to wait for. Then it strikes: the power fails, the process is killed, or one
operation fails. ``perform`` applies every change to the memory, which the process sees, and
to the disk, which a power cut may leave.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from kstore.files.fs import storage_error, sync_error
from tests.support.fakes.crash_states import Choice, Disk, Image, Torn, all_but, everything, nothing, one_is, only, some
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, SYNCS, WRITES, Operation, WatchedFs
from tests.support.fakes.memory_fs import MemoryFs

Result = TypeVar("Result")

ROOT = Path("/memory")
SEEN = CHANGES | {"store"}
# Operations that need space on the disk.
GROWS = WRITES | {"create", "mkdir", "map", "allocate"}

FaultKind = Literal["power", "kill", "fail", "full", "interrupt", "memory"]
# What is raised before, in or after an operation that does not fail itself.
RAISED: dict[FaultKind, type[BaseException]] = {"interrupt": KeyboardInterrupt, "memory": MemoryError}


class Ended(BaseException):
    """The process has ended: none of its later requests take effect."""


@dataclass(slots=True)
class Fault:
    """What goes wrong after ``countdown`` more changes.

    ``share`` of a write in progress reaches the file; ``in_sync``: a write that syncs fails in its sync, and an
    interrupt or a lack of memory comes after its operation.
    """

    kind: FaultKind
    countdown: int
    share: float = 0.0
    in_sync: bool = False


class _ClockedFs(MemoryFs):
    """Files get their times from the life's clock."""

    def __init__(self, image: Image | None, clock: ManualClock) -> None:
        super().__init__(ROOT, image)
        self._clock = clock
        self._ticks = 0

    def tick(self) -> int:
        self._ticks += 1
        return self._clock.now_ms() * 1_000_000 + self._ticks % 1_000_000


class SimulatedFs(WatchedFs):
    """``FileSystem`` of one process; the next process gets another one, on the same machine or a restarted one."""

    def __init__(self, clock: ManualClock, image: Image | None = None) -> None:
        self.memory = _ClockedFs(image, clock)
        super().__init__(self.memory)
        self.disk = Disk(ROOT, image=image or {})
        self._begin("")

    def _begin(self, trace: str) -> None:
        self.fault: Fault | None = None
        self.ended: FaultKind | None = None
        self.is_full = False
        self.failure_count = 0
        self.failed_sync = False
        self.change_count = 0
        self._trace = hashlib.sha256(trace.encode())

    @property
    def trace(self) -> str:
        """A hash of all changes so far, each with its bytes."""
        return self._trace.hexdigest()

    def next_process(self) -> SimulatedFs:
        """The file system for the process after a killed one: the machine keeps running."""
        following = SimulatedFs.__new__(SimulatedFs)
        WatchedFs.__init__(following, self.memory)
        following.memory, following.disk = self.memory, self.disk
        following._begin(self.trace)
        self.ended = self.ended or "kill"
        return following

    def restarted(self, clock: ManualClock, choose: Choice) -> SimulatedFs:
        """The file system after a power cut that left what ``choose`` selects."""
        following = SimulatedFs(clock, self.disk.image(choose))
        following._begin(self.trace)
        self.ended = self.ended or "power"
        return following

    # --- each operation ---------------------------------------------------------------------------------------------

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if self.ended:
            if operation.kind in ("close", "advise"):
                return action()
            raise Ended(self.ended)
        if operation.kind == "advise" and self.failed_sync:
            # A later sync succeeds: the pages of the failed one are marked clean.
            self.drop_lost(everything if self.change_count % 2 else nothing, operation.inode)
        if operation.kind not in SEEN:
            return action()
        self.change_count += 1
        self._trace.update(
            f"{operation.kind} {operation.path} {operation.position} {operation.size} {operation.target}\n".encode()
        )
        self._trace.update(operation.data)
        fault = self.fault
        if fault is not None:
            fault.countdown -= 1
            if fault.countdown < 0 and (fault.kind not in ("fail", "full") or operation.kind != "store"):
                self._strike(fault, operation, action)
        if self.is_full and operation.kind in GROWS:
            self._fail(operation, errno.ENOSPC, 0.0)
        result = action()
        self._apply(operation, result)
        return result

    def drop_lost(self, choose: Choice, number: int | None = None) -> None:
        """The page cache drops what failed syncs left in it."""
        for inode, data in self.disk.drop_lost(choose, number).items():
            self.memory.put_back(inode, data)

    def rot(self, number: int, data: bytes, at: int) -> None:
        """Byte ``at`` of a file has changed on disk, and no cache has the old byte: the content is ``data``."""
        self.memory.put_back(number, data)
        self.disk.rot(number, at, data[at])
        self._trace.update(f"rot {number} {at}\n".encode())

    def _apply(self, operation: Operation, result: object) -> None:
        number, mtime_ns = operation.inode, 0
        if operation.kind == "create":
            assert isinstance(result, int)
            number = result
        elif operation.kind == "set_mtime":
            number = self.memory.stat(operation.path).inode
        if number:
            mtime_ns = self.memory.mtime_ns_of(number)
        self.disk.apply(replace(operation, inode=number, mtime_ns=mtime_ns))

    def _strike(self, fault: Fault, operation: Operation, action: Callable[[], object]) -> None:
        match fault.kind:
            case "interrupt" | "memory":
                self.fault = None
                self.failure_count += 1
                if fault.in_sync:
                    self._apply(operation, action())
                elif operation.kind in WRITES:
                    self._write_part(operation, fault.share)
                raise RAISED[fault.kind]
            case "full":
                self.is_full, self.fault = True, None
            case "fail":
                self.fault = None
                code = errno.EIO if fault.in_sync else errno.ENOSPC
                self._fail(operation, code, fault.share, in_sync=fault.in_sync)
            case ended:
                if operation.kind in WRITES:
                    self._write_part(operation, fault.share)
                self.ended = ended
                raise Ended(ended)

    def _write_part(self, operation: Operation, share: float) -> None:
        part = operation.data[: int(len(operation.data) * share)]
        if part:
            self.memory.open(operation.path, write=True).write_all([part], operation.position)
            self._apply(replace(operation, kind="write_all", data=part), None)

    def _fail(self, operation: Operation, code: int, share: float, *, in_sync: bool = False) -> None:
        self.failure_count += 1
        is_sync = operation.kind in SYNCS or (operation.kind == "write_and_sync" and in_sync)
        error = OSError(code, os.strerror(code))
        if is_sync:
            self.failed_sync = True
            if operation.kind == "write_and_sync":
                self._write_part(operation, 1.0)
            if operation.kind != "sync_dir":
                self.disk.lose_sync(replace(operation, kind="fsync", data=b""))
            raise sync_error(error, operation.path)
        if operation.kind in WRITES:
            self._write_part(operation, share)
        raise storage_error(error, operation.path, writing=True)


def any_choice(disk: Disk, generator: random.Random) -> Choice:
    """Any legal state of the disk: none, all, all but one unit, one unit, torn sectors, any part."""
    count = disk.unit_count()
    kind = generator.randrange(8)
    if kind == 0 or not count:
        return nothing
    number, others = generator.randrange(count), generator.random() < 0.5
    match kind:
        case 1:
            return everything
        case 2:
            return all_but(number)
        case 3:
            return only(number)
        case 4:
            filler = generator.choice(("", "zeros", "noise", "stale"))
            return one_is(number, Torn(generator.random(), filler), others=others)
        case _:
            return some(generator, torn=others)


def flip_bit(data: bytes, generator: random.Random) -> tuple[bytes, int]:
    """``data`` with one flipped bit, and the position of its byte."""
    at = generator.randrange(len(data))
    changed = bytearray(data)
    changed[at] ^= 1 << generator.randrange(8)
    return bytes(changed), at
