"""Writes the lines of a command in large pieces."""

from __future__ import annotations

from typing import BinaryIO

WRITE_BYTES = 1 << 18


class LineWriter:
    """Collects lines for ``out``, and writes them when there are many, or on ``flush``."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, line: bytes) -> None:
        """Takes a line with its line break."""
        self._lines.append(line)
        self._size += len(line)
        if self._size >= WRITE_BYTES:
            self._write()

    def flush(self) -> None:
        """Writes what is left, also out of the stream's own buffer."""
        self._write()
        self._out.flush()

    def _write(self) -> None:
        data = b"".join(self._lines)
        self._lines.clear()
        self._size = 0
        self._out.write(data)
