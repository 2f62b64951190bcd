"""A writer is killed at any instant, again and again in one directory: what was acknowledged to it stays done."""

from __future__ import annotations

import copy
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kstore.log import Log
from kstore.types import CutRange, Durability
from tests.crash.killed_writers import SETTINGS
from tests.support.harness.evidence import Hung, Lost, Untyped, Wrong

KILLS = 8  # of each durability
KILLS_LONG = 350
ROUNDS = 8  # kills in one directory
# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0
# From the writer's start: it is killed while it opens or recovers, or after a few hundred appends.
SECONDS_TO_LIVE = (0.0005, 0.12)

Tried = Callable[[str, int], None]


class Zygote:
    """The process that forks writers and passes on their reports."""

    def __init__(self, module: str = "tests.crash.killed_writers") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._pipe = self._process.stdin, self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)

    def killed_after(self, seconds: float, path: Path, durability: str, seed: int) -> list[list[str]]:
        """The reports of a writer that was killed ``seconds`` after its start. Raises: Hung, Untyped."""
        self._requests.write(f"{path} {durability} {seed}\n".encode())
        self._requests.flush()
        began = time.monotonic()
        kill_at = None
        said = b""
        while b"\nended " not in said or not said.endswith(b"\n"):
            now = time.monotonic()
            if now - began > SECONDS_MAX:
                raise Hung("the writer did not end")
            if kill_at is None and b"started " in said and said.endswith(b"\n"):
                kill_at = now + seconds
                pid = next(int(line.split()[1]) for line in said.splitlines() if line.startswith(b"started "))
            wait = SECONDS_MAX if kill_at is None or kill_at < 0 else max(kill_at - now, 0)
            if kill_at is not None and kill_at >= 0 and now >= kill_at:
                os.kill(pid, signal.SIGKILL)
                kill_at = -1.0
                continue
            if self._selector.select(wait):
                said += os.read(self._pipe, 1 << 16)
        lines = [line.split() for line in said.decode().splitlines() if not line.startswith("started ")]
        if failed := [line for line in lines if line[0] == "failed"]:
            raise Untyped(" ".join(failed[0]))
        if lines.pop() != ["ended", str(-signal.SIGKILL)]:
            raise Untyped(f"the writer ended by itself: {lines[-3:]}")
        return lines

    def close(self) -> None:
        self._requests.close()
        self._process.wait(SECONDS_MAX)
        self._process.stdout.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@dataclass(slots=True)
class Model:
    """What must be in the log: each offset's serial number, and what was in progress at the kill."""

    serials: dict[int, int] = field(default_factory=dict)
    batches: list[tuple[int, int]] = field(default_factory=list)  # first offset and the one after the last
    start: int = 0
    # The start of the log if a truncation emptied its first segment, which this model does not know.
    moved_start: int | None = None
    end: int = 0
    is_viewed: bool = False
    pending: list[str] | None = None

    def hear(self, line: list[str]) -> None:
        match line:
            case ["done"]:
                assert self.pending is not None
                self._do(*self.pending)
                self.pending = None
            case ["open", start, end, corrupt, saved]:
                # Segments that a truncation had yet to remove are set aside if an earlier one left a gap before them.
                is_cut_short = self.pending is not None and self.pending[0] == "truncate"
                if int(corrupt) or (int(saved) and not is_cut_short):
                    raise Wrong(f"{corrupt} ranges fenced and {saved} parts cut after a kill")
                self.must_be(int(start), int(end))
                self.start, self.end, self.moved_start = int(start), int(end), None
            case _:
                self.pending = line

    def _do(self, what: str, *numbers: str) -> None:
        offset = int(numbers[0])
        match what:
            case "append":
                count, serial = int(numbers[1]), int(numbers[2])
                self.serials.update((at, serial) for at in range(offset, offset + count))
                self.batches.append((offset, offset + count))
                self.end = offset + count
            case "truncate":
                if self._may_empty(offset):
                    self.moved_start = offset
                self._cut_from(min([offset, *(first for first, behind in self.batches if first < offset < behind)]))
                self.end = offset
            case "start":
                self._cut_from(0)
                self.start, self.end, self.moved_start = offset, offset, None
            case "delete":
                self.start, self.moved_start = max(self.start, offset), None

    def removes(self, cut: CutRange) -> bool:
        """Whether the truncation in progress removes this whole segment."""
        match self.pending:
            case ["truncate", offset]:
                return cut.position == 0 and int(Path(cut.path).stem) >= int(offset)
        return False

    def _may_empty(self, offset: int) -> bool:
        """Whether a truncation to ``offset`` cuts a batch in two, with no record before it."""
        is_cut = any(first < offset < behind for first, behind in self.batches)
        return is_cut and not any(self.start < behind <= offset for _, behind in self.batches)

    def _cut_from(self, offset: int) -> None:
        self.serials = {at: serial for at, serial in self.serials.items() if at < offset}
        self.batches = [(first, behind) for first, behind in self.batches if first < offset]

    def must_be(self, start: int, end: int) -> None:
        """Compares the start and the end found with what was done or in progress."""
        starts, ends = {self.start}, (self.end, self.end)
        if self.moved_start is not None:
            starts.add(self.moved_start)
        match self.pending:
            case ["append", first, count, _]:
                ends = (self.end, int(first) + int(count))
            case ["truncate", offset]:
                # Until it is done, the end may be that of the last batch below it, where offsets are missing.
                lowest = max((behind for _, behind in self.batches if behind <= int(offset)), default=self.start)
                ends = (min(lowest, self.end), self.end)
                if self._may_empty(int(offset)):
                    starts.add(int(offset))
            case ["start", offset]:
                starts.add(int(offset))
                ends = (min(int(offset), self.end), max(int(offset), self.end))
            case ["delete", offset]:
                starts.add(int(offset))
        if self.is_viewed:
            # After a truncation, a view of a dead writer's log ends with the last batch until the next append.
            ends = (min(ends[0], max((behind for _, behind in self.batches), default=self.start)), ends[1])
        if start not in starts:
            raise Wrong(f"the log starts at {start}, expected one of {starts}, pending {self.pending}")
        if not ends[0] <= end <= ends[1]:
            kind = Lost if end < ends[0] else Wrong
            raise kind(f"the log ends at {end}, expected {ends[0]} to {ends[1]}, pending {self.pending}")

    def hold(self, log: Log) -> int:
        """Every record that was acknowledged and not cut is there; besides, only what was in progress."""
        start, end = log.start_offset, log.high_watermark
        self.must_be(start, end)
        found: dict[int, int] = {}
        for record in log.read():
            assert record.value is not None
            checksum, _, body = record.value.partition(b":")
            named, serial, _ = body.split(b":", 2)
            if int(checksum, 16) != crc32(body) or int(named) != record.offset or record.offset in found:
                raise Wrong(f"offset {record.offset} has {record.value[:40]!r}")
            found[record.offset] = int(serial)
        may_go = set() if self.pending is None else self._may_go(self.pending)
        if lost := {at for at in self.serials if at >= start and at not in found} - may_go:
            raise Lost(f"offsets {sorted(lost)}, pending {self.pending}")
        may_come: dict[int, int] = {}
        if self.pending is not None and self.pending[0] == "append":
            first, count, coming = map(int, self.pending[1:])
            may_come = dict.fromkeys(range(first, first + count), coming)
        for at, number in found.items():
            if self.serials.get(at, may_come.get(at)) != number:
                raise Wrong(f"offset {at} has serial {number}, expected {self.serials.get(at)} or {self.pending}")
        # A truncation in progress removes from the end; an append in progress adds from its beginning.
        kept = sorted(found)
        expected = sorted(at for at in {**self.serials, **may_come} if at >= start)
        if kept != expected[: len(kept)]:
            raise Wrong(f"holes: {kept}, expected a prefix of {expected}, pending {self.pending}")
        self.serials = found
        self.batches = [(first, behind) for first, behind in self.batches if first in found or behind - 1 in found]
        if may_come and int(self.pending[1]) in found:  # type: ignore[index]
            self.batches.append((int(self.pending[1]), end))  # type: ignore[index]
        self.start, self.end, self.moved_start, self.pending = start, end, None, None
        return len(found)

    def _may_go(self, pending: list[str]) -> set[int]:
        match pending:
            case ["truncate", offset]:
                lowest = min([int(offset), *(first for first, behind in self.batches if first < int(offset) < behind)])
                return {at for at in self.serials if at >= lowest}
            case ["start", _]:
                return set(self.serials)
        return set()


def _kill(count: int, durability: Durability, root: Path, zygote: Zygote, tried: Tried, seed: int) -> None:
    generator = random.Random(f"{seed} {durability}")
    settings: dict[str, Any] = SETTINGS
    read_count = 0
    for number in range(count):
        if number % ROUNDS == 0:
            looked_at = path = root / f"log-{number}"
            model = Model()
        low, high = SECONDS_TO_LIVE
        seconds = low * (high / low) ** generator.random()
        said = zygote.killed_after(seconds, path, durability, generator.randrange(1, 10**9))
        for line in said:
            model.hear(line)
            if line[0] == "open":
                model.pending = None
        tried("kills", 1)
        if not any(path.glob("*.log")):
            continue  # killed before the log existed
        # In "sync" a view ends at the durable end: it does not see what only recovery finds.
        if generator.random() < 0.5 and not (durability == "sync" and looked_at != path):
            with Log(path, read_only=True, **settings) as view:
                seen = copy.deepcopy(model)
                seen.is_viewed = True
                read_count += seen.hold(view)
        looked_at = path
        if generator.random() < 0.5:
            # Look at a copy: the next writer has to recover the original, and may be killed meanwhile.
            looked_at = root / f"copy-{number}"
            shutil.copytree(path, looked_at)
        with Log(looked_at, durability=durability, **settings) as log:
            if log.recovery.corrupt or any(cut.saved_as and not model.removes(cut) for cut in log.recovery.cut):
                raise Wrong(f"after a kill with the last reports {said[-4:]}: {log.recovery}")
            read_count += model.hold(log)
            log.check()
            if log.verify().corrupt:
                raise Wrong(f"after a kill: {log.verify().corrupt}")
    tried("reads", read_count)


DURABILITIES = [
    pytest.param(name, marks=pytest.mark.promise(f"killed: {name}", f"returns: {name}"))
    for name in ("sync", "interval", "os")
]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_what_was_acknowledged_is_there_after_every_kill(
    durability: Durability, tmp_path: Path, zygote: Zygote, tried: Tried, seed: int
) -> None:
    _kill(KILLS, durability, tmp_path, zygote, tried, seed)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
def test_what_was_acknowledged_is_there_after_a_thousand_kills(
    durability: Durability, tmp_path: Path, zygote: Zygote, tried: Tried, seed: int
) -> None:
    _kill(KILLS_LONG, durability, tmp_path, zygote, tried, seed + 1)
