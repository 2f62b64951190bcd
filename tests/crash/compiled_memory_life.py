"""A program in which every allocation of each compiled call fails once; run by ``test_memory_errors``.

    python -m tests.crash.compiled_memory_life [CALL]

For n = 0, 1, 2...: the n-th allocation of a call is refused. Either the call raises MemoryError, changes none of its
arguments and returns the right result when it is repeated, or it returns the right result at once. Prints a line for
each call; the last line is how many errors there were.
"""

from __future__ import annotations

import copy
import gc
import sys
from array import array
from collections.abc import Callable
from typing import Any

from kstore.cli._json_lines import kcat_line, plain_line
from kstore.cli.dump._lines import CONTENTS, UNKNOWN, plain_lines
from kstore.indexes._search import entries_around, floor_slot, offset_entries, offset_rows, time_entries, time_rows
from kstore.record._codec import (
    Record,
    as_headers,
    check_records,
    decode_offsets_timestamps,
    decode_values,
    encode_varlong,
)
from kstore.record._compact import OffsetMap
from kstore.record._runs import (
    Run,
    batch_run,
    batch_times,
    epoch_starts,
    find_batch,
    follow_producers,
    greatest_bytes,
    index_notes,
    record_at,
    walk_run,
)
from kstore.record.batch import BATCH_HEADER_BYTES, RecordBatch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.types import INT64_MAX, OFFSET_MAX
from tests.crash.refusals import refused
from tests.evidence import Untyped, Wrong
from tests.run_helpers import marker, small_batch

# A call may go on after a refusal. It has no allocation left if so many in a row caused no error.
QUIET_MAX = 20
# A call with more refusals does not end.
REFUSALS_MAX = 1_000
# More than a compiled type keeps of its freed objects.
KEPT_MAX = 100
EMPTY = (b"", 0, 0, 0, 0, 0, OFFSET_MAX, 0, OFFSET_MAX)
COUNT = 6
DATA = small_batch(0, COUNT, size=600) + small_batch(COUNT, COUNT, size=600)
FIRST_SIZE = len(small_batch(0, COUNT, size=600))
RECORD = Record(2**40, 2**40, key=b"key" * 200, value=b"value" * 200, headers=[("name", b"text")])
ROWS = array("q", [number for at in range(200) for number in (2**20 + at, 5_000 * at, 2**41 + at, 2**20 + at)])
OFFSETS = offset_entries(ROWS, 0, 200, 0)
TIMES = time_entries(ROWS, 0, 200, 0, -1)


def run_of(data: bytes) -> Run:
    return walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, OFFSET_MAX)


def of_producers() -> bytes:
    """Two producers: one transaction is aborted, another stays open."""
    owned: dict[str, Any] = {"is_transactional": True, "producer_epoch": 3, "base_sequence": 0}
    return (
        small_batch(0, 2, producer_id=2**40, **owned)
        + small_batch(2, 2, producer_id=2**41, leader_epoch=1000, **owned)
        + marker(4, 2**40, 3, EndTransactionMarker(ControlRecordType.ABORT, 7))
        + small_batch(5, 1, producer_id=2**40, leader_epoch=2000, **(owned | {"base_sequence": 2}))
    )


def records_of(made: Run | None) -> list[Record] | None:
    return None if made is None else list(made.records(0, OFFSET_MAX, array("q", [0, 0, 0])))


def described(result: Any) -> Any:
    """What two equal results of a call have in common."""
    if isinstance(result, Run):
        return result.start, result.stop, result.base_offset, result.next_offset, result.reason, records_of(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return tuple(map(described, result))
    if isinstance(result, (tuple, list)):
        return [described(each) for each in result]
    return bytes(result.data) if isinstance(result, RecordBatch) else result


def compacted(offsets: OffsetMap, data: bytes) -> object:
    return offsets.put_run(data, 0, len(data), 0, OFFSET_MAX), len(offsets), offsets.get(b"k")


# Each call, and what makes its arguments. Numbers and texts are large: CPython keeps objects for the small ones.
RUN, PRODUCERS = run_of(DATA), run_of(of_producers())
PAYLOAD = (DATA, BATCH_HEADER_BYTES, FIRST_SIZE, COUNT)
CALLS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "entries_around": (entries_around, lambda: (OFFSETS, 200, 0, 2**20 + 100)),
    "floor_slot": (floor_slot, lambda: (OFFSETS * 10, 2000, 8, OFFSETS[8 * 199 :][:4], 0)),
    "offset_entries": (offset_entries, lambda: (ROWS[:], 0, 200, 0)),
    "time_entries": (time_entries, lambda: (ROWS[:], 0, 200, 0, -1)),
    "offset_rows": (offset_rows, lambda: (OFFSETS,)),
    "time_rows": (time_rows, lambda: (TIMES,)),
    "walk_run": (walk_run, lambda: (DATA, 0, len(DATA), 0, 0, len(DATA), OFFSET_MAX, 0, OFFSET_MAX)),
    "find_batch": (find_batch, lambda: (DATA, len(DATA), COUNT + 1, 0, OFFSET_MAX)),
    "batch_run": (batch_run, lambda: (DATA, FIRST_SIZE, COUNT + 1, OFFSET_MAX, len(DATA))),
    "record_at": (record_at, lambda: (DATA, FIRST_SIZE, COUNT + 1, array("q", [0, 0, 0]))),
    "index_notes": (index_notes, lambda: (RUN, -1, -1, 2**20, 1)),
    "epoch_starts": (epoch_starts, lambda: (PRODUCERS, -1)),
    "batch_times": (batch_times, lambda: (RUN, 1)),
    "follow_producers": (follow_producers, lambda: (PRODUCERS, {}, {})),
    "greatest_bytes": (greatest_bytes, lambda: (b"ab" * 400, b"ba" * 400)),
    "moved_to": (Run.moved_to, lambda: (RUN, 2**40)),
    "check_records": (check_records, lambda: (*PAYLOAD, COUNT - 1, 2**40)),
    "decode_values": (decode_values, lambda: (*PAYLOAD, 2**40, COUNT - 1)),
    "decode_offsets_timestamps": (
        decode_offsets_timestamps, lambda: (*PAYLOAD, 2**40, 2**40, COUNT - 1, 0, -1, 0, INT64_MAX)
    ),
    "encode_varlong": (encode_varlong, lambda: (2**62,)),
    "as_headers": (as_headers, lambda: ([("a", b"1"), ("b" * 600, None)],)),
    "put_run": (compacted, lambda: (OffsetMap(1 << 16), DATA)),
    "plain_line": (plain_line, lambda: (RECORD, b"{" * 600, b"CreateTime")),
    "kcat_line": (kcat_line, lambda: (RECORD, b"{" * 600, b"create")),
    "plain_lines": (plain_lines, lambda: (DATA, 0, len(DATA), 0, CONTENTS, UNKNOWN, [])),
}  # fmt: skip
# Their callers pass a copy, or an object that they discard if the call raises.
CHANGES_ARGUMENTS = {"follow_producers", "put_run"}


def seen(arguments: tuple[Any, ...]) -> list[Any]:
    return [copy.copy(each) for each in arguments if isinstance(each, (dict, list, array, bytes))]


def refuse_each(name: str) -> int:
    call, made = CALLS[name]
    expected = described(call(*made()))
    assert expected is not None
    slot: list[Any] = [None]
    errors = quiet = 0
    for number in range(REFUSALS_MAX):
        if quiet == QUIET_MAX:
            if not errors:
                raise Wrong(f"{name} met no refusal")
            return errors
        arguments = made()
        before = seen(arguments)

        def act(arguments: tuple[Any, ...] = arguments) -> None:
            slot[0] = call(*arguments)

        slot[0] = None
        # These take the freed objects that their types keep for reuse.
        kept = [each for _ in range(KEPT_MAX) for each in (walk_run(*EMPTY), Record(0, 0))]
        error = refused(act, number)
        del kept
        if error is None:
            quiet += 1
        elif type(error) is not MemoryError:
            raise Untyped(repr(error)) from error
        else:
            quiet = 0
            errors += 1
            if name in CHANGES_ARGUMENTS:
                arguments = made()
            elif seen(arguments) != before:
                raise Wrong(f"{name}, allocation {number}: the arguments became {seen(arguments)}, expected {before}")
            slot[0] = call(*arguments)
        if described(slot[0]) != expected:
            raise Wrong(f"{name}, allocation {number}: {described(slot[0])}, expected {expected}")
    raise Wrong(f"{name} met more than {REFUSALS_MAX} refusals")


if __name__ == "__main__":
    gc.disable()
    total = 0
    for name in sys.argv[1:] or CALLS:
        total += (count := refuse_each(name))
        print(name, count, flush=True)
    print(total)
