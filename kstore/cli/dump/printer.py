"""What a dump reports, independent of its format, and the two streams that it writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TextIO

from kstore.cli.decoders import Decoder
from kstore.cli.dump.batches import LegacyDumpBatch, Message, V2DumpBatch
from kstore.cli.dump.reports import Reports
from kstore.record._codec import Record
from kstore.state.producer_snapshot import ProducerEntry
from kstore.types import AbortedTransaction

FLUSH_CHARS = 1 << 18


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
