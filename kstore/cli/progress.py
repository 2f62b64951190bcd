"""The progress of a long command on standard error: a bar, or a line that is rewritten.

    with progress("mirror", total_bytes) as advance:    # nothing unless standard error is a terminal
        advance(1 << 20)
    line = LiveLine()                                   # line by line if it is not one
    line.show("5 records")
    line.end()

What the command prints in the meantime gets lines of its own: the bar is erased first, and comes back with the next
advance. If it prints to a pipe there is no bar: the pipe's reader may write to the same terminal.

``NO_COLOR`` turns off colours; ``TERM=dumb``, which cannot move its cursor, the bar.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from kstore.cli.table import painted
from kstore.cli.terminal import TerminalText, escaped, terminal_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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
    if not _can_show(stream) or _is_pipe(sys.stdout):
        yield _nothing
        return
    # Not at the top: rich takes longer to import than most commands run.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    ends = TextColumn(unit if unit != "bytes" else "")
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        ends,
        TimeRemainingColumn(),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        # Other output is the command's own and is not redirected.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar = _Bar(shown, shown.add_task(title, total=total))
    guards = [guard for guard in (sys.stdout, sys.stderr) if isinstance(guard, TerminalText)]
    for guard in guards:
        guard.before_write = bar.hide
    try:
        yield bar.advance
    finally:
        for guard in guards:
            guard.before_write = None
        bar.hide()


class _Bar:
    """A bar that gives way to what the command prints on the same terminal. Thread-safe."""

    def __init__(self, shown: Progress, task: TaskID) -> None:
        self._lock = threading.Lock()
        self._shown = shown
        self._task = task
        self._due = 0.0
        self._is_visible = False

    def advance(self, size: int) -> None:
        """Advances the bar, and shows it if it is not visible."""
        with self._lock:
            self._shown.advance(self._task, size)
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + 1 / REFRESHES_PER_SECOND
            if not self._is_visible:
                self._is_visible = True
                self._shown.start()
            self._shown.refresh()

    def hide(self) -> None:
        """Erases the bar; the cursor is at the start of its line."""
        with self._lock:
            if self._is_visible:
                self._is_visible = False
                self._shown.stop()


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


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False  # closed, or no file


def _can_show(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown", "")
    except ValueError:
        return False  # closed
