"""Sets of offsets: of nearby ones, a bit for each; and of long runs, two numbers for each. No I/O, clock or threads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

# Offsets of one block share an int of this many bits, so that a change copies 128 bytes.
BLOCK_BITS = 10
BLOCK_SIZE = 1 << BLOCK_BITS


class OffsetSet:
    """Offsets, added a range at a time. Not thread-safe.

    A queue fed by transactions has about as many markers as items; a ``set`` of them would use 80 bytes each.
    """

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


class OffsetRuns:
    """Runs of offsets; runs that touch become one. Not thread-safe.

    One event of a journal may mark 2^32 items as done, and costs no more here than one that marks ten.

    ``borders`` has the first offset of each run and the one after its last, in order: an offset is in a run if an odd
    number of borders is at or below it. A change is one assignment, so that an interrupt comes before it or after it.
    """

    __slots__ = ("_count", "borders")

    def __init__(self) -> None:
        self.borders: list[int] = []
        # None: to be counted.
        self._count: int | None = 0

    @property
    def count(self) -> int:
        """The number of offsets. Not the length: ``list(runs)`` would reserve that much memory."""
        if self._count is None:
            borders = self.borders
            self._count = sum(borders[1::2]) - sum(borders[::2])
        return self._count

    def __bool__(self) -> bool:
        return bool(self.borders)

    def __contains__(self, offset: int) -> bool:
        return bisect_right(self.borders, offset) % 2 == 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The runs, each as its first offset and the one after its last."""
        return zip(self.borders[::2], self.borders[1::2], strict=True)

    def add(self, first: int, stop: int) -> None:
        """Adds the offsets from ``first`` to below ``stop``, of which there must be one."""
        # Runs that touch it, too.
        at, end = bisect_left(self.borders, first), bisect_right(self.borders, stop)
        self._put(at, end, [first] * (at % 2 == 0) + [stop] * (end % 2 == 0))

    def keep_from(self, start: int) -> None:
        """Removes the offsets below ``start``."""
        end = bisect_right(self.borders, start)
        self._put(0, end, [start] * (end % 2))

    def keep_below(self, stop: int) -> None:
        """Removes the offsets from ``stop`` on."""
        at = bisect_left(self.borders, stop)
        self._put(at, len(self.borders), [stop] * (at % 2))

    def gaps(self, first: int, stop: int) -> list[tuple[int, int]]:
        """What is between the runs, from ``first`` to below ``stop``."""
        at, end = bisect_right(self.borders, first), bisect_left(self.borders, stop)
        borders = [first] * (at % 2 == 0) + self.borders[at:end] + [stop] * (end % 2 == 0)
        return [gap for gap in zip(borders[::2], borders[1::2], strict=True) if gap[0] < gap[1]] if first < stop else []

    def _put(self, at: int, end: int, borders: list[int]) -> None:
        self._count = None
        self.borders[at:end] = borders
