"""A number on the command line, in a range that ends: no infinity, and not nan, which click takes for any range."""

from __future__ import annotations

import math
from typing import Any

import click

# How much a second. Less is a slip: a wait of hours for the first.
RATE_MIN = 0.001


class NumberType(click.FloatRange):
    """A finite number from ``min`` to ``max``."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value}, expected a number.", param, ctx)
        return number


RATE = NumberType(RATE_MIN)
