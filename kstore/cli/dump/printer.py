"""What a dump reports, independent of its format: disagreements within files and between them, and the two streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol, TextIO

from kstore.cli.decoders import Decoder
from kstore.cli.dump.batches import LegacyDumpBatch, Message, V2DumpBatch
from kstore.record._codec import Record
from kstore.state.producer_snapshot import ProducerEntry
from kstore.types import AbortedTransaction

FLUSH_CHARS = 1 << 18


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


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of records: ``decoder`` reads keys and values, None if they are not shown."""

    metadata: bool = True
    decoder: Decoder | None = None


class Printer(Protocol):
    """An output format. Every path is as the user gave it; offsets, positions and times are plain numbers."""

    def file(self, path: str) -> None:
        """The following output is about this file."""
        ...

    def ignored(self, path: str) -> None:
        """The file is of a kind that cannot be dumped."""
        ...

    def log_start(self, base_offset: int) -> None: ...
    def snapshot_start(self, end_offset: int, epoch: int) -> None: ...
    def bootstrap_start(self) -> None: ...

    def batch(self, batch: V2DumpBatch | LegacyDumpBatch, is_valid: bool) -> None:
        """Raises UnsupportedCodecError after printing the rest of the batch."""
        ...

    def records(self, batch: V2DumpBatch, records: Iterable[Record], shown: Shown) -> None:
        """Prints each record as it arrives; exceptions of ``records`` and the decoder pass through."""
        ...

    def messages(self, batch: LegacyDumpBatch, messages: Iterable[Message], shown: Shown) -> None: ...
    def invalid_tail(self, size: int, name: str) -> None: ...
    def empty_index(self, path: str) -> None: ...
    def sanity_passed(self, path: str) -> None: ...
    def index_entry(self, offset: int, position: int) -> None: ...
    def time_index_entry(self, timestamp: int, offset: int) -> None: ...
    def aborted_transaction(self, version: int, entry: AbortedTransaction) -> None: ...
    def producer(self, entry: ProducerEntry) -> None: ...
    def snapshot_crc(self, stored: int, computed: int) -> None: ...
    def damage(self, path: str, reason: str, position: int | None) -> None: ...
    def note(self, path: str, text: str) -> None:
        """A remark that is not damage by itself."""
        ...

    def reports(self, reports: Reports) -> None: ...
    def flush(self) -> None: ...


class Output:
    """Lines on standard output, in large pieces and always as UTF-8, in order with remarks on standard error.

    ``shown`` makes a line fit for a terminal. Not thread-safe. Raises BrokenPipeError when the reader has gone.
    """

    def __init__(self, out: BinaryIO, err: TextIO, shown: Callable[[str], str] = str) -> None:
        self._out = out
        self._shown = None if shown is str else shown
        self._err = err
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> None:
        """Adds ``text``, a line with its line break, to the standard output."""
        if self._shown is not None:
            text = self._shown(text[:-1]) + "\n"
        self.write_lines(text)

    @property
    def is_raw(self) -> bool:
        """Whether lines are written as they are."""
        return self._shown is None

    def write_lines(self, text: str) -> None:
        """Adds whole lines in which nothing acts on a terminal, or which are not for one."""
        self._parts.append(text)
        self._size += len(text)
        if self._size >= FLUSH_CHARS:
            self._drain()

    def remark(self, line: str) -> None:
        """Writes a line to standard error, after everything written before."""
        self.flush()
        self._err.write(f"{line}\n")
        self._err.flush()

    def flush(self) -> None:
        self._drain()
        self._out.flush()

    def _drain(self) -> None:
        # Lone surrogates occur only in paths, which may hold any byte; all other text was decoded from bytes.
        data = "".join(self._parts).encode("utf-8", "surrogateescape")
        self._parts.clear()
        self._size = 0
        self._out.write(data)
