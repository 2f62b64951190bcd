"""The two streams of a dump: lines on standard output, in large pieces, and remarks on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, TextIO

FLUSH_CHARS = 1 << 18


class Output:
    """Buffers standard output, always as UTF-8, and keeps its order relative to standard error.

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
