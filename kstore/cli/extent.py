"""Which part of a log a command takes: ``--start``, ``--stop``, ``--since`` and ``--until``, alike in all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click

from kstore.cli.options import renamed_option
from kstore.cli.value_types import TIME_EXAMPLES, TimeType
from kstore.log import Log

START: dict[str, Any] = {
    "type": int,
    "metavar": "OFFSET",
    "help": "Start at this offset; a negative one counts back from the end. Default: the first record.",
}
STOP: dict[str, Any] = {
    "type": click.IntRange(0),
    "metavar": "OFFSET",
    "help": "End before this offset. Default: the end.",
}


class Extent(NamedTuple):
    """What was given; None: no limit. Times in ms since the epoch."""

    start: int | None
    stop: int | None
    since_ms: int | None
    until_ms: int | None

    @property
    def has_start(self) -> bool:
        return self.start is not None or self.since_ms is not None

    @property
    def has_end(self) -> bool:
        return self.stop is not None or self.until_ms is not None

    def start_in(self, log: Log) -> int | None:
        """``start`` as an offset of ``log``, which it may count back from the end."""
        if self.start is None or self.start >= 0:
            return self.start
        return max(log.start_offset, log.high_watermark + self.start)

    def of(self, log: Log, end: int) -> tuple[int, int]:
        """The first offset, and the one after the last, of a log read up to ``end``; the first may be beyond it.

        A time stands for the first record that is not older. With an offset and a time the narrower one counts. Raises:
        StorageError.
        """
        start, stop = self.start_in(log), end if self.stop is None else min(self.stop, end)
        first = log.start_offset if start is None else start
        if self.since_ms is not None:
            first = max(first, _offset_at(log, self.since_ms, end))
        if self.until_ms is not None:
            stop = min(stop, _offset_at(log, self.until_ms, end))
        return first, max(first, stop)


def _offset_at(log: Log, time_ms: int, end: int) -> int:
    found = log.offset_for_time(time_ms)
    return end if found is None else found


def extent_options(
    since: str, until: str, *, old_start: str | None = None, old_since: str | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The four options, as one argument ``extent``; ``since`` and ``until`` are the help of theirs.

    The others are the spellings of an earlier release.
    """
    times: dict[str, Any] = {"type": TimeType()}
    options = (
        _option(old_start, "--start", **START),
        click.option("--stop", **STOP),
        _option(old_since, "--since", "since_ms", **times, help=f"{since} As {TIME_EXAMPLES}."),
        click.option("--until", "until_ms", **times, help=until),
    )

    def add(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def bundled(
            *, start: int | None, stop: int | None, since_ms: int | None, until_ms: int | None, **others: Any
        ) -> int:
            return function(extent=Extent(start, stop, since_ms, until_ms), **others)

        found: Callable[..., int] = bundled
        for option in reversed(options):
            found = option(found)
        return found

    return add


def _option(old: str | None, *names: str, **attributes: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(*names, **attributes) if old is None else renamed_option(old, *names, **attributes)
