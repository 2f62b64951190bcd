"""The types of values on the command line: times, amounts with their unit, and places in a log."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kstore.cli.terminal import say
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.setting_rules import QUANTITY, SIZE_UNITS, TIME_UNITS_MS
from kstore.types import INT64_MAX

if TYPE_CHECKING:
    from kstore.log import Log

# --- times: ISO 8601, ms since the epoch or relative to now; and as text for people, in UTC ---------------------------

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A bare number with fewer digits is a slip: seconds, for instance. As ms it would be in the first months of 1970.
MS_DIGITS_MIN = 11
# The digits of the greatest timestamp.
MS_DIGITS_MAX = 19
UNITS = (
    (1, "ms"),
    (1000, "s sec second seconds"),
    (60_000, "m min minute minutes"),
    (3_600_000, "h hour hours"),
    (86_400_000, "d day days"),
    (7 * 86_400_000, "w week weeks"),
)
UNITS_MS = {name: ms for ms, names in UNITS for name in names.split()}
AMOUNT = r"(?P<amount>[0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?P<unit>[a-z]+)"
RELATIVE = (re.compile(rf"-{AMOUNT}", re.ASCII), re.compile(rf"{AMOUNT} ago", re.ASCII))
# For help.
TIME_EXAMPLES = "2026-01-31T09:00, '1h ago', yesterday"
TIME_FORMS = "a time such as 2026-01-31T09:00, 1700000000000 (ms), '1h ago', -2h, yesterday or now"


def timestamp_text(timestamp_ms: int) -> str:
    """A timestamp for people: ISO 8601 in UTC; "-" for none, the plain number if no calendar has it."""
    if timestamp_ms < 0:
        return "-"
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp_ms)


class TimeType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A time, in ms since the epoch:

    - an ISO 8601 date, or date and time; without a zone it is local time
    - ms since the epoch, of at least 11 digits
    - ``1h ago``, ``-2h``: before now, in ms, s, m, h, d or w
    - ``now``; ``today`` and ``yesterday``: the start of that day, in local time
    """

    name = "time"

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if text.isascii() and text.isdigit():
            if len(text) < MS_DIGITS_MIN:
                self.fail(_too_short(text), param, ctx)
            if len(text) > MS_DIGITS_MAX:
                self.fail(
                    f"{text[:MS_DIGITS_MAX]}... is too long for ms since the epoch, expected {TIME_FORMS}", param, ctx
                )
            return int(text)
        try:
            found = self._relative(text)
            if found is None:
                found = round(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{text!r}, expected {TIME_FORMS}", param, ctx)
        if found < 0:
            self.fail(f"{text!r} is before 1970", param, ctx)
        return found

    def _relative(self, text: str) -> int | None:
        """The time that ``text`` says in relation to now; None if it does not. Raises: ValueError."""
        now_ms = self._clock.now_ms()
        if text == "now":
            return now_ms
        if text in ("today", "yesterday"):
            day = datetime.fromtimestamp(now_ms / 1000).date() - timedelta(days=text == "yesterday")
            return round(datetime.combine(day, time()).timestamp() * 1000)
        for form in RELATIVE:
            if match := form.fullmatch(text):
                if match["unit"] not in UNITS_MS:
                    raise ValueError
                return now_ms - round(float(match["amount"]) * UNITS_MS[match["unit"]])
        return None


def _too_short(text: str) -> str:
    """Why a number is not taken as ms since the epoch, and what to write for what it probably means."""
    ms = int(text) * 1000
    written = [f"{ms} or {timestamp_text(ms).replace('.000Z', 'Z')}"] if len(str(ms)) >= MS_DIGITS_MIN else [TIME_FORMS]
    if len(text) == len("20260131"):
        with suppress(ValueError):
            written.insert(0, date.fromisoformat(text).isoformat())
    return f"{text} is too short for ms since the epoch, and seconds are not taken: write {' or '.join(written)}"


# --- amounts: with a unit, as a size, a duration or bytes a second, or a plain number ---------------------------------

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


# --- where to start and end, in the syntax of kcat's ``-o`` -----------------------------------------------------------

OFFSET_FORM = re.compile(
    r"(?P<word>beginning|earliest|end|latest|stored)|(?P<number>-?[0-9]{1,19})|(?P<at>[se])@(?P<time>.+)"
)
OFFSET_FORMS = "beginning, end, stored, N, -N (from the end), s@TIME (from a time), e@TIME (up to a time)"

TIME = TimeType()


class Place(NamedTuple):
    """``kind``: "beginning", "end", "stored", "offset", "back", "since" or "until"; with an offset, a count or ms."""

    kind: str
    number: int = 0


class OffsetType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """One of kcat's forms."""

    name = "offset"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if isinstance(value, Place):
            return value
        match = OFFSET_FORM.fullmatch(value)
        if match is None:
            self.fail(f"{value!r}, expected one of {OFFSET_FORMS}", param, ctx)
        if match["word"]:
            return Place({"earliest": "beginning", "latest": "end"}.get(match["word"], match["word"]))
        if match["at"]:
            return Place("since" if match["at"] == "s" else "until", TIME.convert(match["time"], param, ctx))
        number = int(match["number"])
        return Place("back", -number) if match["number"].startswith("-") else Place("offset", number)


def begin_offset(log: Log, place: Place) -> int:
    """The offset of a log that ``place`` means. Raises: StorageError."""
    end = log.high_watermark
    if place.kind == "end":
        return end
    if place.kind == "offset":
        return place.number
    if place.kind == "back":
        return max(log.start_offset, end - place.number)
    if place.kind == "since":
        found = log.offset_for_time(place.number)
        return end if found is None else found
    return log.start_offset


def end_offset(log: Log, until_ms: int | None) -> int:
    """Where a log ends now, or the offset at a time."""
    found = None if until_ms is None else log.offset_for_time(until_ms)
    return log.high_watermark if found is None else min(found, log.high_watermark)
