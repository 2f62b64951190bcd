"""A hostile file may claim a large batch at every byte: the number of checksummed bytes stays bounded."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from kstore.record import batch as batch_module
from kstore.record._codec import Record
from kstore.record.batch import BATCH_HEADER, BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES
from kstore.record.builder import build_batch
from kstore.record.scan import SEARCH_PASSES, WASTED_BYTES_MIN, BufferSource, SearchBudget, find_next_batch
from kstore.record.walk import NOT_SEARCHED, Damage, walk

INT64 = struct.Struct(">q")
MIB = 1 << 20
SIZE = 32 * MIB


class Checksummed:
    """How many bytes were checksummed."""

    def __init__(self) -> None:
        self.size = 0


@pytest.fixture
def checksummed(monkeypatch: pytest.MonkeyPatch) -> Checksummed:
    counted, batch_crc = Checksummed(), batch_module.batch_crc

    def count(data: memoryview) -> int:
        counted.size += len(data)
        return batch_crc(data)

    monkeypatch.setattr(batch_module, "batch_crc", count)
    return counted


def header(base_offset: int, size: int, crc: int = 1) -> bytes:
    """A possible header of a batch of ``size`` bytes with one record."""
    return BATCH_HEADER.pack(base_offset, size - LOG_OVERHEAD_BYTES, 0, 2, crc, 0, 0, 1, 1, -1, -1, -1, 1)


def hostile(size: int, share: float) -> bytes:
    """Only headers, each of which claims that share of the file and is followed by one that matches."""
    count = size // BATCH_HEADER_BYTES
    # They differ in their first field alone.
    same = header(0, int(count * share) * BATCH_HEADER_BYTES)[INT64.size :]
    return b"".join(INT64.pack(number) + same for number in range(count))


def whole(base_offset: int, value: bytes = b"x") -> bytes:
    return build_batch([Record(base_offset, 1, value=value)])


def limit(size: int) -> int:
    return SEARCH_PASSES * size + WASTED_BYTES_MIN


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize("share", [0.5, 0.01])
@pytest.mark.sampled(1)
def test_a_search_among_headers_that_all_claim_half_the_file_is_bounded(
    share: float, checksummed: Checksummed, tried: Callable[[str, int], None]
) -> None:
    data = hostile(SIZE, share)
    budget = SearchBudget(len(data))
    assert find_next_batch(BufferSource(data), 0, len(data), next_offset=0, budget=budget) is None
    assert budget.is_spent
    assert 0 < checksummed.size <= limit(len(data))
    tried("fuzz inputs", 1)


@pytest.mark.promise("hostile file")
def test_a_walk_over_headers_that_all_claim_half_the_file_is_bounded(checksummed: Checksummed) -> None:
    data = hostile(SIZE, 0.5)
    (damage,) = list(walk(BufferSource(data), 0, len(data), next_offset=0))
    assert isinstance(damage, Damage)
    assert (damage.position, damage.stop, damage.next_offset) == (0, len(data), None)
    assert damage.reason.endswith(NOT_SEARCHED)
    assert checksummed.size <= 2 * limit(len(data))


@pytest.mark.promise("hostile file")
@pytest.mark.long
def test_a_walk_that_meets_a_large_claim_after_every_whole_batch_is_bounded(checksummed: Checksummed) -> None:
    parts: list[bytes] = []
    size = number = 0
    while size < 8 * MIB:
        pair = whole(2 * number), header(2 * number + 1, 4 * MIB)
        size += len(pair[0]) + len(pair[1])
        parts += pair
        number += 1
    data = b"".join(parts)
    items = list(walk(BufferSource(data), 0, len(data), next_offset=0))
    last = items[-1]
    assert isinstance(last, Damage)
    assert last.reason.endswith(NOT_SEARCHED)
    assert len(items) > 20
    assert checksummed.size <= len(data) + 2 * limit(len(data))


@pytest.mark.promise("hostile file")
def test_an_index_that_names_nothing_but_large_claims_is_bounded(checksummed: Checksummed) -> None:
    data = hostile(8 * MIB, 0.5)
    hints = range(0, len(data) // 2, BATCH_HEADER_BYTES)
    assert find_next_batch(BufferSource(data), 0, len(data), next_offset=0, hints=hints) is None
    assert checksummed.size <= 2 * limit(len(data))


def test_where_the_search_ends_the_next_index_entry_that_is_whole_is_taken() -> None:
    hidden = hostile(4 * MIB, 0.5)
    good = whole(10**6)
    data = hidden + good + whole(10**6 + 1)
    found = list(walk(BufferSource(data), 0, len(data), next_offset=0, hints=lambda: [0, len(hidden)]))
    assert isinstance(found[0], Damage)
    assert (found[0].stop, found[0].next_offset) == (len(hidden), 10**6)
    assert [item[0] for item in found[1:]] == [len(hidden), len(hidden) + len(good)]


@pytest.mark.long
def test_candidates_that_nothing_follows_cost_a_header_and_no_checksum(checksummed: Checksummed) -> None:
    # Such a claim ends one byte after another header's start, so a CRC byte would be its magic.
    claims = b"".join(header(number, BATCH_HEADER_BYTES * 1000 + 1, crc=0xFFFFFFFF) for number in range(20_000))
    data = claims + whole(10**6) + whole(10**6 + 1)
    assert find_next_batch(BufferSource(data), 0, len(data), next_offset=0) == len(claims)
    # Except for those near the end, after which there are too few bytes for a header.
    assert checksummed.size < 200_000


@pytest.mark.parametrize("damaged", [1, 2, 5, 20])
@pytest.mark.sampled(1)
def test_a_file_full_of_damaged_batches_is_searched_to_its_end(damaged: int) -> None:
    """Real damage takes at most one pass, so it never ends a search."""
    parts, expected, position = [], [], 0
    for number in range(4000):
        part = bytearray(whole(number, b"v" * 2000))
        if number % (damaged + 1):
            part[-5] ^= 1
        else:
            expected.append(position)
        parts.append(bytes(part))
        position += len(part)
    data = b"".join(parts)
    items = list(walk(BufferSource(data), 0, len(data), next_offset=0))
    assert [item[0] for item in items if not isinstance(item, Damage)] == expected


@pytest.mark.long
def test_a_source_is_read_a_few_times_its_size_however_much_of_it_is_damaged() -> None:
    class Counting(BufferSource):
        size = 0

        def pread(self, size: int, position: int) -> bytes:
            data = super().pread(size, position)
            self.size += len(data)
            return data

    parts = []
    for number in range(5000):
        part = bytearray(whole(number, b"v" * 2000))
        part[-5] ^= number % 2
        parts.append(bytes(part))
    source = Counting(b"".join(parts))
    length = sum(map(len, parts))
    items = list(walk(source, 0, length, next_offset=0))
    assert len(items) == 5000
    assert source.size < 20 * length
