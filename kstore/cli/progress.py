"""The progress of a long command on standard error: a bar, or a line that is rewritten.

    with progress("mirror", total_bytes) as advance:    # nothing unless standard error is a terminal
        advance(1 << 20)
    line = LiveLine()                                   # line by line if it is none
    line.show("5 records")
    line.end()

``NO_COLOR`` turns off colours; ``TERM=dumb``, which cannot move its cursor, the bar.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

from kstore.cli.table import painted
from kstore.cli.terminal import escaped, terminal_of

__all__ = ["LiveLine", "progress"]

# A terminal is written to at most ten times a second, however small the steps.
REFRESHES_PER_SECOND = 10
TO_LINE_START = "\r\x1b[K"


def _nothing(size: int) -> None:
    """Advances a bar that is not shown."""


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
    """A bar with ``title`` for ``total`` bytes (or other units, if ``unit`` names them), removed at the end.

    Yields the function that advances it, which any thread may call. ``total`` None: unknown.
    """
    stream = terminal_of(sys.stderr)
    if not _can_show(stream):
        yield _nothing
        return
    # Not at the top: rich takes longer to import than most commands run.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    ends = TextColumn(unit if unit != "bytes" else "")
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        ends,
        TimeRemainingColumn(),
        console=Console(file=stream),
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        # Other output is the command's own and is not redirected.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda size: bar.advance(task, size)


class LiveLine:
    """A line on standard error that is rewritten: in place on a terminal, otherwise on a new line each time."""

    def __init__(self) -> None:
        self._stream = terminal_of(sys.stderr)
        self.is_in_place = _can_show(self._stream)
        self._is_shown = False

    def show(self, text: str, colour: Literal["red", "yellow", "green"] | None = None) -> None:
        """Shows ``text`` in place of the previous text."""
        if self.is_in_place:
            # A line that is longer than the terminal is wide cannot be erased.
            text = escaped(text)[: shutil.get_terminal_size().columns - 1]
        if colour is not None:
            text = painted(text, colour, self._stream)
        self._stream.write(f"{TO_LINE_START}{text}" if self.is_in_place else f"{text}\n")
        self._stream.flush()
        self._is_shown = True

    def end(self) -> None:
        """Erases the line."""
        if self.is_in_place and self._is_shown:
            self._stream.write(TO_LINE_START)
            self._stream.flush()
            self._is_shown = False


def _can_show(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown", "")
    except ValueError:
        return False  # closed
