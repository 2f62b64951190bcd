"""The two streams that a dump writes to: lines on standard output, in large pieces, and remarks on standard error."""

from __future__ import annotations

from typing import BinaryIO, TextIO

__all__ = ["Output"]

FLUSH_CHARS = 1 << 18


class Output:
    """Buffers standard output, always as UTF-8, and keeps the order between it and standard error.

    Not thread-safe. Raises BrokenPipeError when nobody reads any more.
    """

    def __init__(self, out: BinaryIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> None:
        """Adds ``text``, with its line break, to what goes to standard output."""
        self._parts.append(text)
        self._size += len(text)
        if self._size >= FLUSH_CHARS:
            self._drain()

    def remark(self, line: str) -> None:
        """Writes a line to standard error, behind all that was written before."""
        self.flush()
        self._err.write(f"{line}\n")
        self._err.flush()

    def flush(self) -> None:
        self._drain()
        self._out.flush()

    def _drain(self) -> None:
        # A lone surrogate cannot be: all text was decoded from bytes, or is a path, which may hold any byte.
        data = "".join(self._parts).encode("utf-8", "surrogateescape")
        self._parts.clear()
        self._size = 0
        self._out.write(data)
