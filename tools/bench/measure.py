"""Measuring on a machine that is shared and noisy.

A figure and its limit are taken in turn, A B A B, so that a slow spell hits both. The figure is a median. The limit is
its upper quartile: it often stalls, and a stalled limit would fake a pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["Line", "in_turn", "percentile", "seconds_of", "table"]


class Line(NamedTuple):
    """One line of the report. ``target`` is what is asked for, in words; ``reached`` is None without one."""

    name: str
    figure: str
    limit: str
    ratio: str
    target: str
    reached: bool | None


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turn(
    work: Callable[[], float], limit: Callable[[], float], *, rounds: int = 7, warm_up: int = 1
) -> tuple[float, float]:
    """Runs both ``rounds`` times in turn; each returns a rate. The work's median, the limit's upper quartile."""
    for _ in range(warm_up):
        work()
        limit()
    rates, limits = [], []
    for _ in range(rounds):
        rates.append(work())
        limits.append(limit())
    return statistics.median(rates), percentile(limits, 0.75)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table."""
    head = ("", "measured", "this machine's limit", "ratio", "at least", "reached")
    marks = {True: "yes", False: "NO", None: "-"}
    rows = [head, *((*line[:5], marks[line.reached]) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)
