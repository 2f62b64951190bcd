"""Two threads take turns line by line, as a seed says: a reader, and the writer that changes its log.

Readers beside free threads (``test_concurrency``) meet a wrong order of steps once in millions of reads. Here each seed
is another order, and the same seed is the same order.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kstore.errors import OffsetOutOfRangeError
from kstore.log import Log
from tests.crash.strict_reads import StrictReads
from tests.crash.test_concurrency import SETTINGS, Writer
from tests.support.harness.evidence import Hung
from tests.support.harness.selection import tries

PACKAGE = str(Path(sys.modules[Log.__module__].__file__ or "").parent)
# A thread that waits for the other's lock does not pass its turn on: the other takes it.
STOLEN_AFTER_SECONDS = 0.004
HANG_SECONDS = 300

Tracer = Callable[[FrameType, str, Any], Any]


class Turns:
    """Which of two threads continues. The turn may change at each line of kstore."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._chance = generator.choice([0.01, 0.03, 0.1])
        self._changed = threading.Condition()
        self._turn = 0
        self._at_work = {0, 1}

    def tracer(self, thread: int) -> Tracer:
        def line(frame: FrameType, event: str, argument: Any) -> Tracer:
            if event == "line":
                self._point(thread)
            return line

        def call(frame: FrameType, event: str, argument: Any) -> Tracer | None:
            return line if frame.f_code.co_filename.startswith(PACKAGE) else None

        return call

    def _point(self, thread: int) -> None:
        with self._changed:
            other = 1 - thread
            if self._turn == thread and other in self._at_work and self._generator.random() < self._chance:
                self._turn = other
                self._changed.notify_all()
            while self._turn != thread and other in self._at_work:
                if not self._changed.wait(STOLEN_AFTER_SECONDS):
                    self._turn = thread

    def leave(self, thread: int) -> None:
        with self._changed:
            self._at_work.discard(thread)
            self._turn = 1 - thread
            self._changed.notify_all()


def read_beside_writer(path: Path, seed: int) -> None:
    """One order of steps. Raises: Wrong, Hung."""
    generator = random.Random(seed)
    with Log(path, durability="os", **SETTINGS) as log:
        writer = Writer(log, seed)
        for number in range(generator.randint(3, 15)):
            writer.step("everything", number)
        first = generator.randint(log.start_offset, max(log.start_offset, log.high_watermark - 1))
        stop = first + generator.randint(1, 200)
        options: dict[str, Any] = {}
        if generator.random() < 0.4:
            options["isolation_level"] = "read_committed"
        if generator.random() < 0.4:
            options |= {"follow": True, "timeout": 0.001}
        reads, cuts = StrictReads(writer.lives), writer.lives.cuts
        turns = Turns(random.Random(seed + 1))
        failed: list[BaseException] = []

        def read() -> None:
            sys.settrace(turns.tracer(1))
            try:
                pairs = ((record.offset, record.value) for record in log.read(first, stop, **options))
                reads.hold(pairs, first, stop, cuts)
            except OffsetOutOfRangeError:
                pass  # deleted meanwhile
            except BaseException as error:
                failed.append(error)
            finally:
                sys.settrace(None)
                turns.leave(1)

        reader = threading.Thread(target=read, daemon=True)
        before = sys.gettrace()
        reader.start()
        sys.settrace(turns.tracer(0))
        try:
            for number in range(generator.randint(2, 5)):
                writer.step("everything", number)
        finally:
            sys.settrace(before)
            turns.leave(0)
        reader.join(HANG_SECONDS)
        if reader.is_alive():
            raise Hung(f"the reader of seed {seed} does not end")
        if failed:
            raise AssertionError(f"seed {seed}: a read from {first} to {stop}, {options}") from failed[0]


def test_a_reader_passes_over_nothing_in_any_order_of_steps(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    count = tries(300, quick=25)
    for number in range(count):
        read_beside_writer(tmp_path / str(number), seed + number)
    tried("reads", count)


@pytest.mark.soak
def test_a_reader_passes_over_nothing_in_many_orders_of_steps(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    for number in range(10_000):
        read_beside_writer(tmp_path / str(number), seed + 10_000 + number)
    tried("reads", 10_000)
