"""A target for what a report learns of runs, compared with single batches and records in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kstore.record._runs import KeySketch, Run, batch_times, follow_transactions
from kstore.record.batch import BATCH_HEADER_BYTES, RecordBatch
from kstore.record.control import ControlRecordType
from kstore.record.scan import BufferSource
from kstore.record.walk import walk_runs
from tools.fuzz.findings import expect
from tools.fuzz.run_notes import end_of

WIDTHS = (1, 1000, 1 << 40, 2**63 - 1)
KEY_BYTES_MAX = 48
OPEN_MAX = 3


def summaries(data: bytes) -> None:
    """The times, transactions and keys of runs are those of their batches; any bytes are safe as records."""
    for item in walk_runs(BufferSource(data), 0, len(data), next_offset=0):
        if isinstance(item, Run):
            batches = [batch for _, batch in item.batches()]
            _check_times(item, batches)
            for open_max in (0, OPEN_MAX):
                _check_transactions(item, batches, open_max)
            _check_keys(item, batches)
    for count in (-1, 0, 3, 2**31 - 1):
        KeySketch().add_records(data[BATCH_HEADER_BYTES:], count, 2**31 - 1)


def _check_times(run: Run, batches: list[RecordBatch]) -> None:
    for width_ms in WIDTHS:
        rows: list[list[int]] = []
        for batch in batches:
            number = batch.max_timestamp // width_ms if batch.max_timestamp >= 0 else -1
            if not rows or rows[-1][0] != number:
                rows.append([number, 0, 0, 0, -1])
            rows[-1][1] += batch.size
            rows[-1][2] += batch.record_count
            rows[-1][3] += 1
            rows[-1][4] = batch.last_offset
        expect(list(map(list, batch_times(run, width_ms))) == rows, f"other times by {width_ms} ms")


def _check_transactions(run: Run, batches: list[RecordBatch], open_max: int) -> None:
    found: dict[int, tuple[int, int]] = {}
    known: dict[int, tuple[int, int]] = {}
    ended = []
    for batch in batches:
        producer_id = batch.producer_id
        if batch.is_control:
            end = end_of(batch) if batch.record_count == 1 else None
            if end is not None:
                first = known.pop(producer_id, (-1, -1))
                is_commit = end == ControlRecordType.COMMIT
                ended.append((producer_id, is_commit, *first, batch.base_offset, batch.max_timestamp))
        elif batch.is_transactional and producer_id >= 0 and producer_id not in known and len(known) < open_max:
            known[producer_id] = (batch.base_offset, batch.max_timestamp)
    expect(follow_transactions(run, found, open_max) == ended, "other ends of transactions")
    expect(found == known, "other open transactions")


def _check_keys(run: Run, batches: list[RecordBatch]) -> None:
    found, one_by_one = KeySketch(), KeySketch()
    found.is_sampling = one_by_one.is_sampling = True
    found.add(run)
    counts: Counter[bytes] = Counter()
    for batch in batches:
        if not batch.is_control:
            counts.update(_keys(batch))
            payload = batch.data[BATCH_HEADER_BYTES:]
            one_by_one.add_records(payload, batch.record_count, batch.header.last_offset_delta)
    rows = found.frequent(1 << 30)
    expect(rows == one_by_one.frequent(1 << 30), "other frequent keys by batch")
    expect(found.registers() == one_by_one.registers(), "other registers by batch")
    expect(found.sampled() == one_by_one.sampled(), "another sample by batch")
    expect(found.keyed_count == counts.total(), f"{found.keyed_count} keys, expected {counts.total()}")
    if not found.missed_count:
        expected = sorted((count, len(key), key[:KEY_BYTES_MAX]) for key, count in counts.items())
        expect(sorted((count, size, key) for count, _, size, key in rows) == expected, "other counts of keys")


def _keys(batch: RecordBatch) -> Iterator[bytes]:
    return (record.key for record in batch.records() if record.key is not None)
