"""A set of nearby offsets, a bit for each. No I/O, no clock, no threads.

A queue fed by transactions has about as many markers as items; a ``set`` of them would use 80 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator

# Offsets of one block share an int of this many bits, so that a change copies 128 bytes.
BLOCK_BITS = 10
BLOCK_SIZE = 1 << BLOCK_BITS


class OffsetSet:
    """Offsets, added a range at a time. Not thread-safe."""

    __slots__ = ("_blocks", "_count")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return bool(self._blocks.get(offset >> BLOCK_BITS, 0) >> offset % BLOCK_SIZE & 1)

    def __iter__(self) -> Iterator[int]:
        for number, bits in self._blocks.items():
            for at in range(BLOCK_SIZE):
                if bits >> at & 1:
                    yield number * BLOCK_SIZE + at

    def add_range(self, first: int, stop: int) -> None:
        """Adds the offsets from ``first`` to below ``stop``."""
        while first < stop:
            number, at = divmod(first, BLOCK_SIZE)
            count = min(stop - first, BLOCK_SIZE - at)
            self._set(number, self._blocks.get(number, 0) | ((1 << count) - 1) << at)
            first += count

    def discard(self, offset: int) -> None:
        """Removes an offset, if present."""
        number, at = divmod(offset, BLOCK_SIZE)
        if bits := self._blocks.get(number, 0):
            self._set(number, bits & ~(1 << at))

    def remove_range(self, first: int, stop: int) -> None:
        """Removes the offsets from ``first`` to below ``stop``."""
        edges = [first >> BLOCK_BITS, (stop - 1) >> BLOCK_BITS]
        for number in [number for number in self._blocks if edges[0] <= number <= edges[1]] if first < stop else ():
            start = number * BLOCK_SIZE
            kept = (1 << max(first - start, 0)) - 1 | -1 << min(stop - start, BLOCK_SIZE)
            self._set(number, self._blocks[number] & kept)

    def keep_from(self, start: int) -> None:
        """Removes the offsets below ``start``."""
        edge, at = divmod(start, BLOCK_SIZE)
        for number in [number for number in self._blocks if number < edge]:
            self._set(number, 0)
        if bits := self._blocks.get(edge, 0):
            self._set(edge, bits >> at << at)

    def _set(self, number: int, bits: int) -> None:
        self._count += bits.bit_count() - self._blocks.get(number, 0).bit_count()
        if bits:
            self._blocks[number] = bits
        else:
            self._blocks.pop(number, None)
