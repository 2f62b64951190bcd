"""A file that another process cuts, or cuts and writes again, between any two reads of it.

What walks over it then gives batches that are there or were, and damage; its caller looks whether the log was cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.headers import walk_headers
from kstore.record.walk import Damage, walk, walk_runs
from tests.support.harness.evidence import Hung

READS_MAX = 500


class CutFile:
    """``before``, and from the read of number ``cut_at`` on ``after``."""

    def __init__(self, before: bytes, after: bytes, cut_at: int) -> None:
        self._before, self._after, self._left = before, after, cut_at

    @property
    def is_cut(self) -> bool:
        return self._left < 0

    def pread(self, size: int, offset: int) -> bytes:
        self._left -= 1
        return (self._after if self.is_cut else self._before)[offset : offset + size]


def _batch(offset: int, value: bytes) -> bytes:
    return bytes(build_batch([Record(offset, 1000 + offset, value=value)]))


WHOLE = b"".join(_batch(offset, b"old" * 20) for offset in range(4))
BATCH_BYTES = len(WHOLE) // 4
# In a record, which the walk over headers passes by, and in a header.
DAMAGED = [WHOLE[:at] + bytes(10) + WHOLE[at + 10 :] for at in (BATCH_BYTES + 80, BATCH_BYTES + 8)]
WALKS: dict[str, Callable[[Any, int], Iterator[Any]]] = {
    "walk": lambda source, stop: walk(source, 0, stop, next_offset=0),
    "walk-known-end": lambda source, stop: walk(source, 0, stop, next_offset=0, known_end=3),
    "runs": lambda source, stop: walk_runs(source, 0, stop, next_offset=0),
    "headers": lambda source, stop: walk_headers(source, stop, next_offset=0),
}


@pytest.mark.parametrize("before", [WHOLE, *DAMAGED], ids=["whole", "record", "header"])
@pytest.mark.parametrize("name", WALKS)
def test_a_cut_between_any_two_reads_of_a_walk_is_at_most_damage(name: str, before: bytes) -> None:
    size = BATCH_BYTES
    afters = [before[:kept] for kept in (0, 17, size, size + 17, 2 * size, 3 * size + 30)]
    afters += [before[:size] + _batch(1, b"new" * count) for count in (1, 20, 60)]
    for after in afters:
        for cut_at in itertools.count():
            source = CutFile(before, after, cut_at)
            for item in WALKS[name](source, len(before)):
                if isinstance(item, Damage):
                    assert 0 <= item.position <= item.stop <= len(before)
                elif isinstance(item, tuple):
                    assert 0 <= item[0] < len(before)
            if not source.is_cut:
                break
            if cut_at > READS_MAX:
                raise Hung(f"{name} reads forever")
