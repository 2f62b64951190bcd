"""A time on the command line: ISO 8601, ms since the epoch or relative to now; and as text for people, in UTC."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta

import click

from kstore.clock import SYSTEM_CLOCK, Clock

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
FORMS = "a time such as 2026-01-31T09:00, 1700000000000 (ms), '1h ago', -2h, yesterday or now"


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
                self.fail(f"{text[:MS_DIGITS_MAX]}... is too long for ms since the epoch, expected {FORMS}", param, ctx)
            return int(text)
        try:
            found = self._relative(text)
            if found is None:
                found = round(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{text!r}, expected {FORMS}", param, ctx)
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
    written = [f"{ms} or {timestamp_text(ms).replace('.000Z', 'Z')}"] if len(str(ms)) >= MS_DIGITS_MIN else [FORMS]
    if len(text) == len("20260131"):
        with suppress(ValueError):
            written.insert(0, date.fromisoformat(text).isoformat())
    return f"{text} is too short for ms since the epoch, and seconds are not taken: write {' or '.join(written)}"
