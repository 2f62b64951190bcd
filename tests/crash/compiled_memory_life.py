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
from kstore.messages._wire import MessageReader, StructPlan
from kstore.messages.schema import load_messages
from kstore.record._codec import (
    BatchBuffer,
    EncodedBatch,
    Record,
    as_headers,
    check_records,
    decode_offsets_timestamps,
    decode_values,
    encode_batch,
    encode_varlong,
)
from kstore.record._columns import ColumnBuffer, ColumnBuilder
from kstore.record._compact import OffsetMap
from kstore.record._rows import BytesRows, HeaderRows, NumberRows, Rows
from kstore.record._runs import (
    KeySketch,
    OffsetCheck,
    Run,
    RunCounts,
    Texts,
    TimeCheck,
    batch_run,
    batch_times,
    epoch_starts,
    falling_epoch,
    find_batch,
    follow_producers,
    follow_transactions,
    greatest_bytes,
    index_notes,
    pass_producers,
    record_at,
    walk_run,
)
from kstore.record.batch import BATCH_HEADER_BYTES, RecordBatch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.record.rows import PartitionedEncoder, TableRows
from kstore.state.producer_snapshot import ProducerEntry
from kstore.state.producer_state import ProducerState
from kstore.types import INT64_MAX, OFFSET_MAX
from tests.crash.refusals import refused
from tests.support.harness.evidence import Untyped, Wrong
from tests.support.lives.run_helpers import marker, small_batch

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


def of_many() -> bytes:
    """Batches of two records, and transactions of one; some control batches are no markers."""
    parts, offset = [], 0
    for number in range(12):
        owned: dict[str, Any] = {"is_transactional": True, "producer_epoch": 3, "leader_epoch": 2000 - number}
        owned["producer_id"] = 2**40 + number
        end = EndTransactionMarker(ControlRecordType.COMMIT, 7)
        parts += [small_batch(offset, 2, size=400), small_batch(offset + 2, 1, base_sequence=0, **owned)]
        parts += [marker(offset + 3, 2**40 + number, 3, end)]
        parts += [small_batch(offset + 4, 2, is_control=True, **owned)] if number % 2 else []
        offset += 6
    return b"".join(parts)


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
    if isinstance(result, (ColumnBuffer, BatchBuffer)):
        return bytes(result)
    if isinstance(result, ColumnBuilder):
        return described(result.finish())
    if isinstance(result, Rows):
        return described(partitioned(result))
    if isinstance(result, ProducerState):
        return result.producers, list(result.open_transactions)
    return bytes(result.data) if isinstance(result, RecordBatch) else result


def compacted(offsets: OffsetMap, data: bytes) -> object:
    return offsets.put_run(data, 0, len(data), 0, OFFSET_MAX), len(offsets), offsets.get(b"k")


def known_producers() -> ProducerState:
    """So many that the dict of producers grows when more are added."""
    fields = ProducerEntry._fields[1:]
    return ProducerState(ProducerEntry(2**40 + number, **dict.fromkeys(fields, number)) for number in range(5))


def counted(run: Run, payload: bytes, count: int) -> object:
    counts = RunCounts()
    others = counts.add(run)
    is_sound = counts.add_records(payload, count, count - 1)
    return others, is_sound, counts.spreads(), counts.size, counts.last_timestamp, counts.commit_count


def sketched(run: Run, payload: bytes, count: int) -> object:
    sketch = KeySketch()
    sketch.is_sampling = True
    sketch.add(run)
    sketch.add_records(payload, count, count - 1)
    sketch.add_key(b"another" * 100, 2**40)
    return sketch.registers(), sketch.frequent(3), sketch.sampled(), sketch.keyed_count


def looked_for(run: Run, data: bytes) -> object:
    texts = Texts([b"H" * 600, b"h", b"\2" * 300], folds=True)
    found = list(texts.records_of_run(run, 0, OFFSET_MAX, array("q", [0, 0, 0])))
    window = (COUNT, 2**40, 2**40, COUNT - 1, True, 2**41, 2**20, 0, OFFSET_MAX)
    return found, texts.find(data), list(texts.records_of_payload(data, BATCH_HEADER_BYTES, FIRST_SIZE, *window))


def offsets_checked(run: Run) -> object:
    rows = array("q", [number for at in range(40) for number in (2 * at, 997 * at + 1)])
    check = OffsetCheck(rows, 0)
    found = check.add_run(run)
    return found, check.skip(35_000, 36_000), check.add(40_000, 79, 2**40), check.position_slot


def times_checked(run: Run) -> object:
    rows = array("q", [number for at in range(40) for number in (2**40 + at, 2 * at)])
    check = TimeCheck(rows, 0)
    found = check.add_run(run)
    check.replace(rows)
    return found, check.add(2**20, 2**40, 2**41), check.slot, check.max_timestamp, check.is_far


def builder(*, given: bool = True, within: bool = False) -> ColumnBuilder:
    """A builder of all columns: with the records of MANY, or within a batch after a full chunk."""
    every = dict.fromkeys(("key", "value", "offset", "timestamp", "timestamp_type", "headers"), True)
    made = ColumnBuilder(**every, rows_max=4 if within else 1000, timestamp_factor=1000)
    if given or within:
        made.append_run(*(MANY.data, 0, MANY.stop), 0, OFFSET_MAX, array("q", [0, 0, 0]))
    if within:
        made.finish()
    return made


def ends_of(values: list[bytes]) -> array[int]:
    return array("i", [sum(map(len, values[:number])) for number in range(len(values) + 1)])


def bytes_rows(values: list[bytes], first_is_null: bool = True) -> BytesRows:
    validity = (b"\xfe" if first_is_null else b"\xff") + b"\xff" * len(values)
    return BytesRows(len(values), 0, validity, ends_of(values), b"".join(values))


def rows(count: int = 6, *, has_partitions: bool = True) -> Rows:
    values = [b"%d" % number * 20 for number in range(count)]
    each = array("i", [*range(count), count - 1])
    headers = HeaderRows(count, 0, None, each, bytes_rows(values, first_is_null=False), bytes_rows(values))
    return Rows(
        bytes_rows(values),
        bytes_rows(values[::-1]),
        headers,
        NumberRows(count, 0, None, array("q", [2**40 + number for number in range(count)]), 8),
        NumberRows(count, 0, b"\x0f", array("i", [2] * count), 4) if has_partitions else None,
        1,
        2**40,
    )


def partitioned(given: Rows) -> object:
    found: list[tuple[int, bytes, EncodedBatch]] = []
    encoder = PartitionedEncoder(3, lambda *batch: found.append(batch), batch_bytes=200, size_max=1 << 16)
    encoder.append(given)
    encoder.close()
    return found


def built(buffer: BatchBuffer, given: Rows) -> object:
    size_max = 400
    return TableRows((given, given), None, True).build(
        buffer, codec="none", level=None, timestamp_type=0, now_ms=2**40, size_max=size_max
    )


def buffer() -> BatchBuffer:
    made = BatchBuffer()
    made.extend(b"before" * 100)
    return made


def passed(*arguments: Any) -> object:
    return pass_producers(*arguments), arguments[-3:]


def plan() -> StructPlan:
    return StructPlan(load_messages("wire")["FetchResponse"].fields, 16, is_flexible=True, fills_in=True)


def message_read(given: StructPlan, data: bytes) -> object:
    return given.read(MessageReader(memoryview(data), elements_max=2**40))


# Each call, and what makes its arguments. Numbers and texts are large: CPython keeps objects for the small ones.
RUN, PRODUCERS, MANY = run_of(DATA), run_of(of_producers()), run_of(of_many())
PAYLOAD = (DATA, BATCH_HEADER_BYTES, FIRST_SIZE, COUNT)
RECORDS = (DATA[BATCH_HEADER_BYTES:FIRST_SIZE], COUNT)
VALUES = [b"value" * 40, None, b"x" * 3000] * 4
# Every kind of array, structure and tagged field.
FETCHED: dict[str, Any] = {
    "throttleTimeMs": 2**30,
    "responses": [
        {"partitions": [{"highWatermark": 2**40, "records": b"r" * 600, "currentLeader": {"leaderId": 2**20}}]}
    ],
    "nodeEndpoints": [{"nodeId": 2**20, "host": "host" * 200, "port": 2**20, "rack": None}],
}
FIELDS = (VALUES, VALUES[::-1], [2**40, None, 2**41] * 4, [[("name", b"text" * 40)], None, ()] * 4)
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
    "follow_producers": (follow_producers, lambda: (PRODUCERS, {}, iter(()))),
    "greatest_bytes": (greatest_bytes, lambda: (b"ab" * 400, b"ba" * 400)),
    "moved_to": (Run.moved_to, lambda: (RUN, 2**40)),
    "check_records": (check_records, lambda: (*PAYLOAD, COUNT - 1, 2**40)),
    "decode_values": (decode_values, lambda: (*PAYLOAD, 2**40, COUNT - 1)),
    "decode_offsets_timestamps": (
        decode_offsets_timestamps, lambda: (*PAYLOAD, 2**40, 2**40, COUNT - 1, 0, -1, 0, INT64_MAX)
    ),
    "encode_varlong": (encode_varlong, lambda: (2**62,)),
    "as_headers": (as_headers, lambda: ([("a", b"1"), ("".join(["\u00e9"] * 600), None)],)),
    "put_run": (compacted, lambda: (OffsetMap(1 << 16), DATA)),
    "plain_line": (plain_line, lambda: (RECORD, b"{" * 600, b"CreateTime")),
    "kcat_line": (kcat_line, lambda: (RECORD, b"{" * 600, b"create")),
    "plain_lines": (plain_lines, lambda: (DATA, 0, len(DATA), 0, CONTENTS, UNKNOWN, [])),
    "run_counts": (counted, lambda: (MANY, *RECORDS)),
    "key_sketch": (sketched, lambda: (MANY, *RECORDS)),
    "texts": (looked_for, lambda: (MANY, DATA)),
    "offset_check": (offsets_checked, lambda: (MANY,)),
    "time_check": (times_checked, lambda: (MANY,)),
    "falling_epoch": (falling_epoch, lambda: (MANY, 2**20)),
    "pass_producers": (passed, lambda: (MANY, 0, 0, -1, OFFSET_MAX, 0, {}, {}, {})),
    "follow_transactions": (follow_transactions, lambda: (MANY, {}, 2**40)),
    "update_run": (ProducerState.update_run, lambda: (known_producers(), MANY)),
    "encode_batch": (encode_batch, lambda: (buffer(), *FIELDS, 0, 2**40, 2**20, 0, True)),
    "encode_batch, values": (encode_batch, lambda: (buffer(), VALUES, None, None, None, 0, 2**40, 2**20, 1, True)),
    "encode_batch, too large": (encode_batch, lambda: (buffer(), *FIELDS, 2, 2**40, 2**10)),
    "message plan": (lambda: plan().write(FETCHED), lambda: ()),
    "message read": (message_read, lambda: (plan(), plan().write(FETCHED))),
    "message write": (StructPlan.write, lambda: (plan(), FETCHED)),
    "rows": (rows, lambda: ()),
    "rows of partitions": (partitioned, lambda: (rows(),)),
    "rows of a table": (built, lambda: (buffer(), rows(has_partitions=False))),
    "columns append": (
        ColumnBuilder.append, lambda: (builder(), *PAYLOAD, 2**40, 2**40, COUNT - 1, 0, -1, 2**40 + 1, OFFSET_MAX)
    ),
    "columns append_run": (
        ColumnBuilder.append_run, lambda: (builder(), RUN.data, 0, RUN.stop, 0, OFFSET_MAX, array("q", [0, 0, 0]))
    ),
    "columns append_message": (
        ColumnBuilder.append_message, lambda: (builder(given=False), 2**40, 2**40, 2, b"key" * 200, b"value" * 200)
    ),
    "columns finish": (ColumnBuilder.finish, lambda: (builder(),)),
    "columns resume": (ColumnBuilder.resume, lambda: (builder(within=True),)),
}  # fmt: skip
# Their callers pass a copy, or an object that they discard if the call raises.
CHANGES_ARGUMENTS = {"follow_producers", "put_run", "pass_producers", "follow_transactions"}
# What was read up to an error is handed on: the columns hold whole batches, and the tally counts them.
ADDS_SOME = {"columns append_run"}


def seen(arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments as they are now."""
    found: list[Any] = []
    for each in arguments:
        if isinstance(each, (dict, list, array, bytes)):
            found.append(copy.copy(each))
        elif isinstance(each, BatchBuffer):
            found.append(bytes(each))
        elif isinstance(each, ColumnBuilder):
            found.append((each.row_count, each.size, each.is_within_batch))
        elif isinstance(each, ProducerState):
            found.append((each.producers.copy(), list(each.open_transactions)))
    return found


def ends(result: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """The result, and what the arguments hold in the end."""
    held = (BatchBuffer, ColumnBuilder, ProducerState)
    return [described(result), *(described(each) for each in arguments if isinstance(each, held))]


def refuse_each(name: str) -> int:
    call, made = CALLS[name]
    arguments = made()
    result = call(*arguments)
    assert result is not None
    expected = ends(result, arguments)
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
            if name in ADDS_SOME:
                builder_now, tally_now = arguments[0], arguments[-1]
                if builder_now.row_count != before[0][0] + tally_now[1] or builder_now.is_within_batch:
                    raise Wrong(f"{name}, allocation {number}: {seen(arguments)}, before {before}")
                arguments = made()
            elif name in CHANGES_ARGUMENTS:
                arguments = made()
            elif seen(arguments) != before:
                raise Wrong(f"{name}, allocation {number}: the arguments became {seen(arguments)}, expected {before}")
            slot[0] = call(*arguments)
        if (found := ends(slot[0], arguments)) != expected:
            raise Wrong(f"{name}, allocation {number}: {found}, expected {expected}")
    raise Wrong(f"{name} met more than {REFUSALS_MAX} refusals")


if __name__ == "__main__":
    gc.disable()
    total = 0
    for name in sys.argv[1:] or CALLS:
        total += (count := refuse_each(name))
        print(name, count, flush=True)
    print(total)
