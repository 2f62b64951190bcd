"""Collects disagreements between files, and within them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Mismatch(NamedTuple):
    """A disagreement: ``found`` is the value in the index or the previous record, ``expected`` the one in the log.

    For a broken order, ``expected`` is the previous value.
    """

    found: int
    expected: int


class Kind(NamedTuple):
    """One kind of mismatch: its name in JSON, Kafka's heading and line, and the names of its two numbers."""

    name: str
    heading: str
    line: str
    found: str
    expected: str


INDEX_OFFSET = Kind(
    "index_offset", "Mismatches in :{}", "  Index offset: {}, log offset: {}", "index_offset", "log_offset"
)
TIMESTAMP = Kind(
    "timestamp",
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {}, log timestamp: {}",
    "index_timestamp",
    "log_timestamp",
)
UNORDERED_TIMESTAMP = Kind(
    "unordered_timestamp",
    "Found out of order timestamp in :{}",
    "  Index timestamp: {}, Previously indexed timestamp: {}",
    "index_timestamp",
    "previous_index_timestamp",
)
MISSING_OFFSET = Kind(
    "missing_offset",
    "The following indexed offsets are not found in :{}",
    "Indexed offset: {}, found log offset: {}",
    "index_offset",
    "log_offset",
)
GAP = Kind("gap", "Non-consecutive offsets in {}", "  {} is followed by {}", "offset", "next_offset")


@dataclass(slots=True)
class FileReport:
    """The mismatches of one file. Index entries and gaps are kept once for each offset, as in Kafka's tool."""

    index_offsets: dict[int, int] = field(default_factory=dict)
    timestamps: list[Mismatch] = field(default_factory=list)
    unordered_timestamps: list[Mismatch] = field(default_factory=list)
    missing_offsets: list[Mismatch] = field(default_factory=list)
    gaps: dict[int, int] = field(default_factory=dict)

    def by_kind(self) -> dict[Kind, list[Mismatch]]:
        return {
            INDEX_OFFSET: [Mismatch(*entry) for entry in sorted(self.index_offsets.items(), reverse=True)],
            TIMESTAMP: self.timestamps,
            UNORDERED_TIMESTAMP: self.unordered_timestamps,
            MISSING_OFFSET: self.missing_offsets,
            GAP: [Mismatch(*gap) for gap in sorted(self.gaps.items())],
        }


class Reports:
    """The mismatches of all files, in the order of the files."""

    def __init__(self) -> None:
        self._files: dict[str, FileReport] = {}

    def of(self, path: str) -> FileReport:
        """The report of ``path``, to be filled."""
        return self._files.setdefault(path, FileReport())

    def __iter__(self) -> Iterator[tuple[Kind, str, list[Mismatch]]]:
        """Kind, path and mismatches: all files of one kind before the next kind, as Kafka's tool prints them."""
        found = {path: report.by_kind() for path, report in self._files.items()}
        for kind in (INDEX_OFFSET, TIMESTAMP, UNORDERED_TIMESTAMP, MISSING_OFFSET, GAP):
            for path, by_kind in found.items():
                if by_kind[kind]:
                    yield kind, path, by_kind[kind]
