"""Amounts on the command line: with a unit, as a size, a duration or bytes a second, or a plain number."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import click

from kstore.cli.terminal import say
from kstore.setting_rules import QUANTITY, SIZE_UNITS, TIME_UNITS_MS
from kstore.types import INT64_MAX

NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
# How much a second. Less is a slip: a wait of hours for the first.
RATE_MIN = 0.001


class UnitType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A number with a unit of ``units``, as a number of the unit "" among them.

    Args:
        name: what it is, in help and messages.
        example: a correct text.
        bare: the unit of a number without one, which earlier releases took: there is a warning. None: such a number is
            refused, but 0 needs no unit.
        minimum, maximum: of the result.
    """

    def __init__(
        self,
        name: str,
        units: Mapping[str, int],
        example: str,
        *,
        bare: str | None = None,
        minimum: int = 0,
        maximum: int = INT64_MAX,
    ) -> None:
        self.name = name
        self._units = units
        self._example = example
        self._bare = bare
        self._minimum, self._maximum = minimum, maximum

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        is_bare = NUMBER.fullmatch(text) is not None and float(text) != 0
        if is_bare and self._bare is None:
            self.fail(f"{text} has no unit, expected {self._name_and_example()}", param, ctx)
        match = QUANTITY.fullmatch(text)
        unit = "" if match is None else str(match[2])
        if is_bare:
            unit = self._bare or ""
        if match is None or unit not in self._units:
            self.fail(f"{text!r}, expected {self._name_and_example()}", param, ctx)
        found = round(float(str(match[1])) * self._units[unit])
        if not self._minimum <= found <= self._maximum:
            limit = f"at least {self._minimum}" if found < self._minimum else f"at most {self._maximum}"
            self.fail(f"{text!r}, expected {limit}, as {self._example}", param, ctx)
        if is_bare and unit and (ctx is None or not ctx.resilient_parsing):
            option = "" if param is None else f"{param.opts[0]} "
            say(f"{option}{text} is taken as {text}{unit}: write the unit, which the next release wants")
        return found

    def _name_and_example(self) -> str:
        return f"a {self.name} such as {self._example}"


SIZE = UnitType("size", SIZE_UNITS, "64MiB", bare="")
DURATION = UnitType("duration", TIME_UNITS_MS, "15m or 500ms")
# What earlier releases took without a unit.
DURATION_MS = UnitType("duration", TIME_UNITS_MS, "15m or 500ms", bare="ms")
BYTE_RATE = UnitType("rate", SIZE_UNITS, "20MiB (a second)", minimum=1)
BYTE_RATE_MIB = UnitType("rate", SIZE_UNITS, "20MiB (a second)", bare="MiB", minimum=1)
BYTE_RATE_BARE = UnitType("rate", SIZE_UNITS, "20MiB (a second)", bare="", minimum=1)


class NumberType(click.FloatRange):
    """A finite number from ``min`` to ``max``: no infinity, and not nan, which click takes for any range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value}, expected a number.", param, ctx)
        return number


RATE = NumberType(RATE_MIN)
