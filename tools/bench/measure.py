"""Measuring on a shared and noisy machine.

A figure and its limit are measured in turn, A B A B, so that a slow spell hits both. The figure is a median. The limit
is an upper quartile: limits often stall, and a stalled limit would fake a pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

MILLION = 1e6

Measured = TypeVar("Measured")


class Run(NamedTuple):
    """Where a benchmark may write, how many times it repeats a measurement, and the size of the log that Spark
    reads."""

    root: Path
    rounds: int
    spark_gib: float = 1.0


class Line(NamedTuple):
    """One line of the report. ``asked`` is the requirement, in words; ``reached`` is None without one."""

    name: str
    figure: str
    limit: str
    ratio: str
    asked: str
    reached: bool | None


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turn(
    work: Callable[[], float], limit: Callable[[], float], *, rounds: int, warm_up: int = 1
) -> tuple[float, float]:
    """Runs both ``rounds`` times in turn; each gives a rate. Returns the work's median, the limit's upper quartile."""
    rates, limits = all_in_turn((work, limit), rounds=rounds, warm_up=warm_up)
    return statistics.median(rates), percentile(limits, 0.75)


def all_in_turn(
    works: Sequence[Callable[[], Measured]], *, rounds: int, warm_up: int = 1
) -> tuple[list[Measured], ...]:
    """Runs each ``rounds`` times, in turn in each round; returns the results of each."""
    taken: tuple[list[Measured], ...] = tuple([] for _ in works)
    for number in range(warm_up + rounds):
        for work, results in zip(works, taken, strict=True):
            result = work()
            if number >= warm_up:
                results.append(result)
    return taken


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def rate_line(
    name: str,
    rate: float,
    limit: float,
    limit_name: str,
    *,
    ratio_min: float | None = None,
    rate_min: float | None = None,
) -> Line:
    """A line of records per second; the requirement is a share of the limit, or a rate."""
    asked, reached = "", None
    if ratio_min is not None:
        asked, reached = f"{ratio_min} of it", rate >= ratio_min * limit
    if rate_min is not None:
        asked, reached = f"{rate_min / MILLION:.0f} M records/s", rate >= rate_min
    figure, bound = f"{rate / MILLION:.1f} M records/s", f"{limit_name} {limit / MILLION:.1f} M/s"
    return Line(name, figure, bound, f"{rate / limit:.2f}", asked, reached)


def rows_as_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)
