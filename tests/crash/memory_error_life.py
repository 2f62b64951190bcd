"""A program in which every allocation of a call fails once; run by ``test_memory_errors``.

    python -m tests.crash.memory_error_life DIRECTORY CALL DURABILITY

For n = 0, 1, 2...: the n-th allocation in the call is refused, the log is examined and continues, until the call meets
no more refusals. Prints a line for each allocation; the last line is how many were refused. Only the call itself is
short of memory.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from ctypes import ArgumentError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kstore.errors import KstoreError, PoisonedError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.types import Durability
from tests.crash.log_life import Batch, Life
from tests.crash.refusals import refused
from tests.support.harness.evidence import Lost, Untyped, Wrong

# A call with more refusals does not end.
REFUSALS_MAX = 20_000
# What CPython raises instead of a MemoryError: in os.fspath, threading.Lock, os.open and ctypes.
DISGUISES = (TypeError, RuntimeError, SystemError, ArgumentError)


@dataclass(slots=True)
class Call:
    """A call to try: ``prepare`` returns what it would append, and the call itself, without arguments."""

    prepare: Callable[[Life], tuple[list[Batch], Callable[[], Any]]]
    needs_open: bool = True


def one(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
    batch = life.batch(life.model.end, 1)
    log, value = life.opened, batch.values[0]
    return [batch], lambda: log.append(value)


def many(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
    batch = life.batch(life.model.end, 5)
    log, values = life.opened, batch.values
    return [batch], lambda: log.append_many(values)


def batches(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
    made = [life.batch(life.model.end + 2 * number, 2) for number in range(5)]
    data = b"".join(
        build_batch([Record(number, life.clock.now_ms(), value=value) for number, value in enumerate(batch.values)])
        for batch in made
    )
    log = life.opened
    return made, lambda: log.append_batches(data)


def transaction(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
    batch = life.batch(life.model.end, 2, 7)
    records = [Record(batch.first + number, 1, value=value) for number, value in enumerate(batch.values)]
    data = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=batch.first, is_transactional=False)
    log = life.opened
    return [batch], lambda: log.append_batches(data, assign_offsets=False)


def on_log(name: str) -> Callable[[Life], tuple[list[Batch], Callable[[], Any]]]:
    def prepare(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
        life.append(1)
        return [], getattr(life.opened, name)

    return prepare


def read(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
    life.append(1)
    log, expected = life.opened, life.found()

    def call() -> None:
        for record in log.read():
            if expected.get(record.offset) != record.value:
                raise Wrong(f"offset {record.offset} has {record.value!r}")

    return [], call


def opening(life: Life) -> tuple[list[Batch], Callable[[], Any]]:
    return [], life.open


CALLS = {
    "append": Call(one),
    "append_many": Call(many),
    "append_batches": Call(batches),
    "transaction": Call(transaction),
    "roll": Call(on_log("roll")),
    "flush": Call(on_log("flush")),
    "read": Call(read),
    "open": Call(opening, needs_open=False),
}


def refuse(life: Life, call: Call, number: int) -> bool:
    """Refuses allocation ``number`` in one call, and examines the result; returns whether the call met the refusal."""
    batches, act = call.prepare(life)
    before = life.model.end
    error = refused(act, number)
    if error is not None and not isinstance(error, (MemoryError, KstoreError, *DISGUISES)):
        raise Untyped(repr(error)) from error
    if not call.needs_open and life.log is None:
        life.open()
    log = life.opened
    life.model.doubtful += batches
    if error is None:
        life.model.accept()
    found = life.look()
    if is_poisoned(log):
        found = reopened(life)  # recovery shows how the call ended
    there = [batch.first in found for batch in batches]
    if any(there) and not all(there):
        raise Wrong(f"part of the append: {there}")
    if any(there) != (life.opened.end_offset > before):
        raise Lost(f"the log ends at {life.opened.end_offset}, and holds offsets to {max(found, default=-1)}")
    life.model.settle(found, life.opened.end_offset)
    life.append(1)
    life.opened.check()
    keep_small(life)
    if not call.needs_open:
        life.close()
    return error is not None


def is_poisoned(log: Log) -> bool:
    assert log._writer is not None
    try:
        log._writer.files.ensure_writable()
    except PoisonedError:
        return True
    return False


def reopened(life: Life) -> dict[int, bytes]:
    life.close()
    life.open()
    return life.look()


def keep_small(life: Life) -> None:
    """A call on a growing log would need more allocations each time."""
    log, model = life.opened, life.model
    if log.end_offset - log.start_offset > 40:
        model.start_min = model.start_max = log.delete_records(log.end_offset - 10)
        model.certain = [batch for batch in model.certain if batch.last >= model.start_min]


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    path, call, durability = Path(sys.argv[1]), CALLS[sys.argv[2]], cast(Durability, sys.argv[3])
    life = Life(path, SYSTEM_FS, durability)
    life.open()
    life.append()
    if not call.needs_open:
        life.close()
    refusal_count = quiet = 0
    for number in range(REFUSALS_MAX):
        met = refuse(life, call, number)
        print(number, flush=True)
        refusal_count += met
        # A harmless refusal may be swallowed; after ten calls without a refusal there are no more.
        quiet = 0 if met else quiet + 1
        if quiet == 10:
            break
    if life.log is not None:
        life.close()
    life.assert_survived()
    print(refusal_count)


if __name__ == "__main__":
    main()
