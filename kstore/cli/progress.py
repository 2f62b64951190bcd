"""A progress bar on standard error while a long command works; nothing where standard error is no terminal.

    with progress("mirror", total_bytes) as advance:
        advance(1 << 20)

``NO_COLOR`` takes the colours away; ``TERM=dumb``, which cannot move its cursor, the bar.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["progress"]

# A terminal is written to at most ten times a second, however small the steps are.
REFRESHES_PER_SECOND = 10


def _nothing(size: int) -> None:
    """What advances a bar that nobody sees."""


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
    """A bar with ``title`` for ``total`` bytes (or counted things, where ``unit`` names them), gone at the end.

    Gives the function that advances it, which any thread may call. ``total`` None: nobody knows how much there is.
    """
    stream = sys.stderr
    if not _can_show(stream):
        yield _nothing
        return
    # Here, and not above: rich takes longer to import than most commands run.
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
        # Other output is the command's: it goes where it always goes.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda size: bar.advance(task, size)


def _can_show(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown", "")
    except ValueError:
        return False  # closed
