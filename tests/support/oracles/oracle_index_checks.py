"""The checks of indexes against batches, one batch at a time and in plain Python: an oracle for the compiled ones."""

from __future__ import annotations

from array import array

from kstore.record._runs import Run
from kstore.types import INT32_MAX


class PlainOffsetCheck:
    """As ``OffsetCheck``."""

    def __init__(self, rows: array[int], base_offset: int) -> None:
        self.entries = [(base_offset + rows[at], rows[at + 1]) for at in range(0, len(rows), 2)]
        self.position_slot = self.offset_slot = 0

    def add(self, position: int, base_offset: int, last_offset: int) -> list[tuple[int, str, int, int]]:
        entries, found = self.entries, []
        while self.position_slot < len(entries) and entries[self.position_slot][1] <= position:
            entry = entries[self.position_slot]
            if entry[1] < position:
                found.append((self.position_slot, "no start", 0, 0))
            elif base_offset > entry[0]:
                found.append((self.position_slot, "above", base_offset, last_offset))
            self.position_slot += 1
        while self.offset_slot < len(entries) and entries[self.offset_slot][0] <= last_offset:
            if entries[self.offset_slot][0] < last_offset and self.offset_slot < self.position_slot:
                what = "first" if entries[self.offset_slot] == (base_offset, position) else "no end"
                found.append((self.offset_slot, what, 0, 0))
            self.offset_slot += 1
        return found

    def add_run(self, run: Run) -> list[tuple[int, str, int, int]]:
        return [told for at, batch in run.batches() for told in self.add(at, batch.base_offset, batch.last_offset)]

    def skip(self, start: int, stop: int) -> list[tuple[int, str, int, int]]:
        found = []
        while self.position_slot < len(self.entries) and self.entries[self.position_slot][1] < stop:
            if self.entries[self.position_slot][1] < start:
                found.append((self.position_slot, "no start", 0, 0))
            self.position_slot += 1
        self.offset_slot = max(self.offset_slot, self.position_slot)
        return found


class PlainTimeCheck:
    """As ``TimeCheck``."""

    def __init__(self, rows: array[int], base_offset: int) -> None:
        self.base_offset = base_offset
        self.slot, self.max_timestamp, self.is_far = 0, -1, False
        self.replace(rows)

    def replace(self, rows: array[int]) -> None:
        self.entries = [(rows[at], self.base_offset + rows[at + 1]) for at in range(0, len(rows), 2)]

    def add(self, base_offset: int, last_offset: int, max_timestamp: int) -> list[tuple[int, str, int]]:
        found = []
        while self.slot < len(self.entries) and self.entries[self.slot][1] <= last_offset:
            timestamp, offset = self.entries[self.slot]
            if self.max_timestamp >= timestamp:
                found.append((self.slot, "earlier", self.max_timestamp))
            elif base_offset <= offset and max_timestamp != timestamp:
                found.append((self.slot, "other", max_timestamp))
            self.slot += 1
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.is_far |= last_offset - self.base_offset > INT32_MAX
        return found

    def add_run(self, run: Run) -> list[tuple[int, str, int]]:
        return [
            told
            for _, batch in run.batches()
            for told in self.add(batch.base_offset, batch.last_offset, batch.max_timestamp)
        ]
