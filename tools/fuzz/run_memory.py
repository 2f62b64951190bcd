"""A target that makes every compiled call over runs, and compares nothing: several times the inputs in the same time.

For the sanitizers, which see what the calls read. Other targets compare what the calls return with single batches.
"""

from __future__ import annotations

from array import array
from contextlib import suppress

from kstore.compaction.blocks import DROP_TOMBSTONES, KEEP_KEYLESS
from kstore.errors import CorruptDataError
from kstore.record._compact import OffsetMap
from kstore.record._runs import (
    OffsetCheck,
    Run,
    RunCounts,
    TimeCheck,
    epoch_starts,
    find_batch,
    follow_producers,
    index_notes,
    pass_producers,
    record_at,
    walk_run,
)
from kstore.types import INT64_MAX, OFFSET_MAX

# After this many bytes at which no run begins the rest is left to other inputs.
MISSES_MAX = 4
MAP_BYTES = 1 << 10


def run_memory(data: bytes) -> None:
    at = misses = next_offset = 0
    while at < len(data) and misses < MISSES_MAX:
        run = walk_run(data, at, len(data) - at, 0, next_offset, INT64_MAX, OFFSET_MAX, 0, OFFSET_MAX, misses % 2 == 0)
        _look_up(data[at:], run.next_offset - 1, next_offset)
        if run.batch_count:
            _read(run)
            at, next_offset = run.stop, run.next_offset
        else:
            at += 1
            misses += 1


def _look_up(data: bytes, target: int, next_offset: int) -> None:
    found = find_batch(data, len(data), max(target, 0), next_offset, OFFSET_MAX)
    if found is not None:
        record_at(data, found[0], max(target, 0), array("q", [0, 0, 0]))


def _read(run: Run) -> None:
    if not run.is_compressed:
        tally = array("q", [0, 0, 0])
        for _ in run.records(run.base_offset + 1, OFFSET_MAX, tally):
            pass
        for _ in run.values(0, run.next_offset - 1, tally):
            pass
        RunCounts().add(run)
        offsets = OffsetMap(MAP_BYTES)
        offsets.put_run(run.data, run.start, run.stop, run.base_offset + 1, run.next_offset)
        offsets.keeps_run(run.data, run.start, run.stop, run.next_offset - 2, 0, KEEP_KEYLESS | DROP_TOMBSTONES)
    entries = index_notes(run, -1, -1, 0, 64).entries
    epoch_starts(run, -1)
    with suppress(CorruptDataError):
        follow_producers(run, {}, iter(()))
    rows = array("q", [each for number in range(0, len(entries), 4) for each in entries[number : number + 2]])
    OffsetCheck(rows, run.base_offset).add_run(run)
    TimeCheck(rows, run.base_offset).add_run(run)
    pass_producers(run, run.start, 0, -1, OFFSET_MAX, 0, {}, {}, {})
