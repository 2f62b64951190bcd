"""The walk over runs is compared with the walk over single batches: damaged, hostile and mixed bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import crc32c
import pytest

from kstore.errors import CorruptDataError
from kstore.record._codec import Record, check_records
from kstore.record._runs import Run, batch_run, find_batch, record_at, walk_run
from kstore.record.batch import BATCH_HEADER, Batch, parse_v2
from kstore.record.builder import build_batch
from kstore.record.scan import BufferSource, scan
from kstore.record.walk import Damage, walk, walk_runs
from kstore.types import OFFSET_MAX
from tests.support.harness.selection import tries
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.run_helpers import TIME, small_batch, tally
from tests.support.oracles.oracle_codec import (
    OracleError,
    OracleRecord,
    Reader,
    decode_record,
    decode_records,
    text_or_bytes,
)
from tests.support.oracles.oracle_legacy import message, wrapper

pytestmark = pytest.mark.promise("hostile file", "bytes")

# Only one byte in this many is tried in a quick run.
ONE_IN = tries(1, quick=23)
CHUNKS = tries(3000, quick=150)


def as_batches(
    items: Iterator[Run | tuple[int, Batch] | Damage],
) -> Iterator[tuple[int, Batch] | Damage]:
    for item in items:
        if isinstance(item, Run):
            assert item.batch_count
            yield from item.batches()
        else:
            yield item


def told(item: tuple[int, Batch] | Damage) -> object:
    return item if isinstance(item, Damage) else (item[0], bytes(item[1].data))


def assert_alike(data: bytes, *, next_offset: int = 0, chunk_bytes: int = 1 << 20, **bounds: Any) -> None:
    """Walks ``data`` both ways; runs return the same records as their batches."""
    source = BufferSource(data)
    expected = list(walk(source, 0, len(data), next_offset=next_offset, chunk_bytes=chunk_bytes, **bounds))
    for base_stop, run_batch_bytes, with_compressed in (
        (5, OFFSET_MAX, True),
        (OFFSET_MAX, 80, False),
        (OFFSET_MAX, OFFSET_MAX, True),
        (OFFSET_MAX, OFFSET_MAX, False),
    ):
        found = list(
            walk_runs(
                source,
                0,
                len(data),
                next_offset=next_offset,
                chunk_bytes=chunk_bytes,
                base_stop=base_stop,
                run_batch_bytes=run_batch_bytes,
                with_compressed=with_compressed,
                **bounds,
            )
        )
        assert [told(item) for item in as_batches(iter(found))] == [told(item) for item in expected]
        for item in found:
            if isinstance(item, Run):
                codecs = {each.codec != "none" for _, each in item.batches()}
                assert codecs == {item.is_compressed} <= {False, with_compressed}
    for item in found:
        if isinstance(item, Run):
            wanted = [one for _, each in item.batches() if not each.is_control for one in each.records()]
            assert list(item.records(0, OFFSET_MAX, tally())) == wanted
            assert list(item.values(0, OFFSET_MAX, tally())) == [one.value for one in wanted]


def chunk_of_small_batches() -> bytes:
    return small_batch(0, 1) + small_batch(1, 2) + small_batch(6, 1) + small_batch(7, 2) + small_batch(9, 1)


@pytest.mark.parametrize("bounds", [{}, {"offset_stop": 20}, {"known_end": 4}], ids=["open", "bounded", "known end"])
def test_every_flipped_bit(bounds: dict[str, int]) -> None:
    data = bytearray(chunk_of_small_batches())
    for position in range(0, len(data), ONE_IN):
        for bit in range(8):
            data[position] ^= 1 << bit
            assert_alike(bytes(data), **bounds)
            data[position] ^= 1 << bit


def test_every_flipped_bit_with_a_crc_that_agrees() -> None:
    """Damage with a corrected CRC: fields of headers and records that no writer produces."""
    parts = [small_batch(0, 1), small_batch(1, 3), small_batch(4, 1)]
    for position in range(21, len(parts[1]), ONE_IN):
        for bit in range(8):
            changed = bytearray(parts[1])
            changed[position] ^= 1 << bit
            changed[17:21] = crc32c.crc32c(bytes(changed[21:])).to_bytes(4, "big")
            data = parts[0] + bytes(changed) + parts[2]
            assert_alike_or_corrupt(data)


# Records at the borders of the short check: sizes, times and offsets of one group and more, null fields, headers.
SHAPES = [
    [
        Record(0, TIME),
        Record(1, TIME + 63, key=b"", value=b""),
        Record(64, TIME - 65, key=b"k"),
        Record(65, TIME, value=b"v" * 63),
    ],
    [
        Record(0, TIME, key=b"k" * 64, value=b"v" * 64),
        Record(8191, TIME + (1 << 20), key=b"", value=b"v"),
        Record(8192, TIME + (1 << 21)),
    ],
    [
        Record(5, TIME - (1 << 40), value=b"v", headers=(("h", b"1"), ("", None))),
        Record(6, TIME, key=b"k", value=b"v"),
    ],
]


@pytest.mark.parametrize("records", SHAPES, ids=["small", "larger", "headers"])
def test_a_run_and_the_codec_take_the_records_that_the_plain_codec_takes(records: list[Record]) -> None:
    """Each byte of the records with each value, and bytes put in or left out, all with a CRC that agrees."""
    batch = build_batch(records, base_offset=0)
    header, payload = batch[: BATCH_HEADER.size], batch[BATCH_HEADER.size :]
    verdicts = set()
    generator = random.Random(1)
    changed = [payload[:at] + bytes([value]) + payload[at + 1 :] for at in range(len(payload)) for value in range(256)]
    changed += [payload[:at] + payload[at + 1 :] for at in range(len(payload))]
    changed += [
        payload[:at] + bytes([value]) + payload[at:] for at in range(len(payload)) for value in (0, 1, 2, 128, 255)
    ]
    for _ in range(tries(20_000, quick=1000)):
        several = bytearray(payload)
        for _ in range(generator.randint(2, 4)):
            several[generator.randrange(len(several))] = generator.choice((0, 1, 2, 10, 127, 128, 129, 255))
        changed.append(bytes(several))
    for number in range(0, len(changed), ONE_IN if len(changed) > 10_000 else 1):
        data = tampered(header + changed[number], batch_length=len(header) + len(changed[number]) - 12)
        expected = plainly_read(changed[number], len(records), records[-1].offset, records[0].timestamp)
        found = walk_run(data, 0, len(data), 0, 0, OFFSET_MAX, OFFSET_MAX, 0, OFFSET_MAX).batch_count
        assert found == (expected is not None)
        if expected is None:
            with pytest.raises(CorruptDataError):
                check_records(data, len(header), len(data), len(records), records[-1].offset)
        else:
            assert [
                (
                    one.offset,
                    one.timestamp,
                    one.key,
                    one.value,
                    tuple([(text_or_bytes(key), value) for key, value in one.header_bytes]),
                )
                for one in parse_v2(data).records()
            ] == expected
        verdicts.add(found)
    assert verdicts == {0, 1}


def plainly_read(payload: bytes, count: int, last_offset: int, base_timestamp: int) -> list[OracleRecord] | None:
    """The records of a batch at offset 0, or None if they are not sound."""
    try:
        records = decode_records(payload, count, 0, base_timestamp)
    except OracleError:
        return None
    offsets = [-1, *(record.offset for record in records), last_offset + 1]
    return list(records) if all(before < after for before, after in pairwise(offsets)) else None


def assert_alike_or_corrupt(data: bytes) -> None:
    """As ``assert_alike``; a batch outside all runs is one that the walk returns but that cannot be read."""
    source = BufferSource(data)
    for item in walk_runs(source, 0, len(data), next_offset=0):
        if isinstance(item, tuple) and not isinstance(item, Damage):
            with pytest.raises(CorruptDataError):
                item[1].records()
    assert_alike(data)


def test_every_cut() -> None:
    data = chunk_of_small_batches()
    for size in range(len(data)):
        assert_alike(data[:size])
        assert_alike(data[:size], chunk_bytes=100)


def mixed(generator: random.Random) -> bytes:
    """Batches of every version, codec and producer, gaps, control batches, empty ones, wrong offsets."""
    parts, offset = [], generator.choice([0, 0, 3, 2**33])
    for _ in range(generator.randrange(1, 12)):
        kind = generator.randrange(12)
        count = generator.choice([1, 1, 2, 5, 40])
        if generator.random() < 0.2:
            offset = max(offset + generator.choice([-1, 1, 7, 2**31]), 0)
        if kind == 0:
            parts.append(message(offset, b"old", magic=generator.randrange(2), timestamp=TIME))
            count = 1
        elif kind == 1:
            inner = [message(number, b"x", magic=1, timestamp=TIME) for number in range(2)]
            parts.append(wrapper(inner, offset=offset + 1, codec="gzip", magic=1))
            count = 2
        elif kind == 2:
            parts.append(small_batch(offset, count, codec=generator.choice(["gzip", "snappy", "lz4", "zstd"])))
        elif kind == 3:
            owned: dict[str, Any] = {
                "producer_id": 5,
                "producer_epoch": 1,
                "base_sequence": 0,
                "is_transactional": True,
            }
            parts.append(small_batch(offset, count, is_control=generator.random() < 0.5, **owned))
        elif kind == 4:
            parts.append(small_batch(offset, count, size=generator.choice([0, 300, 5000])))
        elif kind == 5:
            wide = tampered(small_batch(offset, count), last_offset_delta=count + 3)
            parts.append(wide)
            count += 4
        else:
            parts.append(
                small_batch(offset, count, producer_id=generator.randrange(3), producer_epoch=0, base_sequence=0)
            )
        offset += count
    return b"".join(parts)


def damaged(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice([0, 0, 1, 1, 3])):
        at = generator.randrange(len(changed))
        match generator.randrange(4):
            case 0:
                changed[at] ^= 1 << generator.randrange(8)
            case 1:
                changed[at : at + 4] = generator.randbytes(4)
            case 2:
                del changed[at : at + generator.randrange(1, 80)]
            case _:
                changed[at:at] = bytes(changed[: generator.randrange(1, 120)])
        if not changed:
            break
    return bytes(changed)


def test_random_damaged_and_hostile_chunks(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(CHUNKS):
        data = damaged(mixed(generator), generator)
        bounds = generator.choice([{}, {}, {"offset_stop": 30}, {"known_end": 12}])
        assert_alike(
            data, next_offset=generator.choice([0, 0, 3]), chunk_bytes=generator.choice([80, 700, 1 << 20]), **bounds
        )


# --- one record -------------------------------------------------------------------------------------------------------


def looked_up(data: bytes, target: int, **bounds: int) -> Record | None:
    found = find_batch(data, len(data), target, 0, bounds.get("offset_stop", OFFSET_MAX))
    if found is None or sum(found) > len(data):
        return None
    record = record_at(data, found[0], target, tally())
    if record is not None:
        batch = parse_v2(data, found[0])
        assert batch.is_valid()
        assert batch.last_offset < bounds.get("offset_stop", OFFSET_MAX)
        assert not batch.is_control
        with suppress(CorruptDataError):  # the other records of the batch are not examined
            assert list(batch.records(target, target + 1)) == [record]
    return record


def test_a_lookup_finds_what_the_walk_finds(seed: int) -> None:
    generator = random.Random(seed)
    found = 0
    for _ in range(CHUNKS):
        data = mixed(generator)
        held: dict[int, Record] = {}
        items = list(walk(BufferSource(data), 0, len(data), next_offset=0))
        for item in items:
            if not isinstance(item, Damage) and not item[1].is_control:
                for record in item[1].records():
                    held.setdefault(record.offset, record)  # an old message set may repeat offsets
        is_sound = not any(isinstance(item, Damage) for item in items)
        for target in {*held, *range(12)}:
            one = looked_up(data, target)
            if is_sound and one is not None:
                assert one == held[target]
                found += 1
    assert found > CHUNKS


def test_a_lookup_in_damaged_bytes_gives_what_a_crc_covers(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(CHUNKS):
        data = damaged(mixed(generator), generator)
        for target in range(0, 40, 3):
            looked_up(data, target, offset_stop=generator.choice([30, OFFSET_MAX]))
            position = generator.randrange(-2, len(data) + 2)
            assert record_at(data, position, target, tally()) is None or parse_v2(data, position).is_valid()
            found = find_batch(
                data, generator.randrange(2 * len(data) + 1), target, 0, OFFSET_MAX,
                generator.randrange(-1, 9), generator.randrange(-1, 9), generator.randrange(-1, 200),
            )  # fmt: skip
            assert found is None or (0 <= found[0] <= len(data) - 61 <= len(data) <= 1 << 20 and found[1] >= 61)


def skipped_to(data: bytes, wanted: int) -> OracleRecord | None:
    """Record ``wanted`` of a batch, after the sizes of those before it; None if it or one of these cannot be right."""
    reader = Reader(data[61:])
    try:
        for _ in range(wanted):
            size = reader.varint(32)
            if size < 6:
                return None
            reader.take(size)
        record = decode_record(reader.take(reader.varint(32)), 0, TIME)
    except OracleError:
        return None
    return record if record.offset == wanted else None


def test_records_of_any_sizes_are_passed_by_their_sizes(seed: int) -> None:
    generator = random.Random(seed)
    found = 0
    for _ in range(CHUNKS):
        sizes = generator.choices([1, 2, 50, 56, 57, 58, 59, 100, 9000], k=3)
        values = [bytes(generator.choice(sizes)) for _ in range(generator.randrange(1, 40))]
        sound = build_batch([Record(at, TIME, value=value) for at, value in enumerate(values)])
        changed = bytearray(sound)
        for _ in range(generator.choice([0, 1, 1, 3])):
            # Often a size: records of one size follow each other.
            position = 61 + generator.randrange(len(sound) - 61)
            changed[position] = generator.choice([changed[position] ^ 1 << generator.randrange(8), 0x80, 0xFF, 0])
        data = tampered(bytes(changed))
        wanted = generator.randrange(len(values))
        record, expected = record_at(data, 0, wanted, tally()), skipped_to(data, wanted)
        assert (record is None) == (expected is None)
        if record is not None and expected is not None:
            assert (record.value, record.headers) == (expected.value, expected.headers)
            found += 1
        assert record_at(data[: generator.randrange(len(data))], 0, wanted, tally()) is None
    assert found > CHUNKS // 3


def test_a_first_batch_is_a_run_if_it_is_one_to_the_walk(seed: int) -> None:
    generator = random.Random(seed)
    found = 0
    for _ in range(CHUNKS):
        sound = mixed(generator)
        for data in (sound, damaged(sound, generator), sound[: generator.randrange(len(sound) + 1)]):
            runs: dict[int, tuple[int, int, bytes]] = {}
            for position, batch in scan(BufferSource(data), 0, len(data)):
                one = list(walk_runs(BufferSource(bytes(batch.data)), 0, batch.size, next_offset=batch.base_offset))
                if isinstance(one[0], Run) and not batch.is_control:
                    runs[position] = (batch.base_offset, batch.last_offset, bytes(batch.data))
            for position in {*runs, generator.randrange(-2, len(data) + 2)}:
                base, last, content = runs.get(position, (0, 0, b""))
                target = generator.randrange(base - 1, last + 2)
                stop, size_max = (
                    generator.choice([last, last + 1, OFFSET_MAX]),
                    generator.choice([len(content), 1 << 20]),
                )
                run = batch_run(data, position, target, stop, size_max)
                assert (run is not None) == (position in runs and base <= target <= last < stop)
                assert batch_run(data, position, target, stop, len(content) - 1) is None
                if run is not None:
                    assert data[run.start : run.stop] == content
                    (batch,) = [batch for _, batch in run.batches()]
                    assert (run.base_offset, run.next_offset, run.batch_count) == (base, last + 1, 1)
                    assert run.record_count == batch.record_count
                    assert run.has_producers == (batch.producer_id >= 0)
                    assert run.leader_epoch_max == max(batch.leader_epoch, -1)
                    records = list(run.records(target, OFFSET_MAX, tally()))
                    assert records == list(batch.records(target, OFFSET_MAX))
                    found += 1
    assert found > CHUNKS


def test_every_flipped_bit_of_a_batch_that_is_looked_up() -> None:
    sound = small_batch(0, 2) + small_batch(2, 3) + small_batch(5, 1)
    expected = [record for _, batch in scan(BufferSource(sound), 0, len(sound)) for record in batch.records()]
    data = bytearray(sound)
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            for target in range(6):
                record = looked_up(bytes(data), target)
                if record is not None:
                    # The leader epoch is outside the CRC.
                    assert (record.offset, record.value) == (target, expected[target].value)
            data[position] ^= 1 << bit
