"""Targets for a deep count and a verification of runs, compared with single batches in plain Python."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import product

from kstore.errors import CorruptDataError
from kstore.indexes._search import offset_rows, time_rows
from kstore.record._codec import Record, RecordCursor
from kstore.record._runs import OffsetCheck, Run, RunCounts, TimeCheck, falling_epoch, pass_producers
from kstore.record.batch import BATCH_HEADER_BYTES, RecordBatch
from kstore.record.compression import CODECS_BY_NAME
from kstore.record.control import ControlRecordType, parse_end_transaction_marker
from kstore.record.scan import BufferSource
from kstore.record.walk import walk_runs
from kstore.types import OFFSET_MAX
from kstore.upkeep.distribution import Distribution
from tests.support.oracles.oracle_index_checks import PlainOffsetCheck, PlainTimeCheck
from tools.fuzz.findings import UNCOMPRESSED_BYTES_MAX, expect

RECORD_FIELDS = ("counted_count", "keyed_count", "tombstone_count", "header_count")
BATCH_FIELDS = (
    "batch_count",
    "size",
    "record_count",
    "empty_batch_count",
    "producer_batch_count",
    "transactional_batch_count",
    "commit_count",
    "abort_count",
    "records_size",
)
ROW_BYTES = 16


def counts(data: bytes) -> None:
    """The counts of runs, and of decompressed records, are those of their batches one by one."""
    for run in _runs(data):
        _check_counts(run)
    for run in _runs(data, with_compressed=True):
        if run.is_compressed:
            for _, batch in run.batches():
                try:
                    codec = CODECS_BY_NAME[batch.codec]
                    payload = codec.decompress(batch.data[BATCH_HEADER_BYTES:], UNCOMPRESSED_BYTES_MAX, 2)
                except CorruptDataError:
                    continue
                _check_records(payload, batch.header.record_count, batch.header.last_offset_delta)
    # Any bytes: no CRC says that they are records.
    for count, last_offset_delta in ((1, 2), (3, 2**31 - 1), (2**31 - 1, 0), (-1, 0)):
        _check_records(data[BATCH_HEADER_BYTES:], count, last_offset_delta)


def checks(data: bytes) -> None:
    """A verification finds the same in a run as in its batches."""
    hostile = array("q", data[: len(data) // ROW_BYTES * ROW_BYTES])
    for run in _runs(data, with_compressed=True):
        batches = [*run.batches()]
        ends = array("q", [number for at, each in batches for number in (each.last_offset, at)])
        times = array("q", [number for _, each in batches for number in (each.max_timestamp, each.last_offset)])
        for base_offset in {0, run.base_offset}:
            for rows in (ends, hostile, offset_rows(data), offset_rows(data[3:])):
                _check_offsets(run, rows, base_offset)
            for rows in (times, hostile, time_rows(data), time_rows(data[5:])):
                one, other = TimeCheck(rows, base_offset), PlainTimeCheck(rows, base_offset)
                expect(one.add_run(run) == other.add_run(run), "other contradictions of a time index")
                expect(
                    (one.slot, one.max_timestamp, one.is_far) == (other.slot, other.max_timestamp, other.is_far),
                    "another place, or greatest time",
                )
        for latest in (-1, 0, 5, 2**31 - 1):
            _check_epochs(run, latest)
        for snapshot_offset, visible_offset in product((OFFSET_MAX, run.base_offset + 2), (0, run.base_offset + 1)):
            _check_producers(run, snapshot_offset, visible_offset)


def _runs(data: bytes, *, with_compressed: bool = False) -> Iterator[Run]:
    for item in walk_runs(BufferSource(data), 0, len(data), next_offset=0, with_compressed=with_compressed):
        if isinstance(item, Run):
            yield item


def _spread(found: tuple[int, int, int, int, dict[int, int]]) -> Distribution:
    spread = Distribution()
    spread.merge_counts(*found)
    return spread


def _check_counts(run: Run) -> None:
    found = RunCounts()
    left_out = found.add(run)
    expected: dict[str, int] = dict.fromkeys((*BATCH_FIELDS, *RECORD_FIELDS), 0)
    sizes, records, keys, values = Distribution(), Distribution(), Distribution(), Distribution()
    skipped = []
    firsts, lasts = [], [-1]
    for position, batch in run.batches():
        if batch.is_control:
            kind = end_of(batch) if batch.record_count == 1 else None
            if kind is None:
                skipped.append(position - run.position)
                continue
            expected["commit_count"] += kind == ControlRecordType.COMMIT
            expected["abort_count"] += kind == ControlRecordType.ABORT
        else:
            expected["records_size"] += batch.size - BATCH_HEADER_BYTES
            _add_records(expected, keys, values, batch.records())
        expected["batch_count"] += 1
        expected["size"] += batch.size
        expected["record_count"] += batch.record_count
        expected["empty_batch_count"] += batch.record_count == 0
        expected["producer_batch_count"] += batch.producer_id >= 0
        expected["transactional_batch_count"] += batch.is_transactional
        sizes.add(batch.size)
        records.add(batch.record_count)
        is_one_time = batch.delete_horizon_ms is not None or batch.timestamp_type == "LogAppendTime"
        firsts.append(batch.max_timestamp if is_one_time else batch.base_timestamp)
        lasts.append(batch.max_timestamp)
    expect(left_out == skipped, "other batches are left out")
    for name, number in expected.items():
        expect(getattr(found, name) == number, f"{name} {getattr(found, name)}, expected {number}")
    first = min((each for each in firsts if each >= 0), default=-1)
    expect((found.first_timestamp, found.last_timestamp) == (first, max(lasts)), "other timestamps")
    expect([_spread(each) for each in found.spreads()] == [sizes, records, keys, values], "other distributions")


def _add_records(expected: dict[str, int], keys: Distribution, values: Distribution, records: Iterable[Record]) -> None:
    for record in records:
        expected["counted_count"] += 1
        expected["header_count"] += len(record.headers)
        if record.key is not None:
            keys.add(len(record.key))
            expected["keyed_count"] += 1
            expected["tombstone_count"] += record.value is None
        if record.value is not None:
            values.add(len(record.value))


def end_of(batch: RecordBatch) -> ControlRecordType | None:
    """How the marker that begins the batch ends a transaction; None if it does not."""
    try:
        marker = next(iter(batch.records()))
        end = parse_end_transaction_marker(marker.key, marker.value)
    except CorruptDataError:
        return None
    return None if end is None else end.type


def _check_records(payload: bytes, count: int, last_offset_delta: int) -> None:
    found = RunCounts()
    expected = dict.fromkeys(RECORD_FIELDS, 0)
    keys, values = Distribution(), Distribution()
    try:
        cursor = RecordCursor(payload, 0, len(payload), count, 0, 0, last_offset_delta, 0, 0, 0)
        _add_records(expected, keys, values, cursor)
        is_sound = True
    except CorruptDataError:
        is_sound = False
        expected, keys, values = dict.fromkeys(RECORD_FIELDS, 0), Distribution(), Distribution()
    expect(found.add_records(payload, count, last_offset_delta) == is_sound, f"sound: {is_sound}, expected the reverse")
    expect({name: getattr(found, name) for name in RECORD_FIELDS} == expected, "other counts of records")
    expect([_spread(each) for each in found.spreads()[2:]] == [keys, values], "other distributions of records")


def _check_offsets(run: Run, rows: array[int], base_offset: int) -> None:
    one, other = OffsetCheck(rows, base_offset), PlainOffsetCheck(rows, base_offset)
    middle = run.position + (run.start + run.stop) // 2
    for skips in (False, True):
        if skips:
            expect(one.skip(run.position + 1, middle) == other.skip(run.position + 1, middle), "others are skipped")
        expect(one.add_run(run) == other.add_run(run), "other contradictions of an offset index")
        expect(one.position_slot == other.position_slot, "another slot")


def _check_epochs(run: Run, latest: int) -> None:
    expected, greatest = None, latest
    for _, batch in run.batches():
        if 0 <= batch.leader_epoch < greatest and expected is None:
            expected = (batch.leader_epoch, batch.base_offset, greatest)
        greatest = max(greatest, batch.leader_epoch)
    expect(falling_epoch(run, latest) == expected, "another leader epoch that falls")


def _check_producers(run: Run, snapshot_offset: int, visible_offset: int) -> None:
    open_records, ends, last_ends = {5: 0}, {}, {}  # type: ignore[var-annotated]
    found = pass_producers(run, run.start, 0, -1, snapshot_offset, visible_offset, open_records, ends, last_ends)
    opened, ended, last_ended = {5: 0}, {}, {}
    at, next_offset, gap_end = run.stop, 0, -1
    was_visible = None
    for position, batch in run.batches():
        is_visible = batch.last_offset >= visible_offset
        was_visible = is_visible if was_visible is None else was_visible
        is_packed = batch.is_control and run.is_compressed
        kind = _first_end_of(batch) if batch.is_control and not is_packed else None
        if batch.producer_id >= 0 and (
            is_packed
            or kind == ControlRecordType.ABORT
            or batch.base_offset >= snapshot_offset
            or is_visible != was_visible
        ):
            at = position - run.position
            break
        if batch.base_offset > next_offset or not batch.record_count:
            gap_end = batch.last_offset
        next_offset = batch.last_offset + 1
        if batch.producer_id >= 0 and kind == ControlRecordType.COMMIT:
            ended[batch.last_offset] = (batch.producer_id, kind)
            opened.pop(batch.producer_id, None)
            last_ended[batch.producer_id] = batch.last_offset
        elif (
            is_visible
            and batch.producer_id >= 0
            and not batch.is_control
            and batch.is_transactional
            and batch.record_count
        ):
            opened[batch.producer_id] = batch.last_offset
    expect(found == (at, next_offset, gap_end), f"{found}, expected {(at, next_offset, gap_end)}")
    expect((open_records, ends, last_ends) == (opened, ended, last_ended), "other ends of transactions")


def _first_end_of(batch: RecordBatch) -> ControlRecordType | None:
    return end_of(batch) if batch.record_count else None
