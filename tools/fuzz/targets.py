"""The targets: each lets kstore read any bytes, and checks what must always hold.

A target catches the errors that may occur; any other exception that leaves it is a finding.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_ubyte
from itertools import pairwise, product
from typing import Any, NamedTuple

from kstore.config import CompressionType, LogConfig
from kstore.errors import CorruptDataError, KstoreError
from kstore.record._codec import Record, java_string
from kstore.record._runs import Run, epoch_starts, find_batch, index_notes, record_at
from kstore.record.batch import Batch
from kstore.record.compression import CODECS
from kstore.record.parse import parse_batch
from kstore.record.scan import BufferSource, find_next_batch, parse_batches, scan
from kstore.record.walk import Damage, walk, walk_runs
from kstore.rules.validate import split_batches, unchanged, validate
from kstore.state.producer_snapshot import decode_snapshot, encode_snapshot
from kstore.state.producer_state import ProducerState
from kstore.types import OFFSET_MAX
from tools.fuzz import directory, door, files, report_notes, run_memory, run_notes, seeds
from tools.fuzz.batches import mend_snapshot, mend_state, mutate_batches
from tools.fuzz.findings import UNCOMPRESSED_BYTES_MAX, expect, within_memory
from tools.fuzz.mutate import Mutator, mended, mutate

SMALL_CHUNK_BYTES = 96
COMPRESSION_TYPES: tuple[CompressionType, ...] = ("producer", "zstd")
NOW_MS = 1_700_000_100_000
OFFSET_STOP = 2**62


class Target(NamedTuple):
    """A target, its starting inputs, and how its inputs are damaged. ``compiled``: it exercises compiled code."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    mutate: Mutator
    compiled: bool = False


def check_batch(batch: Batch) -> None:
    """Everything that can be decoded of a batch agrees with the rest of it. Raises: CorruptDataError, Wrong."""
    limit = UNCOMPRESSED_BYTES_MAX
    if batch.magic == 2:
        with within_memory(batch.size):
            batch.check(limit)
    records = list(batch.records(max_bytes_uncompressed=limit))
    for record in records:
        fields = (record.offset, record.timestamp, record.timestamp_type, record.key, record.value)
        copy = Record(*fields, record.header_bytes, record.leader_epoch)
        expect(copy == record, "other headers from their bytes")
        texts = [java_string(key) for key, _ in record.header_bytes]
        expect([key for key, _ in record.headers] == texts, "keys that are not the text of their bytes")
    offsets, timestamps = batch.offsets_and_timestamps(max_bytes_uncompressed=limit)
    expect(list(offsets) == [record.offset for record in records], "offsets other than the records'")
    expect(list(timestamps) == [record.timestamp for record in records], "timestamps other than the records'")
    expect(batch.values(max_bytes_uncompressed=limit) == [record.value for record in records], "other values")
    expect(all(one < other for one, other in pairwise(offsets)), "offsets that do not increase")
    expect(len(records) == batch.record_count, "another count of records")
    if offsets:
        expect(offsets[0] >= batch.base_offset, f"a record {offsets[0]} below the base offset {batch.base_offset}")
        if batch.magic == 2:
            expect(offsets[-1] <= batch.last_offset, f"a record {offsets[-1]} after {batch.last_offset}, the last")
        middle = offsets[len(offsets) // 2]
        expect(list(batch.records(middle, middle + 1, limit)) == records[len(offsets) // 2 :][:1], "another window")
    expect(sum(len(record.value or b"") + len(record.key or b"") for record in records) <= limit + batch.size, "more")


def batches(data: bytes) -> None:
    """What a consumer does with a slice: CRC, order, then every way of decoding."""
    try:
        for batch in parse_batches(data):
            try:
                check_batch(batch)
            except CorruptDataError:
                pass
    except CorruptDataError:
        pass


def records(data: bytes) -> None:
    """The decoders after a header whose CRC was not checked: they may get any bytes."""
    try:
        # Python's bytes end with a zero, which hides a read one byte too far from a sanitizer.
        whole = data[: parse_batch(data).size]
        batch = parse_batch(memoryview((c_ubyte * len(whole)).from_buffer_copy(whole)).cast("B"))
        for name in ("codec", "timestamp_type", "last_sequence", "delete_horizon_ms", "producer_id", "max_timestamp"):
            try:
                getattr(batch, name)
            except CorruptDataError:
                pass
        batch.is_valid()
        check_batch(batch)
    except CorruptDataError:
        pass


def codecs(data: bytes) -> None:
    """The decompressors, and the memory that they take."""
    if not data:
        return
    codec = CODECS[(data[0] & 7) % len(CODECS)]
    with within_memory(len(data)):
        try:
            found = codec.decompress(memoryview(data)[1:], UNCOMPRESSED_BYTES_MAX, data[0] >> 4 & 3)
            expect(len(found) <= UNCOMPRESSED_BYTES_MAX, f"{len(found)} bytes from {codec.name}")
        except CorruptDataError:
            pass


def scanner(data: bytes) -> None:
    """Scan, search and walk: every byte is reported once, offsets rise, and chunks make no difference."""
    source = BufferSource(data)
    scanned = scan(source, 0, len(data))
    found = [(at, batch.size, batch.last_offset) for at, batch in scanned]
    small = scan(source, 0, len(data), chunk_bytes=SMALL_CHUNK_BYTES)
    expect(found == [(at, batch.size, batch.last_offset) for at, batch in small], "other batches in small chunks")
    expect(scanned.stop is not None and small.stop is not None, "no reason why the scan ended")
    assert scanned.stop is not None
    assert small.stop is not None
    expect(scanned.stop[:2] == small.stop[:2], f"{small.stop} in small chunks, {scanned.stop} in large ones")
    expect(scanned.stop.position == sum(size for _, size, _ in found), "a gap between batches")
    expect(scanned.stop.position + scanned.stop.size_left == len(data), "unreported bytes")

    at = next_offset = 0
    for step in walk(source, 0, len(data), next_offset=0, offset_stop=OFFSET_STOP):
        if isinstance(step, Damage):
            expect(step.position == at and step.stop > at, f"{step} at {at}")
            expect(step.first_offset == next_offset, f"{step}, expected offset {next_offset}")
            at = step.stop
            next_offset = step.next_offset if step.next_offset is not None else next_offset
        else:
            position, batch = step
            expect(position == at and batch.is_valid(), f"a batch at {position}, expected {at}")
            expect(next_offset <= batch.last_offset < OFFSET_STOP, f"{batch} after offset {next_offset}")
            at, next_offset = at + batch.size, batch.last_offset + 1
    expect(at == len(data), f"the walk ended at {at} of {len(data)}")

    for start in {0, 1, scanned.stop.position}:
        hints = [start + 1, len(data) // 2]
        at_next = find_next_batch(source, start, len(data), next_offset=0, hints=hints)
        if at_next is not None:
            expect(at_next >= start, f"a batch at {at_next}, searched from {start}")
            expect(parse_batch(data, at_next).is_valid(), f"no whole batch at {at_next}")


def runs(data: bytes) -> None:
    """The walk over runs finds what the walk over single batches finds, and gives the same records."""
    source = BufferSource(data)
    for known_end, chunk_bytes in product((0, 1 << 20), (SMALL_CHUNK_BYTES, 1 << 20)):
        bounds: dict[str, Any] = {"offset_stop": OFFSET_STOP, "known_end": known_end, "chunk_bytes": chunk_bytes}
        found: list[tuple[int, Batch] | Damage] = []
        for item in walk_runs(source, 0, len(data), next_offset=0, **bounds):
            if isinstance(item, Run):
                check_run(item)
                check_notes(item)
                found += item.batches()
            else:
                found.append(item)
        expected = [_told(each) for each in walk(source, 0, len(data), next_offset=0, **bounds)]
        expect([_told(each) for each in found] == expected, "another walk over runs")
        found = []
        for item in walk_runs(source, 0, len(data), next_offset=0, with_compressed=True, **bounds):
            if isinstance(item, Run):
                expect(all((each.codec_id != 0) == item.is_compressed for _, each in item.batches()), "mixed codecs")
                found += item.batches()
            else:
                found.append(item)
        expect([_told(each) for each in found] == expected, "another walk over compressed runs")


def lookup(data: bytes) -> None:
    """A looked-up record is in its batch, and the batch's CRC is right."""
    items = [item for item in walk(BufferSource(data), 0, len(data), next_offset=0) if not isinstance(item, Damage)]
    targets = {0, 1, *(offset for _, batch in items[:8] for offset in (batch.base_offset, batch.last_offset))}
    counts = array("q", [0, 0, 0])
    for target, size_left, indexed in product(targets, (len(data), 2 * len(data)), (-1, 1)):
        found = find_batch(data, size_left, target, 0, OFFSET_STOP, indexed, target, 0)
        if found is None:
            continue
        at, size = found
        expect(0 <= at <= at + size <= size_left, f"a batch of {size} bytes at {at}")
        record = record_at(data, at, target, counts)
        if record is not None:
            expect(record.offset == target, f"offset {record.offset}, asked {target}")
            batch = parse_batch(data, at)
            expect(batch.is_valid() and not batch.is_control, "a record of a batch that has none to give")
            with suppress(CorruptDataError):  # another record of the batch may be malformed
                expect([*batch.records(target, target + 1)] == [record], "another record than its batch has")


def _told(item: tuple[int, Batch] | Damage) -> object:
    return item if isinstance(item, Damage) else (item[0], item[1].size, item[1].base_offset, item[1].last_offset)


def check_run(run: Run) -> None:
    """A run is never empty, gives the records of its batches, and contains no damage."""
    batches = [batch for _, batch in run.batches()]
    expect(len(batches) == run.batch_count > 0, "another count of batches")
    expect(all(batch.is_valid() for batch in batches), "a batch with a wrong CRC")
    expect((run.base_offset, run.next_offset) == (batches[0].base_offset, batches[-1].last_offset + 1), "other offsets")
    for batch in batches:
        batch.check()
    expect(sum(batch.record_count for batch in batches) == run.record_count, "another count of records")
    wanted = [record for batch in batches if not batch.is_control for record in batch.records()]
    counts = array("q", [0, 0, 0])
    expect(list(run.records(0, OFFSET_MAX, counts)) == wanted, "other records than those of its batches")
    expect(counts[1] == len(wanted), "another count of records")
    expect(list(run.values(0, OFFSET_MAX, counts)) == [record.value for record in wanted], "other values")
    if wanted:
        middle = wanted[len(wanted) // 2].offset
        expect([each.offset for each in run.records(middle, middle + 1, counts)] == [middle], "another window")


def check_notes(run: Run) -> None:
    """Recovery notes the same of a run as of its batches."""
    batches = [*run.batches()]
    entries: list[int] = []
    since_entry, timestamp, offset, latest = 0, -1, -1, -1
    epochs = []
    for position, batch in batches:
        if batch.max_timestamp > timestamp:
            timestamp, offset = batch.max_timestamp, batch.last_offset
        if since_entry > SMALL_CHUNK_BYTES:
            entries += (batch.last_offset, position, timestamp, offset)
            since_entry = 0
        since_entry += batch.size
        if batch.leader_epoch > latest:
            latest = batch.leader_epoch
            epochs.append((latest, batch.base_offset))
    notes = index_notes(run, -1, -1, 0, SMALL_CHUNK_BYTES)
    expected = (batches[0][1].max_timestamp, timestamp, offset, since_entry)
    expect(list(notes.entries) == entries and notes[1:] == expected, "other index notes")
    expect(epoch_starts(run, -1) == epochs and run.leader_epoch_max == latest, "other leader epochs")

    known, state = ProducerState(), ProducerState()
    ended, unreadable = [], 0
    for _, batch in batches:
        try:
            aborted = state.update(batch)
        except CorruptDataError:
            unreadable += 1
            continue
        ended += [aborted] if aborted is not None else []
    found, unread = known.update_run(run)
    expect((found, len(unread)) == (ended, unreadable), "other ends of transactions")
    expect([*known.producers.items()] == [*state.producers.items()], "other producers")
    expect([*known.open_transactions] == [*state.open_transactions], "other open transactions")
    expect(run.has_producers == any(batch.producer_id >= 0 for _, batch in batches), "producers or none")


def foreign(data: bytes) -> None:
    """Batches that a caller wants to append: accepted ones can be read back, with the same records.

    The short way for one of them says the same, or nothing.
    """
    for assign_offsets in (True, False):
        for codec in COMPRESSION_TYPES:
            config = LogConfig(
                max_batch_bytes_uncompressed=UNCOMPRESSED_BYTES_MAX,
                compression_type=codec,
                message_timestamp_after_max_ms=2**63 - 1,
            )
            short = unchanged(data, config, NOW_MS) if assign_offsets else None
            try:
                entries = list(split_batches(data))
                validated = validate(entries, config, now_ms=NOW_MS, assign_offsets=assign_offsets)
            except KstoreError:
                expect(short is None, "the short way takes what is refused")
                continue
            if short is not None:
                expect(
                    ([short.batch], short.codec) == (validated.batches, validated.target_codec), "the short way differs"
                )
            written = bytes(validated.buffer.view())
            values: list[bytes | None] = []
            for encoded in validated.batches:
                batch = parse_batch(written, encoded.position)
                expect(batch.size == encoded.size, f"{batch} of other than {encoded.size} bytes")
                if assign_offsets:
                    batch.ensure_valid()
                values += batch.values(max_bytes_uncompressed=UNCOMPRESSED_BYTES_MAX)
            given = [
                value for entry in entries for value in entry.values(max_bytes_uncompressed=UNCOMPRESSED_BYTES_MAX)
            ]
            expect(values == given, "other values than those that were accepted")


def snapshot(data: bytes) -> None:
    """A producer snapshot: it is read exactly as it is."""
    try:
        entries = decode_snapshot(data)
    except CorruptDataError:
        return
    expect(encode_snapshot(entries) == data, "a snapshot that is encoded differently")


TARGETS: dict[str, Target] = {
    "batches": Target(batches, seeds.batch_seeds, mutate_batches, compiled=True),
    "records": Target(records, seeds.batch_seeds, mutate_batches, compiled=True),
    "foreign": Target(foreign, seeds.batch_seeds, mutate_batches, compiled=True),
    "codecs": Target(codecs, seeds.codec_seeds, mutate),
    "runs": Target(runs, seeds.run_seeds, mutate_batches, compiled=True),
    "run-memory": Target(run_memory.run_memory, seeds.run_seeds, mutate_batches, compiled=True),
    "lookup": Target(lookup, seeds.run_seeds, mutate_batches, compiled=True),
    "counts": Target(run_notes.counts, seeds.run_seeds, mutate_batches, compiled=True),
    "checks": Target(run_notes.checks, seeds.run_seeds, mutate_batches, compiled=True),
    "summaries": Target(report_notes.summaries, seeds.run_seeds, mutate_batches, compiled=True),
    "scanner": Target(scanner, seeds.batch_seeds, mutate_batches),
    "offset-index": Target(files.offset_index, lambda: seeds.file_seeds("*.index"), mutate),
    "time-index": Target(files.time_index, lambda: seeds.file_seeds("*.timeindex"), mutate),
    "transaction-index": Target(files.transaction_index, lambda: seeds.file_seeds("*.txnindex"), mutate),
    "snapshot": Target(snapshot, seeds.snapshot_seeds, mended(mutate, mend_snapshot)),
    "state": Target(files.state, seeds.state_seeds, mended(mutate, mend_state)),
    "checkpoints": Target(files.checkpoints, seeds.checkpoint_seeds, mutate),
    "directory": Target(directory.directory, directory.directory_seeds, directory.mutate_directory),
    "door": Target(door.frames, door.frame_seeds, door.mutate_frame),
}
