"""Does the same for each of several logs, on all cores: one process takes one log at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from kstore.cli.places import LogPlace, log_places
from kstore.cli.processes import BYTES_MIN, in_order, processor_count, report_progress
from kstore.scan.visits import Advance

Result = TypeVar("Result")


def each_log(
    look: Callable[[LogPlace, Advance], Result],
    places: Sequence[LogPlace],
    sizes: Sequence[int],
    advance: Advance,
    jobs: int | None = None,
) -> Generator[Result, None, None]:
    """The results of ``look``, a function of a module, for each of ``places``, in their order.

    ``sizes`` are their bytes. ``jobs`` processes work; by default one a core, if that is worth it. None remains at the
    end.

    Raises: what ``look`` raises.
    """
    count = min(len(places), jobs or processor_count())
    if count < 2 or (jobs is None and sum(sizes) - max(sizes) < BYTES_MIN):
        for place in places:
            yield look(place, advance)
        return
    # A log that takes long must not leave the other processes without work, and a result is small.
    tasks = [place.text for place in places]
    with closing(in_order(partial(_look, look), tasks, count, ahead=len(tasks), advance=advance)) as results:
        for place, (_, done) in zip(places, results, strict=True):
            yield look(place, advance) if done is None else done[0]


def _look(look: Callable[[LogPlace, Advance], Result], text: str) -> Result:
    """In another process."""
    (place,) = log_places(text)
    return look(place, report_progress)
