"""The compiled search of an index, beside a plain one."""

from __future__ import annotations

import random
import struct

import pytest

from kstore.indexes._search import floor_slot


def plain_floor_slot(columns: list[bytes], key: bytes) -> int:
    return max((slot for slot, column in enumerate(columns) if column <= key), default=-1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 501])
def test_the_last_slot_at_or_below_the_key_is_found(count: int, seed: int) -> None:
    generator = random.Random(seed)
    numbers = sorted(generator.sample(range(1, 10_000), count))
    data = b"".join(struct.pack(">ii", number, -number) for number in numbers)
    columns = [struct.pack(">i", number) for number in numbers]
    for wanted in [0, 10_001, *numbers, *(number + 1 for number in numbers), *(number - 1 for number in numbers)]:
        key = struct.pack(">i", wanted)
        assert floor_slot(data, count, 8, key, 0) == plain_floor_slot(columns, key)


def test_the_column_may_stand_anywhere_in_the_entry() -> None:
    data = struct.pack(">iiii", 9, 1, 8, 5)
    assert [floor_slot(data, 2, 8, struct.pack(">i", key), 4) for key in (0, 1, 4, 5, 6)] == [-1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("entries", "entry_size", "key", "key_at"),
    [(3, 8, b"abcd", 0), (-1, 8, b"abcd", 0), (2, 0, b"abcd", 0), (2, 8, b"abcd", 5), (2, 8, b"abcd", -1)],
    ids=["more entries than bytes", "fewer than none", "entries of no size", "beyond the entry", "before the entry"],
)
def test_nothing_is_read_outside_the_entries(entries: int, entry_size: int, key: bytes, key_at: int) -> None:
    with pytest.raises(ValueError, match="entries of"):
        floor_slot(bytes(16), entries, entry_size, key, key_at)
